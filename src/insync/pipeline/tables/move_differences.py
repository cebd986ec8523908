"""Why a move took longer or shorter than KIP-73's question 1 estimates, in a sentence.

While a leader copies, its limit T counts what it sends to replicas that catch up (at the rate c)
and to in-sync ones (e). The lag falls at c - w, where w is what clients write to the moved
partitions. The estimate says T - IN, so that

    (c - w) - (T - IN) = (IN - w) - (T - c - e) - e

A difference has the largest of these three as its reason: clients wrote less to what moved than to
the busiest broker, the limit was not used up, or in-sync replicas took a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from insync.pipeline.words import duration, rate, size

SECOND_MS: Final = 1_000
TOLERANCE: Final = 0.1  # of the estimate; what the record resolves, a second, is always tolerated

AS_ESTIMATED: Final = "as estimated"
LEADERS_KNOW: Final = "not known here: only leaders record what is left to copy"
NOTHING: Final = "nothing was to be copied"


def explained(span: Mapping[str, Any], estimated_ms: int | None) -> str:
    """What to know of the estimated and the real time of one span."""
    has_copied = span["bytes"] > span["exempt_bytes"]
    if span["lag_bytes_first"] is None and (has_copied or span["held_back_s"]):
        return LEADERS_KNOW
    if not span["lag_bytes_first"]:
        return NOTHING
    left = ""
    if span["lag_bytes_last"]:
        when = "the record ended" if span["is_open"] else "the limit was changed or removed"
        left = f"{size(span['lag_bytes_last'])} left to copy when {when}"
    if span["real_ms"] is None:
        return left
    compared = _compared(span, estimated_ms)
    return f"{compared}; then more to copy: {left}" if left else compared


def _compared(span: Mapping[str, Any], estimated_ms: int | None) -> str:
    if estimated_ms is None:
        return f"finished, though the limit is not above inbound: {_reason(span, is_slower=False)}"
    difference_ms = span["real_ms"] - estimated_ms
    if abs(difference_ms) <= max(SECOND_MS, TOLERANCE * estimated_ms):
        return AS_ESTIMATED
    is_slower = difference_ms > 0
    longer = "longer" if is_slower else "shorter"
    return f"{duration(abs(difference_ms))} {longer}: {_reason(span, is_slower=is_slower)}"


def _reason(span: Mapping[str, Any], *, is_slower: bool) -> str:
    limit, inbound = span["limit_bytes_per_s"], span["bytes_in_per_s"] or 0
    seconds = max(span["real_ms"], SECOND_MS) / SECOND_MS
    exempt = span["copied_exempt_bytes"] / seconds
    copied = span["copied_bytes"] / seconds - exempt
    written = max(0.0, copied - span["lag_bytes_first"] / seconds)
    unused = limit - copied - exempt
    slows = {
        _unused(span, unused): unused,
        f"in-sync replicas took {rate(exempt)} of the limit": exempt,
        _written(written, inbound): written - inbound,
    }
    speeds = {
        _written(written, inbound): inbound - written,
        f"{rate(copied + exempt)} passed, more than the limit": -unused,
    }
    terms = slows if is_slower else speeds
    return max(terms, key=lambda words: terms[words])


def _unused(span: Mapping[str, Any], unused: float) -> str:
    slowed_by = (
        "a destination's throttle held replicas back"
        if span["destination_held_back_s"]
        else "the throttle did not hold replicas back"
        if not span["held_back_s"]
        else "the throttle held replicas back for only a part of the time"
    )
    return f"{rate(max(0.0, unused))} of the limit were not used, {slowed_by}"


def _written(written: float, inbound: int) -> str:
    return (
        f"clients wrote {rate(written)} to what moved, "
        f"where the estimate has {rate(inbound)}, of the busiest broker"
    )
