"""How long a move takes, which throttle is safe, and whether it is stuck: KIP-73's questions 1-5.

Rates are bytes per second, sizes bytes; `Fraction`s keep the document's divisions exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from insync.rules.refusals import BadSetting

COPY_COST_BYTES: Final = 3_000_000
"""What brokers spend on a replica beside its bytes, in bytes that clients could have written.

A throttle bounds bytes. To create a replica, let it join the ISR, complete its move and delete the
former one takes 7 ms of CPU on three idle Insync brokers and up to 18 ms beside a producer at full
speed; 1 MB from that producer takes 6.5 ms (bench/RESULTS.md). No such figure is known of Apache
Kafka; the same one is used.
"""


def move_time_ms(
    *,
    move_ratio: Fraction,
    log_bytes_per_broker: int,
    brokers: int,
    quota_bytes_per_s: int,
    bytes_in_per_s_max: int,
) -> int | None:
    """Question 1's MoveTime, rounded up; None: it never ends, the quota does not exceed inbound.

    MoveTime = MoveRatio x TotalLogSizePerBroker x #Brokers / (quota - max(BytesInPerSec))
    """
    _check_rates(quota=quota_bytes_per_s, inbound=bytes_in_per_s_max)
    spare_bytes_per_s = quota_bytes_per_s - bytes_in_per_s_max
    if spare_bytes_per_s <= 0:
        return None
    to_move = move_ratio * log_bytes_per_broker * brokers
    return -(-(to_move * 1_000) // spare_bytes_per_s)


class ThrottleVerdict(Enum):
    CANNOT_FINISH = "not above the inbound rate: replicas fall behind as fast as they catch up"
    SAFE = "above the inbound rate, and leaves the network room for clients"
    STARVES_CLIENTS = "leaves too little of the network for inbound client traffic"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeRange:
    """Question 4: IN < T < N - IN/R, both bounds exclusive."""

    above_bytes_per_s: Fraction
    below_bytes_per_s: Fraction

    @property
    def is_empty(self) -> bool:
        """No throttle works: the network is too small for this inbound traffic and a move."""
        return self.lowest > self.highest

    @property
    def lowest(self) -> int:
        """The smallest whole rate inside."""
        return self.above_bytes_per_s // 1 + 1

    @property
    def highest(self) -> int:
        """The largest whole rate inside."""
        return -(-self.below_bytes_per_s // 1) - 1

    def verdict(self, throttle_bytes_per_s: int) -> ThrottleVerdict:
        if throttle_bytes_per_s <= self.above_bytes_per_s:
            return ThrottleVerdict.CANNOT_FINISH
        if throttle_bytes_per_s >= self.below_bytes_per_s:
            return ThrottleVerdict.STARVES_CLIENTS
        return ThrottleVerdict.SAFE


def safe_range(
    *, bytes_in_per_s: int, network_bytes_per_s: int, replication_factor: int
) -> SafeRange:
    _check_rates(inbound=bytes_in_per_s, network=network_bytes_per_s)
    if replication_factor < 1:
        raise BadSetting(
            f"a replication factor of {replication_factor} has no meaning; use 1 or more"
        )
    return SafeRange(
        above_bytes_per_s=Fraction(bytes_in_per_s),
        below_bytes_per_s=network_bytes_per_s - Fraction(bytes_in_per_s, replication_factor),
    )


def throttle_for_impact(
    *, network_bytes_per_s: int, max_impact: Fraction, bytes_to_copy: int, replicas_to_copy: int
) -> int:
    """The throttle with which copying takes at most this part of the network from clients.

    The moves then last as long as if each replica were `COPY_COST_BYTES` larger:
    T = impact x network x bytes / (bytes + replicas x cost). With nothing to copy a throttle slows
    nothing, and T is impact x network.
    """
    _check_rates(network=network_bytes_per_s)
    available_bytes_per_s = network_bytes_per_s * max_impact
    if bytes_to_copy:
        cost_bytes = bytes_to_copy + replicas_to_copy * COPY_COST_BYTES
        available_bytes_per_s *= Fraction(bytes_to_copy, cost_bytes)
    return max(1, int(available_bytes_per_s))


def response_bytes_limit(
    *, brokers: int, quota_bytes_per_s: int, network_bytes_per_s: int, window_s: int
) -> Fraction:
    """Question 5, in full: what `replica.fetch.response.max.bytes` must stay below.

    #brokers x response.max.bytes / min(quota x #brokers, network) < window
    """
    _check_rates(quota=quota_bytes_per_s, network=network_bytes_per_s)
    if brokers < 1:
        raise BadSetting(f"a cluster of {brokers} brokers has no meaning; use 1 or more")
    return Fraction(window_s * min(quota_bytes_per_s * brokers, network_bytes_per_s), brokers)


def response_bytes_limit_by_quota(*, quota_bytes_per_s: int, window_s: int) -> int:
    """Question 5, reduced: enough while the leaders' quotas together stay below the network."""
    _check_rates(quota=quota_bytes_per_s)
    return quota_bytes_per_s * window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """SumReplicaLag at a moment."""

    at_ms: int
    lag_bytes: int


class Progress(Enum):
    DONE = "nothing is left to copy"
    MOVING = "the lag falls"
    STUCK = "the lag has not reached a new low for too long: raise the throttle a little"


def progress(samples: Sequence[LagSample], *, patience_ms: int) -> Progress:
    """Question 1's advice: "if this stops reducing, before rebalancing completes".

    Judged by new lows, so that a lag that only swings up and down counts as stuck, while a short
    rise on the way down does not. Samples are in time order.
    """
    assert samples, "no samples, no verdict"
    latest = samples[-1]
    if latest.lag_bytes == 0:
        return Progress.DONE
    lowest = min(samples, key=lambda sample: (sample.lag_bytes, sample.at_ms))
    waited_ms = latest.at_ms - lowest.at_ms
    return Progress.STUCK if waited_ms >= patience_ms else Progress.MOVING


def _check_rates(**bytes_per_s: int) -> None:
    for what, rate in bytes_per_s.items():
        if rate < 0:
            raise BadSetting(f"the {what} rate is {rate} B/s; it must be 0 or more")
