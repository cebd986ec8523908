"""What may change, with which throttle and when: clusters and hours that were made up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import pytest

from insync.pipeline.tables.balance_plan import (
    HOUR_COVERED_MS_MIN,
    HourRates,
    MovePlan,
    PlanOptions,
    changes_of,
    moving_of,
    plan_of,
)
from insync.pipeline.tables.inbound import HOUR_MS
from insync.pipeline.tables.recorded_cluster import RecordedCluster, RecordedPartition
from insync.rules.move_estimates import COPY_COST_BYTES
from insync.rules.move_plan import TopicPartition
from insync.rules.values import BrokerId, PartitionId

MB = 1_000_000
COVERED_MS = 10 * HOUR_MS


def partition(*replicas: int, rate: int = MB, size: int | None = 60 * MB, **more: Any) -> Any:
    ids = tuple(map(BrokerId, replicas))
    facts = {"replicas": ids, "leader": ids[0], "is_moving": False, "out_of_sync": ()}
    written = {"bytes_written": rate * COVERED_MS // 1_000, "size_bytes": size}
    return RecordedPartition(**facts | written | more)  # type: ignore[arg-type]


def cluster(
    partitions: Mapping[str, RecordedPartition],
    *,
    unfit: Iterable[int] = (),
    racks: Mapping[int, str] | None = None,
    unused: Iterable[int] = (),
) -> RecordedCluster:
    """Partitions by names like `orders-0`."""
    keys = {name: name.rpartition("-") for name in partitions}
    named = {
        (keys[name][0], PartitionId(int(keys[name][2]))): each for name, each in partitions.items()
    }
    return RecordedCluster(
        partitions=named,
        unfit={BrokerId(broker): "silent" for broker in unfit},
        racks={BrokerId(broker): rack for broker, rack in (racks or {}).items()},
        brokers=sorted({each for one in named.values() for each in one.replicas}),
        unused=list(map(BrokerId, unused)),
    )


def hours(
    of: RecordedCluster, rates: Mapping[int, int], *, covered_ms: int = HOUR_MS
) -> list[HourRates]:
    """In each of these hours every partition is written to at this rate."""
    return [
        HourRates(
            at_ms=1_700_006_400_000 + hour * HOUR_MS,
            covered_ms=covered_ms,
            moving=dict.fromkeys(of.partitions, rate),
            clients={
                broker: rate * sum(each.leader == broker for each in of.partitions.values())
                for broker in of.brokers
            },
            received={
                broker: rate * sum(broker in each.replicas for each in of.partitions.values())
                for broker in of.brokers
            },
        )
        for hour, rate in rates.items()
    ]


def planned(
    of: RecordedCluster, rates: Mapping[int, int] | None = None, **options: Any
) -> MovePlan:
    covered_ms = options.pop("covered_ms", HOUR_MS)
    given = PlanOptions(**options)
    balance = changes_of(of, given, COVERED_MS)
    return plan_of(of, balance, hours(of, rates or {3: MB}, covered_ms=covered_ms), given)


UNEVEN = {f"orders-{number}": partition(1) for number in range(4)} | {
    "small-0": partition(2, rate=1)
}


def test_a_replica_of_a_busy_broker_moves() -> None:
    plan = planned(cluster(UNEVEN))
    assert plan.verdict == "move"
    assert set(plan.replicas.values()) == {(2,)}
    assert len(plan.replicas) == 2
    assert all(before == (1,) for before in plan.before.values())
    assert plan.before.keys() == plan.replicas.keys()


@pytest.mark.parametrize(
    "more", [{"is_moving": True}, {"out_of_sync": (BrokerId(1),)}], ids=["moving", "out of sync"]
)
def test_what_moves_already_or_is_behind_stays(more: dict[str, Any]) -> None:
    fixed = {f"orders-{number}": partition(1, **more) for number in range(4)}
    plan = planned(cluster(UNEVEN | fixed))
    assert plan.verdict == "no-gain"
    assert not plan.replicas


def test_internal_topics_stay() -> None:
    internal = {f"__offsets-{number}": partition(1) for number in range(4)}
    plan = planned(cluster({"small-0": partition(2, rate=1)} | internal))
    assert not plan.replicas
    assert "no change" in plan.reason


def test_nothing_moves_onto_an_unfit_broker() -> None:
    three = UNEVEN | {"other-0": partition(3, rate=1)}
    plan = planned(cluster(three, unfit=[2]))
    assert set(plan.replicas.values()) == {(3,)}
    assert any("Broker 2 gets no replicas: silent." in each for each in plan.statements)
    alone = planned(cluster(three, unfit=[2, 3]))
    assert (alone.verdict, alone.balance) == ("no-choice", None)
    assert alone.reason == "1 broker could take replicas, and a balance needs two"
    assert alone.hours, "rates and safe throttles are known all the same"


def test_one_broker_has_no_choice() -> None:
    assert planned(cluster({"orders-0": partition(1)})).verdict == "no-choice"


def test_racks_are_kept() -> None:
    racks = {1: "a", 2: "b", 3: "b"}
    busy = {f"orders-{number}": partition(1, 2) for number in range(6)}
    plan = planned(cluster(busy | {"small-0": partition(3, 1, rate=1)}, racks=racks))
    assert plan.replicas
    for replicas in plan.replicas.values():
        assert {racks[broker] for broker in replicas} == {"a", "b"}


def test_balanced_brokers_move_nothing() -> None:
    even = {f"orders-{number}": partition(1 + number % 3) for number in range(9)}
    plan = planned(cluster(even))
    assert (plan.verdict, plan.reason) == ("balanced", "already balanced within 10 %")
    # Nothing to copy: the bounds are of any move, by the busiest broker.
    assert plan.hours[0].throttle_min == 3 * MB + 1


def test_no_load_moves_nothing() -> None:
    idle = {f"orders-{number}": partition(1 + number % 2, rate=0, size=None) for number in range(4)}
    plan = planned(cluster(idle), {3: 0})
    assert plan.verdict == "balanced"
    assert any("Taken as empty: 4 partitions without appends." in each for each in plan.statements)


def test_the_best_hour_has_the_least_to_carry() -> None:
    plan = planned(cluster(UNEVEN), {1: 3 * MB, 5: MB, 9: 2 * MB})
    assert plan.best_hour == 5
    # Two partitions move from broker 1, each to one destination: 2 MB/s beside the copies of
    # 120 MB, which take an hour at 33 kB/s; a quarter above 2 MB/s is more.
    assert plan.throttle_bytes_per_s == 2.5 * MB
    (worst,) = (each for each in plan.hours if each.hour == 1)
    assert worst.throttle_min == 6 * MB + 1


def test_an_hour_of_the_day_is_as_its_worst_day() -> None:
    of = cluster(UNEVEN)
    balance = changes_of(of, PlanOptions(), COVERED_MS)
    days = hours(of, {5: MB, 29: 4 * MB, 6: 2 * MB})
    plan = plan_of(of, balance, days, PlanOptions())
    assert [each.hour for each in plan.hours] == [5, 6]
    assert plan.hours[0].throttle_min == 8 * MB + 1
    assert plan.hours[0].covered_ms == 2 * HOUR_MS
    assert plan.best_hour == 6


def test_copies_of_several_hours_need_as_many_quiet_hours() -> None:
    """20 GB at 4 MB/s, less 2 MB/s that come in, take 2.8 h: hour 1 is quiet, but 2 is not."""
    large = {name: partition(*each.replicas, size=10_000 * MB) for name, each in UNEVEN.items()}
    quiet = {1: MB // 2, 2: 9 * MB, 10: MB, 11: MB, 12: MB, 13: 9 * MB}
    of = cluster(large | {"small-0": partition(2, rate=1, size=0)})
    limits: dict[str, Any] = {"network_bytes_per_s": 100 * MB, "max_impact": Fraction(4, 100)}
    plan = planned(of, quiet, **limits)
    assert plan.best_hour == 10
    assert plan.worst is not None
    assert plan.throttle_bytes_per_s is not None
    assert 2 * HOUR_MS < (plan.worst.estimate.time_ms(plan.throttle_bytes_per_s) or 0) < 3 * HOUR_MS
    assert planned(of, {1: MB, 2: MB}, **limits).best_hour is None, "no three hours are recorded"


def test_hours_of_which_little_was_recorded_are_not_chosen() -> None:
    plan = planned(cluster(UNEVEN), {1: MB, 2: MB}, covered_ms=HOUR_COVERED_MS_MIN - 1)
    assert plan.best_hour is None
    assert plan.throttle_bytes_per_s == 2.5 * MB
    assert "were recorded, of 2 hours of the day (1-2 UTC)" in plan.statements[0]


def test_a_throttle_stays_below_what_the_network_and_the_impact_leave() -> None:
    plan = planned(cluster(UNEVEN), network_bytes_per_s=7 * MB)
    # N - IN/R: broker 1 receives 4 MB/s, of topics with one replica.
    assert plan.hours[0].throttle_max == 3 * MB - 1
    tight = planned(cluster(UNEVEN), network_bytes_per_s=6 * MB + 3)
    assert (tight.verdict, tight.throttle_bytes_per_s) == ("move", 2 * MB + 2)
    starved = planned(cluster(UNEVEN), network_bytes_per_s=6 * MB)
    assert (starved.verdict, dict(starved.replicas)) == ("unsafe", {})
    assert "2 MB/s comes in for what would move" in starved.reason
    # A tenth of 100 MB/s, less the work for each of two copies of 60 MB.
    small = planned(cluster(UNEVEN), network_bytes_per_s=100 * MB, max_impact=Fraction(1, 10))
    copied = 120 * MB
    assert small.hours[0].throttle_max == 10 * MB * copied // (copied + 2 * COPY_COST_BYTES)


def test_a_short_time_to_finish_takes_a_higher_throttle() -> None:
    plan = planned(cluster(UNEVEN), finish_in_s=60)
    # Broker 1 sends 120 MB in 60 s, beside 2 MB/s.
    assert plan.throttle_bytes_per_s == 4 * MB


def test_at_most_so_many_partitions_change() -> None:
    assert len(planned(cluster(UNEVEN), max_moves=1).replicas) == 1


def test_a_broker_without_replicas_is_named() -> None:
    plan = planned(cluster(UNEVEN, unused=[7]))
    assert any(each.endswith("whether they run: broker 7.") for each in plan.statements)


def test_5000_partitions_are_planned_in_seconds() -> None:
    many: dict[str, RecordedPartition] = {}
    for number in range(5_000):
        replicas = (1, 2, 3) if number % 2 else (4 + number % 7, 1 + number % 3, 11)
        many[f"orders-{number}"] = partition(*replicas, rate=1 + number % 97)
    of = cluster(many)
    began = time.process_time()
    balance = changes_of(of, PlanOptions(max_moves=50), COVERED_MS)
    took_s = time.process_time() - began
    assert balance is not None
    assert len(balance.changes) == 50
    moving: Mapping[TopicPartition, Any] = moving_of(of, balance)
    assert moving.keys() <= balance.changes.keys()
    assert took_s < 60
