"""Spans of throttled seconds from a list of rows, the slow and obvious way.

Written after the words of `tables.throttle`, with KIP-73's formulas spelled out once more.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

Row = dict[str, Any]

GAP_MS_MAX = 10_000
PATIENCE_MS = 30_000


def spans(rows: list[Row], *, network: int | None = None, factor: int = 3) -> list[Row]:
    result = []
    settled = settled_of(rows)
    leaders = [row for row in settled if row["side"] == "leader"]
    best_first = [highest_inbound(each) for each in (leaders, settled, rows)]
    destinations_hold_back = {
        row["at_ms"] // 1_000
        for row in rows
        if row["side"] == "follower" and row["held_back_partitions"] > 0
    }
    for broker, side in sorted({(row["broker"], row["side"]) for row in rows}):
        # A second that was published twice is one second.
        of_side = {
            row["at_ms"]: row for row in rows if (row["broker"], row["side"]) == (broker, side)
        }
        last_ms = max(of_side)
        seconds = [of_side[at_ms] for at_ms in sorted(of_side)]
        for own in in_a_row(seconds):
            summed = added_up(own, closing(own, seconds)) | {"broker": broker, "side": side}
            summed["is_open"] = own[-1]["at_ms"] == last_ms
            choices = [inbound(own, highest) for highest in best_first]
            inbound_rates = next((rates for rates in choices if rates), [])
            summed["bytes_in_per_s_max"] = max(inbound_rates, default=None)
            summed["bytes_in_per_s"] = (
                ceil(Fraction(sum(inbound_rates), len(inbound_rates))) if inbound_rates else None
            )
            copied_at_ms = summed.pop("copied_at_ms")
            summed["destination_held_back_s"] = sum(
                at_ms // 1_000 in destinations_hold_back for at_ms in copied_at_ms
            )
            result.append(summed | judged(summed, network, factor))
    return result


def in_a_row(seconds: list[Row]) -> list[list[Row]]:
    """Those with one limit, near enough to one another; none without a limit."""
    result: list[list[Row]] = []
    before: Row | None = None
    for row in seconds:
        limit = row["limit_bytes_per_s"]
        if limit is not None:
            goes_on = (
                before is not None
                and before["limit_bytes_per_s"] == limit
                and row["at_ms"] - before["at_ms"] <= GAP_MS_MAX
            )
            if not goes_on:
                result.append([])
            result[-1].append(row)
        before = row
    return result


def closing(own: list[Row], seconds: list[Row]) -> list[Row]:
    """The second after the span, if its limit went in it: it tells what was left."""
    after = [row for row in seconds if row["at_ms"] > own[-1]["at_ms"]][:1]
    return [
        row
        for row in after
        if row["limit_bytes_per_s"] is None and row["at_ms"] - own[-1]["at_ms"] <= GAP_MS_MAX
    ]


def highest_inbound(rows: list[Row]) -> dict[int, int]:
    """For each second of the clock what clients wrote to the broker that got most."""
    highest: dict[int, int] = {}
    for row in rows:
        second, rate = row["at_ms"] // 1_000, row["bytes_in"]
        if rate is not None:
            highest[second] = max(rate, highest.get(second, 0))
    return highest


def inbound(own: list[Row], highest: dict[int, int]) -> list[int]:
    """IN of each second of the span, where it is known."""
    seconds = [row["at_ms"] // 1_000 for row in own]
    return [highest[second] for second in seconds if second in highest]


def settled_of(rows: list[Row]) -> list[Row]:
    """Those whose broker had the same limit in the second before."""
    result = []
    ordered = sorted(rows, key=lambda row: (row["broker"], row["side"], row["at_ms"]))
    before: Row = {}
    for row in ordered:
        if (row["broker"], row["side"]) != (before.get("broker"), before.get("side")):
            before = {}
        if row["at_ms"] == before.get("at_ms"):
            continue
        limit = row["limit_bytes_per_s"]
        is_same = before and before["limit_bytes_per_s"] == limit
        if is_same and row["at_ms"] - before["at_ms"] <= GAP_MS_MAX:
            result.append(row)
        before = row
    return result


def added_up(own: list[Row], closing: list[Row]) -> Row:
    limit = own[0]["limit_bytes_per_s"]
    sent = sum(row["bytes"] for row in own)
    began_ms, last_ms = own[0]["at_ms"], own[-1]["at_ms"]
    known = [(row["at_ms"], row["replica_lag_bytes"]) for row in own + closing]
    known = [(at_ms, lag) for at_ms, lag in known if lag is not None]
    # What was to be copied is the first lag above 0: a leader may learn of it a second late.
    copies_ms = min((at_ms for at_ms, lag in known if lag > 0), default=began_ms)
    copying = [(at_ms, lag) for at_ms, lag in known if at_ms >= copies_ms]
    low, low_at_ms = min(((lag, at_ms) for at_ms, lag in copying), default=(None, None))
    done_ms = min((at_ms for at_ms, lag in copying if lag == 0), default=None)
    copied = [
        row for row in own + closing if done_ms is not None and copies_ms < row["at_ms"] <= done_ms
    ]
    return {
        "began_at_ms": began_ms,
        "ended_at_ms": last_ms + 1_000,
        "seconds": len(own),
        "limit_bytes_per_s": limit,
        "bytes": sent,
        "exempt_bytes": sum(row["exempt_bytes"] for row in own),
        "bytes_per_s_max": max(row["bytes"] for row in own),
        "use": sent / len(own) / limit if limit else None,
        "headroom_bytes_per_s": ceil(limit - Fraction(sent, len(own))),
        "held_back_s": sum(row["held_back_partitions"] > 0 for row in own),
        "held_back_partitions_max": max(row["held_back_partitions"] for row in own),
        "lag_bytes_first": copying[0][1] if copying else None,
        "lag_bytes_last": known[-1][1] if known else None,
        "lag_bytes_low": low,
        "lag_low_at_ms": low_at_ms,
        "real_ms": None if done_ms is None else done_ms - copies_ms,
        "copied_bytes": sum(row["bytes"] for row in copied),
        "copied_exempt_bytes": sum(row["exempt_bytes"] for row in copied),
        "copied_at_ms": [row["at_ms"] for row in copied],
    }


def judged(span: Row, network: int | None, factor: int) -> Row:
    limit, inbound_rate = span["limit_bytes_per_s"], span["bytes_in_per_s"]
    first, spare = span["lag_bytes_first"], limit - (inbound_rate or 0)
    below = (
        None
        if network is None or inbound_rate is None
        else network - Fraction(inbound_rate, factor)
    )
    if first is None:
        progress = None
    elif span["lag_bytes_last"] == 0:
        progress = "done"
    else:
        waited_ms = span["ended_at_ms"] - 1_000 - span["lag_low_at_ms"]
        progress = "stuck" if waited_ms >= PATIENCE_MS else "moving"
    if inbound_rate is None:
        verdict = "inbound-unknown"
    elif limit <= inbound_rate:
        verdict = "below-inbound" if progress == "done" else "cannot-finish"
    elif below is None:
        verdict = "above-inbound"
    else:
        verdict = "safe" if limit < below else "starves-clients"
    return {
        "estimated_ms": None
        if first is None or spare <= 0
        else ceil(Fraction(1_000 * first, spare)),
        "safe_above_bytes_per_s": inbound_rate,
        "safe_below_bytes_per_s": None if below is None else ceil(below),
        "verdict": verdict,
        "progress": progress,
    }
