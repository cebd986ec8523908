"""Estimates for a plan on a cluster: bytes, times, which throttle is safe, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from insync.client.admin import Admin
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.measure import Measured
from insync.moves.progress import rate_text
from insync.rules.move_estimates import (
    SafeRange,
    ThrottleVerdict,
    move_time_ms,
    response_bytes_limit,
    response_bytes_limit_by_quota,
    safe_range,
    throttle_for_impact,
)
from insync.rules.move_loads import BrokerLoad, loads, total_time_ms
from insync.rules.move_plan import Move, TopicPartition, brokers_involved, move_ratio
from insync.rules.refusals import Refusal
from insync.rules.throttle_settings import RATES
from insync.rules.values import BrokerId
from insync.wire.configs import Resource

RESPONSE_BYTES = "replica.fetch.response.max.bytes"
WINDOWS = "replication.quota.window.num"
WINDOW_S = "replication.quota.window.size.seconds"
CANNOT_FINISH = "cannot finish"
TIGHT = Fraction(5, 4)  # less than a quarter above inbound: a small rise stops the move


class UnsafeThrottle(Refusal):
    """A throttle outside the range that KIP-73 calls safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate:
    """What a plan means on a measured cluster, for any throttle."""

    ratio: Fraction
    partitions_to_move: int
    partitions_total: int
    replicas_to_copy: int
    loads: Mapping[BrokerId, BrokerLoad]
    log_bytes_per_broker: int
    brokers: int
    client_bytes_in_max: int
    inbound_bytes_per_s: int  # the document's IN, of what the throttle must carry
    inbound_at: BrokerId | None
    range: SafeRange  # of the moving partitions
    document_range: SafeRange  # KIP-73's, of all that comes in to the busiest broker involved

    @property
    def bytes_to_move(self) -> int:
        return sum(load.in_bytes for load in self.loads.values())

    def document_time_ms(self, quota_bytes_per_s: int) -> int | None:
        return move_time_ms(
            move_ratio=self.ratio,
            log_bytes_per_broker=self.log_bytes_per_broker,
            brokers=self.brokers,
            quota_bytes_per_s=quota_bytes_per_s,
            bytes_in_per_s_max=self.client_bytes_in_max,
        )

    def time_ms(self, quota_bytes_per_s: int) -> int | None:
        return total_time_ms(self.loads.values(), quota_bytes_per_s)

    def tighter_time_ms(self, quota_bytes_per_s: int) -> int | None:
        """The longer of both times: the moves take at least so long. None: they never end.

        The document's is left out where it is not known: it counts all that comes in to a broker.
        """
        if self.verdict(quota_bytes_per_s) == CANNOT_FINISH:
            return None
        times = (self.document_time_ms(quota_bytes_per_s), self.time_ms(quota_bytes_per_s))
        return max((time_ms for time_ms in times if time_ms is not None), default=None)

    def quota_to_finish(self, within_s: int) -> int:
        needed = max((load.quota_to_finish(within_s) for load in self.loads.values()), default=0)
        return max(needed, self.range.lowest)

    def quota_for_impact(self, max_impact: Fraction, *, network_bytes_per_s: int) -> int:
        return throttle_for_impact(
            network_bytes_per_s=network_bytes_per_s,
            max_impact=max_impact,
            bytes_to_copy=self.bytes_to_move,
            replicas_to_copy=self.replicas_to_copy,
        )

    def verdict(self, quota_bytes_per_s: int) -> str:
        match self.range.verdict(quota_bytes_per_s):
            case ThrottleVerdict.CANNOT_FINISH:
                return CANNOT_FINISH
            case ThrottleVerdict.STARVES_CLIENTS:
                return "starves clients"
            case ThrottleVerdict.SAFE if self.time_ms(quota_bytes_per_s) is None:
                return CANNOT_FINISH
            case ThrottleVerdict.SAFE:
                is_tight = quota_bytes_per_s < self.inbound_bytes_per_s * TIGHT
                verdict = "tight" if is_tight else "safe"
                if self.document_time_ms(quota_bytes_per_s) is None:
                    return f"{verdict} for what comes in for these partitions"
                return verdict


