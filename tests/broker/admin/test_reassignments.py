"""Reassignments on real brokers on virtual time: begun, completed, cancelled, refused."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from insync.broker.admin.topics import RequestedTopic
from insync.broker.cluster_view import PROPAGATION_MAX_S
from insync.broker.fetch.fetch import Fetch
from insync.metadata import paths
from insync.metadata.records import TopicRecord, decode_config, encode_config
from insync.metadata.store import Write
from insync.rules.values import BrokerId
from insync.sim.checks import Monitor
from insync.sim.cluster import Cluster
from insync.wire import moves
from insync.wire.apis import Api
from insync.wire.moves import PRESERVE_THROTTLE, Move, MovesStarted
from support.sim.few_brokers import (
    KEY,
    ONE,
    PATH,
    THREE,
    TWO,
    client_of,
    isr_of,
    node_of,
    play,
    state_of,
    stays,
    topic,
    until,
    write_on,
)
from support.sim.reassignments import (
    NONE,
    RATES,
    alter,
    ask,
    config,
    leases,
    moved_to,
    start_moves,
    throttles,
)

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"


async def move(cluster: Cluster, *target: int) -> None:
    assert await alter(cluster, {KEY: target}) == {KEY: (NONE, None)}


async def listed(cluster: Cluster, topics: object = None) -> dict[tuple[str, int], Any]:
    answer = await ask(cluster, Api.LIST_PARTITION_REASSIGNMENTS, {"topics": topics}, of=2)
    return {
        (each.name, part.partition_index): (
            part.replicas,
            part.adding_replicas,
            part.removing_replicas,
        )
        for each in answer.topics
        for part in each.partitions
    }


def cut_from_leader(cluster: Cluster, number: int, leader: int = 1) -> None:
    """It is live and cannot fetch."""
    cluster.network.cut(number, leader)


# Moves.


def test_a_move_copies_hands_over_and_frees_the_old_files() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        client = client_of(cluster)
        await client.append([b"%d" % n for n in range(50)])
        await move(cluster, 3, 4)
        await until(lambda: moved_to(cluster, 3, 4))
        assert state_of(cluster)["leader"] == 3
        await until(lambda: isr_of(cluster) == [3, 4])
        await until(lambda: KEY not in node_of(cluster, 1).replicas.partitions)
        values, _ = await client_of(cluster, 102).read(0)
        assert values == [b"%d" % n for n in range(50)]

        def files(number: int) -> list[str]:
            disk = cluster.brokers[number].disk
            return [name for name in disk.list("/logs") if name.startswith("t-0")]

        await until(lambda: not files(1) and not files(2))
        assert files(3) == files(4) == ["t-0"]

    play(scenario, brokers=4)


def test_a_running_move_is_listed_as_kafka_lists_it() -> None:
    """[1,2,3] -> [4,2,3]: replicas are the target and then the removed."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 4)
        assert await listed(cluster) == {}
        await move(cluster, 4, 2, 3)
        assert await listed(cluster) == {KEY: ((4, 2, 3, 1), (4,), (1,))}
        named = [
            {"name": "t", "partition_indexes": (0, 9)},
            {"name": "?", "partition_indexes": (0,)},
        ]
        assert await listed(cluster, named) == {KEY: ((4, 2, 3, 1), (4,), (1,))}
        await stays(lambda: not moved_to(cluster, 4, 2, 3), for_s=3)
        cluster.network.heal()
        await until(lambda: moved_to(cluster, 4, 2, 3))
        await asyncio.sleep(PROPAGATION_MAX_S)
        assert await listed(cluster) == {}

    play(scenario, brokers=4)


def test_cancel_restores_the_original_replicas() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 4)
        await move(cluster, 4, 2, 3)
        assert await alter(cluster, {KEY: None}) == {KEY: (NONE, None)}
        await until(lambda: sorted(state_of(cluster)["replicas"]) == [1, 2, 3])
        assert not state_of(cluster)["adding"]
        ((code, _),) = (await alter(cluster, {KEY: None})).values()
        assert code is ErrorCode.no_reassignment_in_progress

    play(scenario, brokers=4)


