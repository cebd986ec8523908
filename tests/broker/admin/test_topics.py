"""Topics as steps of the store: a refusal changes nothing; one of two concurrent changes wins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from insync.broker.admin.topics import PARTITIONS_MAX, RequestedTopic, TopicRefused, Topics
from insync.broker.cluster_view import ClusterView
from insync.broker.settings import Settings
from insync.metadata import paths
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.records import BrokerRecord
from insync.metadata.store import Create
from insync.rules.values import BrokerId, Incarnation


class World:
    """Three registered brokers; each handle is one of them that takes requests."""

    def __init__(self) -> None:
        self.tree = MemoryTree()

    async def topics(self) -> Topics:
        store = MemoryStore(self.tree, clock_ms=lambda: 0)
        await store.start()
        self.view = ClusterView(store)
        return Topics(store=store, view=self.view, settings=Settings({}), random=Random(1))  # noqa: S311

    async def register(self, racks: Sequence[str | None]) -> None:
        for number, rack in enumerate(racks, start=1):
            record = BrokerRecord(
                broker=BrokerId(number),
                incarnation=Incarnation(number),
                host="h",
                port=9,
                rack=rack,
            )
            self.tree.step(
                [
                    Create(paths.broker_id(number), record.encode()),
                    Create(paths.broker_incarnation(number), b""),
                ],
                None,
            )


def play(
    scenario: Callable[[World], Awaitable[None]], racks: Sequence[str | None] = (None,) * 3
) -> None:
    async def whole() -> None:
        world = World()
        await world.register(racks)
        await scenario(world)

    asyncio.run(whole())


def test_a_broker_that_just_left_does_not_lead_a_new_topic() -> None:
    """The controller has handled its death and would not check the new partition again."""

    async def scenario(world: World) -> None:
        topics = await world.topics()
        for path in (paths.broker_id(1), paths.broker_incarnation(1)):
            world.tree.entries.pop(path)  # without a notification: the view is stale
        with pytest.raises(TopicRefused, match="other changes"):
            await topics.create(RequestedTopic(name="t", partitions=3, replication_factor=1))
        assert paths.topic("t") not in world.tree.entries

    play(scenario)


def test_replicas_of_a_new_topic_are_in_different_racks() -> None:
    async def scenario(world: World) -> None:
        topics = await world.topics()
        await topics.create(RequestedTopic(name="t", partitions=6, replication_factor=2))
        await topics.add_partitions("t", 12, None)
        for state in world.view.states.values():
            assert len({broker <= 2 for broker in state.replicas}) == 2

    play(scenario, racks=("a", "a", "b", "b"))


@pytest.mark.parametrize(
    ("count", "assignment", "code"),
    [
        (3, None, ErrorCode.invalid_partitions),
        (0, None, ErrorCode.invalid_partitions),
        (PARTITIONS_MAX + 1, None, ErrorCode.invalid_partitions),
        (5, [[1, 2]], ErrorCode.invalid_replica_assignment),
        (4, [[1, 2], [2, 3]], ErrorCode.invalid_replica_assignment),
        (4, [], ErrorCode.invalid_replica_assignment),
        (4, [[1, 2, 3]], ErrorCode.invalid_replica_assignment),
        (4, [[1, 1]], ErrorCode.invalid_replica_assignment),
        (4, [[1, 9]], ErrorCode.invalid_replica_assignment),
        (5, [[1, 2], [1]], ErrorCode.invalid_replica_assignment),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_an_invalid_partition_count_changes_nothing(
    count: int,
    assignment: list[list[int]] | None,
    code: ErrorCode,
    validate_only: bool,  # noqa: FBT001
) -> None:
    async def scenario(world: World) -> None:
        topics = await world.topics()
        await topics.create(RequestedTopic(name="t", partitions=3, replication_factor=2))
        before = dict(world.tree.entries)
        with pytest.raises(TopicRefused) as refused:
            await topics.add_partitions("t", count, assignment, validate_only=validate_only)
        assert refused.value.code is code
        assert world.tree.entries == before

    play(scenario)


@pytest.mark.parametrize(
    "assignment",
    [{0: [1, 2], 1: [1]}, {1: [1]}, {0: []}, {key: [1] for key in range(PARTITIONS_MAX + 1)}],
    ids=["uneven", "gap", "empty", "too many"],
)
def test_an_assignment_no_topic_can_have(assignment: dict[int, list[int]]) -> None:
    async def scenario(world: World) -> None:
        topics = await world.topics()
        before = dict(world.tree.entries)
        with pytest.raises(TopicRefused):
            await topics.create(RequestedTopic(name="t", assignment=assignment))
        assert world.tree.entries == before

    play(scenario)


def test_validate_only_partition_growth_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        topics = await world.topics()
        await topics.create(RequestedTopic(name="t"))
        before = dict(world.tree.entries)
        await topics.add_partitions("t", 7, None, validate_only=True)
        assert world.tree.entries == before

    play(scenario)


def test_a_topic_that_grows_while_it_is_deleted_leaves_nothing_behind() -> None:
    """The deletion is on its way when the growth comes first; it then takes everything."""

    async def scenario(world: World) -> None:
        one, other = await world.topics(), await world.topics()
        before = dict(world.tree.entries)
        await one.create(RequestedTopic(name="t", config={"retention.ms": "9"}))
        delays = iter([50, 0])
        world.tree.delay_ms = lambda: next(delays, 0)
        deletion = asyncio.ensure_future(one.delete("t"))
        await asyncio.sleep(0)
        await other.add_partitions("t", 4, None)
        await deletion
        assert world.tree.entries == before

    play(scenario)


def test_a_topic_that_is_deleted_by_id_is_not_mistaken_for_a_later_one_of_its_name() -> None:
    """Its step finds another change, and is made again from what the store has by then."""

    async def scenario(world: World) -> None:
        deleting, other = await world.topics(), await world.topics()
        deleted = await other.create(RequestedTopic(name="t"))
        delays = iter([50, 0])
        world.tree.delay_ms = lambda: next(delays, 0)
        attempt = asyncio.ensure_future(deleting.delete("t", deleted.topic_id))
        await asyncio.sleep(0)
        await other.delete("t")
        created = await other.create(RequestedTopic(name="t"))
        with pytest.raises(TopicRefused) as refused:
            await attempt
        assert refused.value.code is ErrorCode.unknown_topic_id
        assert world.view.topics["t"].topic_id == created.topic_id
        await deleting.delete("t", created.topic_id)
        assert paths.topic("t") not in world.tree.entries

    play(scenario)
