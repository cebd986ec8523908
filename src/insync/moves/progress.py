"""Progress of moves, from successive samples of log sizes; without a clock or a cluster.

SumReplicaLag, in bytes, is what the destinations still lack. A destination whose log end offset is
the leader's lacks nothing, even if the sizes of the two logs differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from insync.rules.move_estimates import LagSample, Progress, progress
from insync.rules.move_plan import TopicPartition
from insync.rules.values import BrokerId

RATE_OVER_MS: Final = 10_000
SAMPLES_MAX: Final = 100_000
LONG_S: Final = 7 * 24 * 3_600

Copy = tuple[TopicPartition, BrokerId]  # one replica that a move creates


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySample:
    """One replica that a move creates; bytes are None if no broker reported them."""

    leader: BrokerId | None
    leader_bytes: int | None
    own_bytes: int | None
    is_caught_up: bool
    is_moving: bool

    @property
    def lag_bytes(self) -> int:
        if not self.is_moving or self.is_caught_up or self.leader_bytes is None:
            return 0
        # A log of the leader's size can still lack the last batches.
        return max(1, self.leader_bytes - (self.own_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    at_ms: int
    copies: Mapping[Copy, CopySample]
    limits_in: Mapping[BrokerId, int] = field(default_factory=dict)
    limits_out: Mapping[BrokerId, int] = field(default_factory=dict)
    silent: Mapping[BrokerId, str] = field(default_factory=dict)  # and why


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProgress:
    """What one destination has received, and what it lacks."""

    broker: BrokerId
    copies: int
    moving: int
    done_bytes: int
    left_bytes: int
    rate_bytes_per_s: int | None  # over the last seconds
    inbound_bytes_per_s: int | None  # what the leaders of its new replicas append meanwhile
    limit_bytes_per_s: int | None
    left_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    at_ms: int
    brokers: tuple[BrokerProgress, ...]
    silent: Mapping[BrokerId, str]
    stuck: str | None

    @property
    def moving(self) -> int:
        return sum(each.moving for each in self.brokers)

    @property
    def copies(self) -> int:
        return sum(each.copies for each in self.brokers)

    @property
    def done_bytes(self) -> int:
        return sum(each.done_bytes for each in self.brokers)

    @property
    def left_bytes(self) -> int:
        return sum(each.left_bytes for each in self.brokers)

    @property
    def rate_bytes_per_s(self) -> int | None:
        rates = [each.rate_bytes_per_s for each in self.brokers if each.rate_bytes_per_s]
        return sum(rates) if rates else None

    @property
    def left_ms(self) -> int | None:
        """Until the last destination is done; None if that is unknown for one of them."""
        waits = [each.left_ms for each in self.brokers if each.moving]
        return (
            max((each for each in waits if each is not None), default=0)
            if None not in waits
            else None
        )


class History:
    """Adds samples in time order, and computes the progress after each."""

    def __init__(self, *, stuck_after_ms: int) -> None:
        self._stuck_after_ms = stuck_after_ms
        self._recent: deque[Sample] = deque()
        self._lags: deque[LagSample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> MoveProgress:
        self._recent.append(sample)
        while len(self._recent) > 2 and self._recent[1].at_ms <= sample.at_ms - RATE_OVER_MS:  # noqa: PLR2004
            self._recent.popleft()
        lag_bytes = sum(each.lag_bytes for each in sample.copies.values())
        self._lags.append(LagSample(at_ms=sample.at_ms, lag_bytes=lag_bytes))
        destinations = sorted({broker for _, broker in sample.copies})
        brokers = tuple(self._broker_progress(broker) for broker in destinations)
        is_moving = any(each.is_moving for each in sample.copies.values())
        is_stuck = (
            is_moving and progress(self._lags, patience_ms=self._stuck_after_ms) is Progress.STUCK
        )
        return MoveProgress(
            at_ms=sample.at_ms,
            brokers=brokers,
            silent=sample.silent,
            stuck=self._reason(brokers) if is_stuck else None,
        )

    def _broker_progress(self, broker: BrokerId) -> BrokerProgress:
        first, last = self._recent[0], self._recent[-1]
        copies = [copy for copy in last.copies if copy[1] == broker]
        samples = [last.copies[copy] for copy in copies]
        left = sum(each.lag_bytes for each in samples)
        rate = _growth(first, last, copies, "own_bytes")
        moving = [copy for copy in copies if last.copies[copy].is_moving]
        inbound = _growth(first, last, moving, "leader_bytes")
        limit = last.limits_in.get(broker)
        return BrokerProgress(
            broker=broker,
            copies=len(copies),
            moving=len(moving),
            done_bytes=sum(each.own_bytes or 0 for each in samples),
            left_bytes=left,
            rate_bytes_per_s=rate,
            inbound_bytes_per_s=inbound,
            limit_bytes_per_s=limit,
            left_ms=_left_ms(left, rate, inbound),
        )

    def _reason(self, brokers: tuple[BrokerProgress, ...]) -> str:
        """Why the moves are stuck, and which number to change."""
        sample = self._recent[-1]
        behind = sorted(
            (each for each in brokers if each.left_bytes), key=lambda each: -each.left_bytes
        )
        for each in behind:
            if each.broker in sample.silent:
                return (
                    f"SumReplicaLag not falling: broker {each.broker} "
                    f"{sample.silent[each.broker]}; start it, or cancel the move"
                )
        for each in behind:
            inbound, limit = each.inbound_bytes_per_s or 0, each.limit_bytes_per_s
            if limit is not None and inbound >= limit:
                return throttle_too_low(each.broker, inbound=inbound, limit=limit)
        for broker, (inbound, left) in sorted(self._outbound().items()):
            limit = sample.limits_out.get(broker)
            if limit is not None and inbound >= limit:
                return throttle_too_low(broker, inbound=inbound, limit=limit)
            if limit is not None and left > limit * LONG_S:
                return takes_too_long(broker, left_bytes=left, limit=limit)
        for each in behind:
            limit = each.limit_bytes_per_s
            if limit is not None and each.left_bytes > limit * LONG_S:
                return takes_too_long(each.broker, left_bytes=each.left_bytes, limit=limit)
        names = ", ".join(str(each.broker) for each in behind)
        return (
            f"SumReplicaLag not falling on broker {names}: no throttle explains it; "
            "check that its leaders respond, and the broker's log"
        )

    def _outbound(self) -> dict[BrokerId, tuple[int, int]]:
        """For each leader: the rate its new replicas need to keep up, and the bytes they lack."""
        first, last = self._recent[0], self._recent[-1]
        outbound: dict[BrokerId, tuple[int, int]] = {}
        for copy, seen in last.copies.items():
            if seen.leader is not None and seen.is_moving:
                inbound = _growth(first, last, [copy], "leader_bytes") or 0
                before = outbound.get(seen.leader, (0, 0))
                outbound[seen.leader] = before[0] + inbound, before[1] + seen.lag_bytes
        return outbound


def throttle_too_low(broker: BrokerId, *, inbound: int, limit: int) -> str:
    return (
        f"SumReplicaLag not falling: inbound {rate_text(inbound)} exceeds the throttle of "
        f"{rate_text(limit)} on broker {broker}; raise it, for example with "
        f"--execute --additional --throttle {2 * inbound or 1}"
    )


def takes_too_long(broker: BrokerId, *, left_bytes: int, limit: int) -> str:
    day = -(-left_bytes // (24 * 3_600))
    return (
        f"SumReplicaLag not falling: {size_text(left_bytes)} are left for the throttle of "
        f"{rate_text(limit)} on broker {broker}; raise it, for example with "
        f"--execute --additional --throttle {max(day, 1)} to be done in a day"
    )


def _growth(first: Sample, last: Sample, copies: list[Copy], what: str) -> int | None:
    """Growth of these logs in bytes per second; logs unknown in either sample do not count."""
    elapsed_ms = last.at_ms - first.at_ms
    if elapsed_ms <= 0:
        return None
    grown = 0
    for copy in copies:
        before, now = first.copies.get(copy), last.copies[copy]
        size_before = getattr(before, what, None) or (0 if what == "own_bytes" else None)
        size_now = getattr(now, what)
        if size_before is not None and size_now is not None:
            grown += max(0, size_now - size_before)
    return grown * 1_000 // elapsed_ms


def _left_ms(left_bytes: int, rate: int | None, inbound: int | None) -> int | None:
    if not left_bytes:
        return 0
    closing = (rate or 0) - (inbound or 0)
    return left_bytes * 1_000 // closing if closing > 0 else None


def rate_text(bytes_per_s: int) -> str:
    return f"{size_text(bytes_per_s)}/s"


def size_text(size_bytes: int) -> str:
    """In decimal units, as is usual for rates and networks."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":  # noqa: PLR2004 - 999.5 rounds to 1000
            text = f"{size:.0f}" if unit == "B" or size >= 100 else f"{size:.1f}"  # noqa: PLR2004
            return f"{text.removesuffix('.0')} {unit}"
        size /= 1_000
    raise AssertionError("the last unit has no upper limit")