def test_the_factor_grows_and_shrinks_and_new_partitions_follow_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        await client_of(cluster).append([b"x"])

        def factor() -> int:
            return TopicRecord.decode(
                cluster.tree.entries[paths.topic("t")].value
            ).replication_factor

        await move(cluster, 1, 2, 3)
        await until(lambda: moved_to(cluster, 1, 2, 3) and factor() == 3)
        await node_of(cluster, 2).topics.add_partitions("t", 2, None)
        assert len(node_of(cluster, 2).view.states["t", 1].replicas) == 3
        await move(cluster, 3)
        await until(lambda: moved_to(cluster, 3) and factor() == 1)
        assert state_of(cluster)["leader"] == 3
        await client_of(cluster).append([b"y"])

    play(scenario)


def test_an_increase_does_not_make_a_topic_unwritable() -> None:
    """min.insync.replicas=2 requires one of one replica, also while a second is being added."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,), config={"min.insync.replicas": "2"})
        cut_from_leader(cluster, 2)
        await move(cluster, 1, 2)
        async with asyncio.timeout(3):
            await client_of(cluster).append([b"x"])
        assert isr_of(cluster) == [1]
        cluster.network.heal()
        await until(lambda: moved_to(cluster, 1, 2))

    play(scenario)


def test_a_reordering_is_done_at_once_and_leadership_stays() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await move(cluster, 3, 2, 1)
        assert moved_to(cluster, 3, 2, 1)
        assert (state_of(cluster)["leader"], state_of(cluster)["leader_epoch"]) == (1, 0)

    play(scenario)


def test_kafka_19975_a_dead_replica_that_stays_does_not_block_a_move() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE), config={"min.insync.replicas": "2"})
        await client_of(cluster).append([b"x"])
        cluster.kill(3)
        await until(lambda: isr_of(cluster) == [1, 2])
        await move(cluster, 4, 2, 3)
        await until(lambda: moved_to(cluster, 4, 2, 3))
        assert isr_of(cluster) == [2, 4]

    play(scenario, brokers=4)


def test_a_move_waits_for_the_effective_min_isr_of_the_target() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE), config={"min.insync.replicas": "2"})
        await client_of(cluster).append([b"x"])
        cluster.kill(3)
        await until(lambda: isr_of(cluster) == [1, 2])
        await move(cluster, 4, 3)
        await until(lambda: isr_of(cluster) == [1, 2, 4])
        await stays(lambda: not moved_to(cluster, 4, 3), for_s=3)
        await cluster.start(3)
        await until(lambda: moved_to(cluster, 4, 3))

    play(scenario, brokers=4)


@pytest.mark.parametrize("number", [1, 2, 3, 4], ids=lambda n: f"broker {n}")
@pytest.mark.parametrize("stays_down", [False, True], ids=["returns", "stays down a while"])
def test_any_broker_may_die_mid_move_and_nothing_is_lost(
    number: int,
    stays_down: bool,  # noqa: FBT001
) -> None:
    """Broker 1 leads, is the controller and is removed; 3 and 4 are added; 2 stays."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO), config={"min.insync.replicas": "1"})
        client = client_of(cluster)
        await client.append([b"%d" % n for n in range(100)])
        writing = asyncio.get_running_loop().create_task(write_on(cluster))
        for other in (3, 4):
            cluster.network.slow(1, other, latency_s_max=0.2)
        await move(cluster, 3, 4)
        cluster.kill(number)
        await asyncio.sleep(2.0 if stays_down else 0.01)
        await cluster.start(number)
        await until(lambda: moved_to(cluster, 3, 4), within_s=30)
        await until(lambda: isr_of(cluster) == [3, 4], within_s=30)
        writing.cancel()
        values, _ = await client_of(cluster, 103).read(0)
        assert values[:100] == [b"%d" % n for n in range(100)]

    play(scenario, brokers=4)