def estimate_plan(
    cluster: ClusterNow,
    moving: Mapping[TopicPartition, Move],
    measured: Measured,
    *,
    network_bytes_per_s: int | None,
) -> PlanEstimate:
    load_by_broker = loads(
        moving, leaders=measured.leaders, sizes=measured.sizes, rates=measured.rates
    )
    log_bytes = measured.log_bytes
    brokers = max(1, len(log_bytes))
    inbound = {broker: load.inbound_bytes_per_s for broker, load in load_by_broker.items()}
    busiest = max(sorted(inbound), key=lambda broker: inbound[broker], default=None)
    lowest = 0 if busiest is None else inbound[busiest]
    allowed = safe_range(
        bytes_in_per_s=max(
            (measured.all_bytes_in(broker, cluster) for broker in brokers_involved(moving)),
            default=0,
        ),
        network_bytes_per_s=network_bytes_per_s or throttles.UNLIMITED_BYTES_PER_S,
        replication_factor=max(
            (len(cluster.partitions[partition].replicas) for partition in moving), default=1
        ),
    )
    return PlanEstimate(
        ratio=move_ratio(partitions_to_move=len(moving), partitions_total=len(cluster.partitions)),
        partitions_to_move=len(moving),
        partitions_total=len(cluster.partitions),
        replicas_to_copy=sum(len(move.destinations) for move in moving.values()),
        loads=load_by_broker,
        log_bytes_per_broker=sum(log_bytes.values()) // brokers,
        brokers=brokers,
        client_bytes_in_max=max(map(measured.client_bytes_in, log_bytes), default=0),
        inbound_bytes_per_s=lowest,
        inbound_at=busiest,
        range=SafeRange(
            above_bytes_per_s=Fraction(lowest), below_bytes_per_s=allowed.below_bytes_per_s
        ),
        document_range=allowed,
    )


def check_safe(estimate: PlanEstimate, quota_bytes_per_s: int) -> None:
    """Refuse a quota that cannot work, in one line that says which would."""
    match estimate.range.verdict(quota_bytes_per_s):
        case ThrottleVerdict.CANNOT_FINISH:
            raise UnsafeThrottle(
                f"a throttle of {rate_text(quota_bytes_per_s)} cannot finish: inbound "
                f"{rate_text(estimate.inbound_bytes_per_s)} on broker {estimate.inbound_at} is not "
                f"below it; use at least {estimate.range.lowest}, or --force"
            )
        case ThrottleVerdict.STARVES_CLIENTS:
            raise UnsafeThrottle(
                f"a throttle of {rate_text(quota_bytes_per_s)} leaves clients too little of the "
                f"network; use at most {estimate.range.highest}, or --force"
            )
        case ThrottleVerdict.SAFE:
            pass


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """The settings of a broker that KIP-73's fifth question is about."""

    response_bytes_max: int
    window_s: int


async def fetch_settings(
    admin: Admin, brokers: Iterable[BrokerId]
) -> dict[BrokerId, FetchSettings]:
    settings = {}
    for broker in sorted(brokers):
        values = {
            each.name: int(each.value)
            for each in await admin.configs(Resource.BROKER, str(broker))
            if each.name in (RESPONSE_BYTES, WINDOWS, WINDOW_S) and each.value is not None
        }
        settings[broker] = FetchSettings(
            response_bytes_max=values.get(RESPONSE_BYTES, 10 * 1024 * 1024),
            window_s=values.get(WINDOWS, 11) * values.get(WINDOW_S, 1),
        )
    return settings


def response_warnings(
    settings: Mapping[BrokerId, FetchSettings],
    *,
    quota_bytes_per_s: int,
    network_bytes_per_s: int | None,
    brokers: int,
) -> list[str]:
    """Both forms of the constraint in KIP-73's fifth question."""
    violations: dict[tuple[int, int, int], list[BrokerId]] = {}
    for broker, each in sorted(settings.items()):
        limit = Fraction(
            response_bytes_limit_by_quota(
                quota_bytes_per_s=quota_bytes_per_s, window_s=each.window_s
            )
        )
        if network_bytes_per_s is not None:
            full = response_bytes_limit(
                brokers=brokers,
                quota_bytes_per_s=quota_bytes_per_s,
                network_bytes_per_s=network_bytes_per_s,
                window_s=each.window_s,
            )
            limit = min(limit, full)
        if each.response_bytes_max >= limit:
            key = each.response_bytes_max, each.window_s, -(-limit // 1)
            violations.setdefault(key, []).append(broker)
    return [
        f"{RESPONSE_BYTES} is {response_bytes} on broker {', '.join(map(str, ids))}: at "
        f"{quota_bytes_per_s} B/s the first responses take longer than the throttle's window of "
        f"{window_s} s; set it below {limit}"
        for (response_bytes, window_s, limit), ids in violations.items()
    ]


async def rate_warnings(admin: Admin, brokers: Iterable[BrokerId]) -> list[str]:
    """KIP-73's fourth question: unequal throttles can stop a move when leaders change."""
    limits = await throttles.limits_of(admin, brokers)
    warnings = []
    for key in RATES:
        rates = {broker: limits.get((broker, key)) for broker in sorted(brokers)}
        if len(set(rates.values())) > 1:
            values = ", ".join(
                f"{'none' if rate is None else rate} on broker {broker}"
                for broker, rate in rates.items()
            )
            warnings.append(f"{key} is not the same on all brokers involved: {values}")
    return warnings
