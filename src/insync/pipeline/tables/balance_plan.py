"""What to move, with which throttle and in which hour: a pure function of what was recorded.

`rules.load_balance` chooses the changes; here is which partitions may change, and KIP-73's
estimates for each hour of the record. An hour of the day is as its worst day was. Sizes are those
of `recorded_cluster`, estimated from the record.

- **Fixed** are partitions of internal topics, those that a reassignment moves already, and those
  with a replica out of sync.
- **A throttle is safe** in an hour if it is above what comes in for the partitions that move
  (question 4's IN < T), and at most what the network leaves to clients (T < N - IN/R, by all that
  the busiest broker of the plan takes in) and what `max_impact` allows. Where nothing is copied,
  IN is what clients write to the busiest broker: the bound of any move.
- **The throttle** is the least with which the copies end within `finish_in_s`, a quarter above IN
  or more.
- **The best hour** to begin has, over the hours that the copies take (by what each broker sends and
  receives), the lowest of the highest IN.
  Hours of which less than `HOUR_COVERED_MS_MIN` was recorded are not chosen; one hour is no choice.
- **MoveRatio and MoveTime** are KIP-73's: partitions whose data moves over all partitions, and
  MoveRatio x log size per broker x brokers / (T - the busiest broker's bytes in). The time by what
  each broker of the plan has to send and receive is given beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from insync.moves.planning import TIGHT, PlanEstimate
from insync.moves.throttle import UNLIMITED_BYTES_PER_S
from insync.pipeline.tables.inbound import HOUR_MS, HOURS_OF_DAY
from insync.pipeline.tables.recorded_cluster import RecordedCluster
from insync.pipeline.words import count, duration, percent, ranges_text, rate
from insync.rules.load_balance import TOLERANCE, Balanced, Placement, even_out, excess, is_balanced
from insync.rules.move_estimates import SafeRange, safe_range
from insync.rules.move_loads import loads
from insync.rules.move_plan import Assignment, Move, TopicPartition, brokers_involved, move_ratio
from insync.rules.move_plan import moves as moving_by
from insync.rules.values import BrokerId

MAX_MOVES: Final = 20
FINISH_IN_S: Final = 3_600
HOUR_COVERED_MS_MIN: Final = 600_000
DAY_MS: Final = HOURS_OF_DAY * HOUR_MS
INTERNAL: Final = "__"

BALANCED, MOVE, NO_GAIN, NO_CHOICE, UNSAFE = (
    "balanced",
    "move",
    "no-gain",
    "no-choice",
    "unsafe",
)
Rates = Mapping[BrokerId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    max_moves: int = MAX_MOVES
    network_bytes_per_s: int | None = None
    max_impact: Fraction | None = None
    finish_in_s: int = FINISH_IN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HourRates:
    """Bytes per second in one hour of the record."""

    at_ms: int
    covered_ms: int
    moving: Mapping[TopicPartition, int]
    clients: Rates  # to each leader
    received: Rates  # as leader and as follower

    @property
    def hour(self) -> int:
        return self.at_ms // HOUR_MS % HOURS_OF_DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class HourEstimate:
    """An hour of the day, as its worst day was."""

    hour: int
    covered_ms: int  # of all days
    estimate: PlanEstimate
    throttle_min: int
    throttle_max: int | None  # None: the network is not known

    @property
    def is_safe(self) -> bool:
        return self.throttle_max is None or self.throttle_min <= self.throttle_max


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    verdict: str
    reason: str
    statements: Sequence[str]
    balance: Balanced | None
    replicas: Mapping[TopicPartition, tuple[BrokerId, ...]] = field(default_factory=dict)
    before: Mapping[TopicPartition, tuple[BrokerId, ...]] = field(default_factory=dict)
    hours: Sequence[HourEstimate] = ()
    worst: HourEstimate | None = None  # of the hours that the copies take
    best_hour: int | None = None
    throttle_bytes_per_s: int | None = None


def changes_of(cluster: RecordedCluster, options: PlanOptions, covered_ms: int) -> Balanced | None:
    """The changes that even out the fit brokers; None if there are fewer than two."""
    fit = [broker for broker in cluster.brokers if broker not in cluster.unfit]
    if len(fit) < 2:  # noqa: PLR2004 - one has no other
        return None
    partitions = cluster.partitions
    placement = Placement(
        replicas={key: each.replicas for key, each in partitions.items()},
        rates={
            key: -(-each.bytes_written * 1_000 // max(1, covered_ms))
            for key, each in partitions.items()
        },
        sizes={key: each.size_bytes or 0 for key, each in partitions.items()},
        brokers=fit,
        racks=cluster.racks,
        fixed={
            key
            for key, each in partitions.items()
            if key[0].startswith(INTERNAL) or each.is_moving or each.out_of_sync
        },
    )
    return even_out(placement, changes_max=options.max_moves)


def moving_of(cluster: RecordedCluster, balance: Balanced | None) -> dict[TopicPartition, Move]:
    """The changes that copy data."""
    if balance is None or not balance.changes:
        return {}
    current = {
        key: Assignment(replicas=cluster.partitions[key].replicas) for key in balance.changes
    }
    return moving_by(current, balance.changes, known=frozenset(cluster.brokers))


def plan_of(
    cluster: RecordedCluster,
    balance: Balanced | None,
    rates: Sequence[HourRates],
    options: PlanOptions,
) -> MovePlan:
    moving = moving_of(cluster, balance)
    hours = _hours_of_day(cluster, moving, rates, options)
    statements = [*_record_statements(rates, hours), *_broker_statements(cluster)]
    if balance is None:
        fit = len([broker for broker in cluster.brokers if broker not in cluster.unfit])
        reason = f"{count(fit, 'broker')} could take replicas, and a balance needs two"
        return MovePlan(
            verdict=NO_CHOICE, reason=reason, statements=statements, balance=None, hours=hours
        )
    if not balance.changes:
        return MovePlan(
            verdict=NO_GAIN if _uneven(balance) else BALANCED,
            reason=_no_change_reason(balance),
            statements=statements,
            balance=balance,
            hours=hours,
        )
    before = {key: cluster.partitions[key].replicas for key in balance.changes}
    plan = MovePlan(
        verdict=MOVE,
        reason=_gain_reason(balance),
        statements=statements,
        balance=balance,
        replicas=balance.changes,
        before=before,
        hours=hours,
    )
    return _with_throttle(plan, options) if moving else plan


def _with_throttle(plan: MovePlan, options: PlanOptions) -> MovePlan:
    """The throttle, and the hour to begin; or why no throttle is safe."""
    safe = [each for each in plan.hours if each.is_safe]
    if not safe:
        best = min(plan.hours, key=lambda each: each.throttle_min)
        reason = (
            "no throttle is safe in a recorded hour: in the best, "
            f"{rate(best.throttle_min - 1)} comes in for what would move, and clients and "
            f"--max-impact leave {rate(max(0, best.throttle_max or 0))}"
        )
        return replace(plan, verdict=UNSAFE, reason=reason, replicas={}, before={})
    for length in range(1, HOURS_OF_DAY):
        window = _best_window(safe, length)
        if window is None:
            break
        begins, worst = window
        quota = _throttle(worst, options)
        time_ms = worst.estimate.time_ms(quota)
        if time_ms is not None and time_ms <= length * HOUR_MS:
            return replace(plan, best_hour=begins, worst=worst, throttle_bytes_per_s=quota)
    worst = max(safe, key=lambda each: each.throttle_min)
    return replace(plan, worst=worst, throttle_bytes_per_s=_throttle(worst, options))


def _best_window(hours: Sequence[HourEstimate], length: int) -> tuple[int, HourEstimate] | None:
    """The hour to begin, and the worst of so many hours from it on; None without a choice."""
    known = {each.hour: each for each in hours if each.covered_ms >= HOUR_COVERED_MS_MIN}
    windows = []
    for begins in known:
        window = [known.get((begins + more) % HOURS_OF_DAY) for more in range(length)]
        recorded = [each for each in window if each is not None]
        if len(recorded) == length:
            worst = max(recorded, key=lambda each: (each.throttle_min, _clients(each)))
            windows.append((worst.throttle_min, _clients(worst), begins, worst))
    if len(known) <= 1 or not windows:
        return None
    _, _, begins, worst = min(windows, key=lambda each: each[:3])
    return begins, worst


def _clients(hour: HourEstimate) -> int:
    return hour.estimate.client_bytes_in_max


def _throttle(hour: HourEstimate, options: PlanOptions) -> int:
    estimate = hour.estimate
    roomy = -(-estimate.inbound_bytes_per_s * TIGHT // 1)
    wanted = max(estimate.quota_to_finish(options.finish_in_s), roomy, hour.throttle_min)
    return wanted if hour.throttle_max is None else min(wanted, hour.throttle_max)


# Estimates by hour.


def _hours_of_day(
    cluster: RecordedCluster,
    moving: Mapping[TopicPartition, Move],
    rates: Sequence[HourRates],
    options: PlanOptions,
) -> list[HourEstimate]:
    by_hour: dict[int, list[HourEstimate]] = {}
    log_bytes = cluster.log_bytes_per_broker()
    for each in rates:
        estimate = _estimate(cluster, moving, each, options.network_bytes_per_s, log_bytes)
        by_hour.setdefault(each.hour, []).append(_hour(estimate, each, options))
    return [
        replace(
            max(days, key=lambda day: (day.throttle_min, _clients(day))),
            covered_ms=sum(day.covered_ms for day in days),
        )
        for _, days in sorted(by_hour.items())
    ]


def _hour(estimate: PlanEstimate, rates: HourRates, options: PlanOptions) -> HourEstimate:
    highest = None
    if options.network_bytes_per_s is not None:
        highest = estimate.range.highest
        if options.max_impact is not None:
            allowed = estimate.quota_for_impact(
                options.max_impact, network_bytes_per_s=options.network_bytes_per_s
            )
            highest = min(highest, allowed)
    return HourEstimate(
        hour=rates.hour,
        covered_ms=rates.covered_ms,
        estimate=estimate,
        throttle_min=estimate.range.lowest,
        throttle_max=highest,
    )


def _estimate(
    cluster: RecordedCluster,
    moving: Mapping[TopicPartition, Move],
    rates: HourRates,
    network_bytes_per_s: int | None,
    log_bytes_per_broker: int,
) -> PlanEstimate:
    """As `moves.planning` makes it of a running cluster."""
    partitions, brokers = cluster.partitions, cluster.brokers
    replication_factor = max(
        (len(partitions[key].replicas) for key in moving), default=cluster.replication_factor_max
    )
    by_broker = loads(
        moving,
        leaders={key: partitions[key].leader for key in moving},
        sizes={key: partitions[key].size_bytes or 0 for key in moving},
        rates=rates.moving,
    )
    inbound = {broker: load.inbound_bytes_per_s for broker, load in by_broker.items()}
    clients = {broker: rates.clients.get(broker, 0) for broker in brokers}
    # Where nothing is copied, the bounds are those of any move.
    above = inbound or clients
    busiest = max(sorted(above), key=lambda broker: above[broker])
    involved = brokers_involved(moving) or frozenset(brokers)
    document_range = safe_range(
        bytes_in_per_s=max(rates.received.get(broker, 0) for broker in involved),
        network_bytes_per_s=network_bytes_per_s or UNLIMITED_BYTES_PER_S,
        replication_factor=replication_factor,
    )
    return PlanEstimate(
        ratio=move_ratio(partitions_to_move=len(moving), partitions_total=len(partitions)),
        partitions_to_move=len(moving),
        partitions_total=len(partitions),
        replicas_to_copy=sum(len(move.destinations) for move in moving.values()),
        loads=by_broker,
        log_bytes_per_broker=log_bytes_per_broker,
        brokers=len(brokers),
        client_bytes_in_max=max(clients.values()),
        inbound_bytes_per_s=above[busiest],
        inbound_at=busiest,
        range=SafeRange(
            above_bytes_per_s=Fraction(above[busiest]),
            below_bytes_per_s=document_range.below_bytes_per_s,
        ),
        document_range=document_range,
    )


# Words.


def _uneven(balance: Balanced) -> list[str]:
    return [name for name, load in balance.before.items() if not is_balanced(name, load)]


def _no_change_reason(balance: Balanced) -> str:
    names = _uneven(balance)
    if not names:
        return f"already balanced within {percent(float(TOLERANCE))}"
    uneven = ", ".join(f"{name} {_above(balance.before[name])}" for name in names)
    why = "gains too little" if balance.is_too_little else "helps"
    return f"{uneven}; {'a change' if balance.is_too_little else 'no change'} that is allowed {why}"


def _gain_reason(balance: Balanced) -> str:
    return ", ".join(
        f"{name} from {_above(balance.before[name])} to {_above(balance.after[name])}"
        for name in _uneven(balance)
    )


def _above(load: Mapping[BrokerId, int]) -> str:
    return f"{percent(float(excess(load)))} above the mean"


def _record_statements(rates: Sequence[HourRates], hours: Sequence[HourEstimate]) -> list[str]:
    covered_ms = sum(each.covered_ms for each in rates)
    if len(hours) == HOURS_OF_DAY and covered_ms >= DAY_MS:
        return [f"{duration(covered_ms)} were recorded, of every hour of the day."]
    names = ranges_text([each.hour for each in hours], 60)
    covered = f"{duration(covered_ms)} were recorded, of {count(len(hours), 'hour')} of the day"
    unknown = "What other hours bring is not known: record a day before a large move."
    return [f"{covered} ({names} UTC). {unknown}"]


def _broker_statements(cluster: RecordedCluster) -> list[str]:
    statements = [
        f"Broker {broker} gets no replicas: {why}." for broker, why in sorted(cluster.unfit.items())
    ]
    if cluster.unused:
        names = ", ".join(map(str, cluster.unused))
        statements.append(
            f"Not considered, because they have no replicas and the record does not say whether "
            f"they run: broker {names}."
        )
    unknown = sum(each.size_bytes is None for each in cluster.partitions.values())
    statements.append(
        "Log sizes are estimated from recorded offsets and bytes; `insync reassign --plan` "
        "measures them."
        + (f" Taken as empty: {count(unknown, 'partition')} without appends." if unknown else "")
    )
    return statements