@pytest.mark.parametrize("hook", ["before_controller_step", "after_controller_step"])
def test_a_controller_that_dies_at_the_completing_step_has_a_successor(hook: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        number = cluster.controller()
        assert number is not None
        store = cluster.brokers[number].store
        assert store is not None
        cut_from_leader(cluster, 4)
        await move(cluster, 2, 4)
        setattr(store, hook, lambda: cluster.kill_from_within(number))
        cluster.network.heal()
        await until(lambda: cluster.brokers[number].node is None)
        await until(lambda: moved_to(cluster, 2, 4), within_s=20)
        await asyncio.sleep(PROPAGATION_MAX_S)
        assert (await start_moves(cluster, Move("t", 0, (2, 3)), throttle=9, of=2)).error == 0
        await cluster.start(number)
        await until(lambda: moved_to(cluster, 2, 3), within_s=20)
        await until(lambda: not leases(cluster) and not throttles(cluster))

    play(scenario, brokers=4)


def test_a_move_is_replaced_by_another() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 3)
        await move(cluster, 3, 2)
        await move(cluster, 4, 2)
        await until(lambda: moved_to(cluster, 4, 2))
        assert KEY not in node_of(cluster, 3).replicas.partitions

    play(scenario, brokers=4)


def test_away_and_back_at_once_starts_from_nothing_and_loses_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        client = client_of(cluster)
        for turn in range(6):
            await client.append([b"%d" % turn])
            other = 3 if turn % 2 == 0 else 2
            await move(cluster, 1, other)
            await until(partial(moved_to, cluster, 1, other))
        assert isr_of(cluster) == [1, 2]
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] == 2)
        values, _ = await client_of(cluster, 104).read(0)
        assert values == [b"%d" % turn for turn in range(6)]

    play(scenario)


def test_a_fetch_sent_before_a_replica_was_removed_does_not_count_after_it_is_added_again() -> None:
    """A fetch is under way while its sender leaves, deletes its log and comes back, empty."""

    async def scenario(cluster: Cluster) -> None:
        monitor = Monitor(cluster, unclean=False)
        await topic(cluster, (ONE, TWO))
        client = client_of(cluster)
        for turn in range(12):
            cluster.network.quicken(1, 2)
            await client.append([b"%d" % turn])
            await until(lambda: isr_of(cluster) == [1, 2])
            await asyncio.sleep(0.3)
            cluster.network.slow(1, 2, latency_s_max=1.0)
            await client.append([b"and %d" % turn])
            await asyncio.sleep(0.02 * turn)
            await move(cluster, 1, 3)
            await until(lambda: moved_to(cluster, 1, 3))
            await until(lambda: KEY not in node_of(cluster, 2).replicas.partitions)
            await move(cluster, 1, 2)
            await until(lambda: moved_to(cluster, 1, 2), within_s=30)
            monitor.raise_failure()

    play(scenario, within_s=3000)


def test_a_topic_may_be_deleted_while_it_moves() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 3)
        assert (await start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000)).error == 0
        assert throttles(cluster)
        await node_of(cluster, 2).topics.delete("t")
        await until(lambda: not leases(cluster) and not throttles(cluster))
        assert PATH not in cluster.tree.entries

    play(scenario)


# Refusals.


@pytest.mark.parametrize(
    ("key", "target", "code", "says"),
    [
        (("?", 0), (1,), ErrorCode.unknown_topic_or_partition, "no topic '?'"),
        (("t", 7), (1,), ErrorCode.unknown_topic_or_partition, "0 to 0, not 7"),
        (("t", -1), (1,), ErrorCode.unknown_topic_or_partition, "not -1"),
        (KEY, (), ErrorCode.invalid_replica_assignment, "empty"),
        (KEY, (1, 1), ErrorCode.invalid_replica_assignment, "more than once"),
        (KEY, (1, 9), ErrorCode.invalid_replica_assignment, "broker 9 is not known"),
        (KEY, (-1,), ErrorCode.invalid_replica_assignment, "broker -1 is not known"),
        (KEY, tuple(range(1000)), ErrorCode.invalid_replica_assignment, "not known"),
        (KEY, None, ErrorCode.no_reassignment_in_progress, "no reassignment"),
        (("?", 0), None, ErrorCode.unknown_topic_or_partition, "no topic '?'"),
    ],
)
def test_an_invalid_reassignment_is_refused_and_changes_nothing(
    key: tuple[str, int], target: tuple[int, ...] | None, code: ErrorCode, says: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        before = cluster.tree.revision
        ((result, message),) = (await alter(cluster, {key: target})).values()
        assert result is code
        assert says in (message or "")
        if target != ():  # in StartMoves no replicas mean: cancel
            started = await start_moves(cluster, Move(*key, target or ()), throttle=1000)
            assert started.error == code.value
            assert says in (started.message or "")
        assert cluster.tree.revision == before

    play(scenario)


def test_a_refused_partition_does_not_keep_the_others_from_moving() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        results = await alter(cluster, {("?", 0): (1,), KEY: (2, 1, 3)})
        assert results["?", 0][0] is ErrorCode.unknown_topic_or_partition
        assert results[KEY] == (NONE, None)
        assert moved_to(cluster, 2, 1, 3)

    play(scenario)


def test_a_partition_named_twice_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        part = {"partition_index": 0, "replicas": (2, 1, 3)}
        for topics in (
            [{"name": "t", "partitions": [part, part]}],
            [{"name": "t", "partitions": [part]}, {"name": "t", "partitions": [part]}],
        ):
            answer = await ask(cluster, Api.ALTER_PARTITION_REASSIGNMENTS, {"topics": topics})
            codes = {p.error_code for t in answer.responses for p in t.partitions}
            assert codes == {ErrorCode.invalid_request}
        assert moved_to(cluster, 1, 2, 3)

    play(scenario)


def test_a_request_may_forbid_a_change_of_the_factor() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        results = await alter(cluster, {KEY: (1, 2)}, allow_replication_factor_change=False)
        assert results[KEY][0] is ErrorCode.invalid_replication_factor
        results = await alter(cluster, {KEY: (2, 1, 3)}, allow_replication_factor_change=False)
        assert results[KEY] == (NONE, None)

    play(scenario)


# StartMoves and leases.


def test_a_throttle_ends_with_its_move_and_earlier_values_are_restored() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO), config={LEADER_REPLICAS: "7:7"})
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 3)
        started = await start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000)
        assert started == MovesStarted(0, None, "0", (moves.MoveResult("t", 0),))
        rate = dict.fromkeys(RATES, "1000")
        assert throttles(cluster) == {
            "/config/topics/t": {LEADER_REPLICAS: "0:1,0:2,7:7", FOLLOWER_REPLICAS: "0:3"},
            **{f"/config/brokers/{number}": rate for number in (1, 2, 3)},
        }
        await stays(lambda: leases(cluster) == ["/admin/throttle_leases/0"], for_s=1)
        cluster.network.heal()
        await until(lambda: moved_to(cluster, 3, 2))
        await until(lambda: not leases(cluster))
        assert throttles(cluster) == {"/config/topics/t": {LEADER_REPLICAS: "7:7"}}

    play(scenario)


def test_many_moves_in_one_step_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits for all of them is woken once, not once per move."""
    checks: list[int] = []
    original = Fetch.find_replica

    def find_replica(self: Fetch, partition: Any) -> Any:
        checks.append(1)
        return original(self, partition)

    monkeypatch.setattr(Fetch, "find_replica", find_replica)
    count = 100

    async def scenario(cluster: Cluster) -> None:
        assignment = dict.fromkeys(range(count), (1, 2))
        await node_of(cluster, 1).topics.create(RequestedTopic(name="t", assignment=assignment))
        await asyncio.sleep(1)
        cluster.network.cut(1, 3)
        checks.clear()
        requested = [Move("t", number, (1, 2, 3)) for number in range(count)]
        assert (await start_moves(cluster, *requested)).error == 0
        assert count <= len(checks) <= 5 * count, "not the square of it"

    play(scenario)


def test_a_second_throttled_request_is_refused_unless_additional_which_extends_the_lease() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await node_of(cluster, 1).topics.add_partitions("t", 2, [(1, 2)])
        await client_of(cluster).append([b"x"])
        for number in (3, 4):
            cut_from_leader(cluster, number)
        first = await start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000)
        refused = await start_moves(cluster, Move("t", 1, (4, 2)), throttle=2000, of=2)
        assert refused.error == ErrorCode.reassignment_in_progress.value
        second = await start_moves(
            cluster, Move("t", 1, (4, 2)), throttle=2000, is_additional=True, of=2
        )
        assert (second.error, second.lease) == (0, first.lease)
        assert throttles(cluster)["/config/topics/t"] == {
            LEADER_REPLICAS: "0:1,0:2,1:1,1:2",
            FOLLOWER_REPLICAS: "0:3,1:4",
        }
        rates = {config(cluster, f"/config/brokers/{n}")[RATES[0]] for n in (1, 2, 3, 4)}
        assert rates == {"2000"}
        again = await start_moves(cluster, Move("t", 0, (3, 2)), throttle=7, is_additional=True)
        assert (again.error, again.lease) == (0, first.lease)
        assert config(cluster, "/config/brokers/4")[RATES[1]] == "7"
        cluster.network.mend(3, 1)
        await until(lambda: moved_to(cluster, 3, 2))
        await stays(lambda: bool(leases(cluster)), for_s=1)
        cluster.network.heal()
        await until(lambda: not leases(cluster))
        assert throttles(cluster) == {}

    play(scenario, brokers=4)


def test_a_request_repeated_after_a_lost_response_is_the_same_request() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await node_of(cluster, 1).topics.add_partitions("t", 2, [(1, 2)])
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 3)
        requested = Move("t", 0, (3, 2))
        first = await start_moves(cluster, requested, throttle=1000)
        before = throttles(cluster)
        assert await start_moves(cluster, requested, throttle=1000, of=2) == first
        assert (throttles(cluster), len(leases(cluster))) == (before, 1)
        others: list[tuple[tuple[Move, ...], int]] = [
            ((requested,), 2000),
            ((requested,), -1),
            ((requested, Move("t", 1, (3, 2))), 1000),
            ((Move("t", 0, (2, 3)),), 1000),
            ((Move("t", 1, (2, 1)),), 1000),
        ]
        for other_moves, throttle in others:
            refused = await start_moves(cluster, *other_moves, throttle=throttle, of=2)
            assert refused.error == ErrorCode.reassignment_in_progress.value
        assert throttles(cluster) == before
        cluster.network.heal()
        await until(lambda: not leases(cluster))
        assert throttles(cluster) == {}

    play(scenario)


@pytest.mark.parametrize("by", ["StartMoves", "AlterPartitionReassignments"])
def test_a_throttle_ends_with_a_cancelled_move(by: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 3)
        await start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000)
        if by == "StartMoves":
            assert (await start_moves(cluster, Move("t", 0))).error == 0
        else:
            assert await alter(cluster, {KEY: None}) == {KEY: (NONE, None)}
        await until(lambda: not leases(cluster))
        assert throttles(cluster) == {}
        assert sorted(state_of(cluster)["replicas"]) == [1, 2]

    play(scenario)


@pytest.mark.parametrize("requested", [(), (Move("t", 0),)])
def test_a_preserved_throttle_outlives_its_move(requested: tuple[Move, ...]) -> None:
    """Its lease is given up in the step that cancels, or while the move goes on."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 3)
        started = await start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000)
        set_now = throttles(cluster)
        preserved = await start_moves(cluster, *requested, throttle=PRESERVE_THROTTLE)
        assert (preserved.error, preserved.lease) == (0, started.lease)
        assert leases(cluster) == []
        cluster.network.heal()
        if not requested:
            await until(lambda: moved_to(cluster, 3, 2))
        assert sorted(state_of(cluster)["replicas"]) == ([1, 2] if requested else [2, 3])
        await stays(lambda: throttles(cluster) == set_now, for_s=5)
        again = await start_moves(cluster, throttle=PRESERVE_THROTTLE)
        assert (again.error, again.lease) == (0, None)

    play(scenario)


def test_values_that_an_operator_set_meanwhile_are_kept() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        cut_from_leader(cluster, 3)
        await start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000)
        store = node_of(cluster, 1).world.store
        entry = store.get(paths.broker_config(BrokerId(1)))
        assert entry is not None
        theirs = {**decode_config(entry.value), RATES[0]: "5"}
        await store.commit(Write(entry.path, encode_config(theirs), entry.version))
        cluster.network.heal()
        await until(lambda: not leases(cluster))
        assert throttles(cluster) == {"/config/brokers/1": {RATES[0]: "5"}}

    play(scenario)


def test_a_throttled_request_is_accepted_whole_or_not_at_all() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        before = cluster.tree.revision
        started = await start_moves(
            cluster, Move("t", 0, (3, 2)), Move("t", 1, (3,)), throttle=1000
        )
        assert [each.error for each in started.partitions] == [0, 3]
        assert started.error == ErrorCode.unknown_topic_or_partition.value
        assert cluster.tree.revision == before

    play(scenario)


@pytest.mark.parametrize(
    ("requested", "throttle", "says"),
    [
        ((), 1, "no partitions"),
        ((Move("t", 0, (2, 1, 3)),) * 2, 1, "named twice"),
        ((Move("t", 0, (2, 1, 3)),), 0, "0 B/s"),
        ((Move("t", 0, (2, 1, 3)),), -3, "-3 B/s"),
        ((Move("t", 0, (2, 1, 3)),), -2, "preserved when moves end"),
        (tuple(Move("t", n, (1,)) for n in range(5001)), 1, "at most 5000"),
    ],
)
def test_impossible_requests_are_refused(
    requested: tuple[Move, ...], throttle: int, says: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        before = cluster.tree.revision
        started = await start_moves(cluster, *requested, throttle=throttle)
        assert started.error == ErrorCode.invalid_request.value
        assert says in (started.message or "")
        assert cluster.tree.revision == before

    play(scenario)


def test_a_throttle_needs_no_lease_where_nothing_is_copied() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        started = await start_moves(cluster, Move("t", 0, (2, 1)), throttle=1000)
        assert started.lease is None
        await until(lambda: moved_to(cluster, 2, 1))
        assert throttles(cluster) == {}

    play(scenario)


def test_two_tools_at_once_one_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await node_of(cluster, 1).topics.add_partitions("t", 2, [(1, 2)])
        await client_of(cluster).append([b"x"])
        for number in (3, 4):
            cut_from_leader(cluster, number)
        started = await asyncio.gather(
            start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000, of=1),
            start_moves(cluster, Move("t", 1, (4, 2)), throttle=2000, of=2),
        )
        codes = sorted(each.error for each in started)
        assert codes == [0, ErrorCode.reassignment_in_progress.value]
        assert len(leases(cluster)) == 1

    play(scenario, brokers=4)


# Elections.


async def elect(
    cluster: Cluster, kind: int, *numbers: int, topic: str = "t", version: int = 2
) -> dict[int, ErrorCode]:
    requested = [{"topic": topic, "partitions": numbers}] if numbers else None
    values = {"election_type": kind, "topic_partitions": requested}
    answer = await ask(cluster, Api.ELECT_LEADERS, values, version=version, of=2)
    return {
        part.partition_id: part.error_code
        for each in answer.replica_election_results
        for part in each.partition_result
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_preferred_replica_leads_again_on_request(version: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        assert await elect(cluster, 0, 0, version=version) == {0: ErrorCode.election_not_needed}
        assert await elect(cluster, 0, version=version) == {}, "all, and none needs it"
        await move(cluster, 3, 1, 2)
        assert await elect(cluster, 0, 0, 9, version=version) == {
            0: NONE,
            9: ErrorCode.unknown_topic_or_partition,
        }
        assert (state_of(cluster)["leader"], state_of(cluster)["leader_epoch"]) == (3, 1)
        unknown = await elect(cluster, 0, 0, topic="?", version=version)
        assert unknown == {0: ErrorCode.unknown_topic_or_partition}
        await client_of(cluster).append([b"x"])

    play(scenario)


def test_a_preferred_replica_that_cannot_lead_is_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await move(cluster, 3, 1, 2)
        cluster.kill(3)
        await until(lambda: isr_of(cluster) == [1, 2])
        assert await elect(cluster, 0, 0) == {0: ErrorCode.preferred_leader_not_available}
        assert await elect(cluster, 0) == {0: ErrorCode.preferred_leader_not_available}

    play(scenario)


def test_an_unclean_election_on_request_and_only_without_a_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.cut(1, 2)
        await topic(cluster, (ONE, TWO), (ONE,))
        assert await elect(cluster, 1, 0) == {0: ErrorCode.election_not_needed}
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] is None)
        assert await elect(cluster, 1, 0) == {0: NONE}
        assert (state_of(cluster)["leader"], isr_of(cluster)) == (2, [2])

    play(scenario)


def test_no_replica_is_left_to_lead() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] is None)
        assert await elect(cluster, 1, 0) == {0: ErrorCode.eligible_leaders_not_available}
        answer = await ask(
            cluster,
            Api.ELECT_LEADERS,
            {"election_type": 7, "topic_partitions": None},
            version=2,
            of=2,
        )
        assert answer.error_code is ErrorCode.invalid_request

    play(scenario)


# What lies where.


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_describe_log_dirs(version: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x" * 1000])

        async def described(
            of: int, topics: object = None
        ) -> dict[tuple[str, int], tuple[int, int]]:
            answer = await ask(
                cluster, Api.DESCRIBE_LOG_DIRS, {"topics": topics}, version=version, of=of
            )
            (directory,) = answer.results
            assert (directory.error_code, directory.log_dir) == (NONE, "/logs")
            return {
                (each.name, part.partition_index): (part.partition_size, part.offset_lag)
                for each in directory.topics
                for part in each.partitions
            }

        size = node_of(cluster, 1).replicas.partitions[KEY].log.size_bytes
        assert size > 1000
        assert await described(1) == await described(2) == {KEY: (size, 0)}
        assert await described(3) == {}
        named = [{"topic": "t", "partitions": (0, 5)}, {"topic": "?", "partitions": (0,)}]
        assert await described(1, named) == {KEY: (size, 0)}
        assert await described(1, []) == {}

    play(scenario)


async def partitions(
    cluster: Cluster, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Any:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return await ask(
        cluster,
        Api.DESCRIBE_TOPIC_PARTITIONS,
        {
            "topics": [{"name": name} for name in names],
            "response_partition_limit": limit,
            "cursor": at,
        },
    )


@pytest.mark.parametrize("limit", [-5, 1, 2, 3, 4, 5, 2**31 - 1])
def test_pages_of_described_topics_cover_all_topics(limit: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await node_of(cluster, 1).topics.add_partitions("t", 3, None)
        await node_of(cluster, 1).topics.create(RequestedTopic(name="a", partitions=2))
        await asyncio.sleep(0.1)
        keys, cursor = [], None
        for _ in range(10):
            answer = await partitions(cluster, limit=limit, cursor=cursor)
            part = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
            assert len(part) <= max(1, limit)
            keys += part
            if answer.next_cursor is None:
                break
            cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        assert keys == [("a", 0), ("a", 1), ("t", 0), ("t", 1), ("t", 2)]

    play(scenario)


def test_unknown_topics_and_cursors() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)

        async def codes(*names: str, cursor: tuple[str, int] | None = None) -> list[ErrorCode]:
            answer = await partitions(cluster, *names, cursor=cursor)
            return [each.error_code for each in answer.topics]

        assert await codes("t", "?", "u") == [
            ErrorCode.invalid_topic_exception,
            NONE,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert await codes("t", cursor=("t", -1)) == [ErrorCode.invalid_request]
        assert await codes("t", cursor=("u", 0)) == [ErrorCode.invalid_request]
        assert await codes(cursor=("t", -1)) == [ErrorCode.invalid_request]
        assert await codes(cursor=("gone", 3)) == [NONE]
        (described,) = (await partitions(cluster, "t", cursor=("t", 99))).topics
        assert described.partitions == ()
        (described,) = (await partitions(cluster, "t")).topics
        (part,) = described.partitions
        assert (part.leader_id, part.replica_nodes, part.isr_nodes) == (1, (1, 2, 3), (1, 2, 3))

    play(scenario)
