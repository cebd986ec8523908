"""Fetch sessions (KIP-227) and reads that are not in memory, on one broker and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from one_broker import Client, OneBroker, on_virtual_time, told

from insync.broker.fetch_sessions import Interest, Reader
from insync.broker.replica import Replica
from insync.rules.values import BrokerId
from insync.sim.virtual_loop import VirtualLoop
from insync.wire.fetch import FetchedPartition, FetchPartition, FetchResponse

Story = Callable[[OneBroker, Client], Coroutine[Any, Any, None]]


def play(story: Story, *, partitions: int = 3, **settings: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        broker = OneBroker(loop, **settings)
        await broker.start(partitions=partitions)
        await story(broker, await broker.client())

    on_virtual_time(test)


async def begin(client: Client, asked: dict[int, int]) -> int:
    response = await client.fetch(asked, session=(0, 0), max_wait_ms=0)
    assert response.error == 0
    assert response.session_id != 0
    assert set(told(response)) == set(asked), "the first answer names everything"
    return response.session_id


def test_an_answer_names_only_what_has_news() -> None:
    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0, 2: 0})
        await client.produce(1, b"a", b"b")
        assert told(await client.fetch(session=(session, 1))) == {1: (0, 2)}

    play(story)


def test_an_unlisted_partition_is_asked_for_where_it_was() -> None:
    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(1, b"a")
        assert told(await client.fetch(session=(session, 1))) == {1: (0, 1)}
        # The reader did not say it has moved on: it gets the same again.
        assert told(await client.fetch(session=(session, 2))) == {1: (0, 1)}
        assert told(await client.fetch({1: 1}, session=(session, 3), max_wait_ms=10)) == {}

    play(story)


def test_nothing_to_say_is_an_empty_answer_when_the_time_is_up() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        before_ms = broker.loop.clock_ms()
        assert told(await client.fetch(session=(session, 1), max_wait_ms=500)) == {}
        assert broker.loop.clock_ms() - before_ms >= 500

    play(story)


def test_a_waiting_fetch_hears_of_an_append_at_once() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        waiting = asyncio.ensure_future(client.fetch(session=(session, 1), max_wait_ms=60_000))
        await asyncio.sleep(1)
        before_ms = broker.loop.clock_ms()
        await (await broker.client()).produce(0, b"a")
        assert told(await waiting) == {0: (0, 1)}
        assert broker.loop.clock_ms() - before_ms < 20

    play(story)


def test_a_forgotten_partition_says_nothing() -> None:
    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(0, b"a")
        await client.produce(1, b"a")
        assert told(await client.fetch(session=(session, 1), forget=(0,))) == {1: (0, 1)}

    play(story)


def test_a_partition_joins_the_session_later() -> None:
    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        await client.produce(2, b"a")
        assert told(await client.fetch({2: 0}, session=(session, 1))) == {2: (0, 1)}

    play(story)


def test_a_newer_request_lets_the_waiting_one_go_empty() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        first = asyncio.ensure_future(client.fetch(session=(session, 1), max_wait_ms=60_000))
        await asyncio.sleep(1)
        await (await broker.client()).produce(1, b"a")
        before_ms = broker.loop.clock_ms()
        second = await client.fetch({1: 0}, session=(session, 2), max_wait_ms=60_000)
        assert told(await first) == {}
        assert told(second) == {1: (0, 1)}
        assert broker.loop.clock_ms() - before_ms < 20

    play(story)


def test_many_ready_partitions_take_turns() -> None:
    """An answer that is full leaves the others ready, and they come first next time."""

    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, dict.fromkeys(range(6), 0))
        for number in range(6):
            await client.produce(number, b"x" * 1_000)
        seen: list[int] = []
        position = dict.fromkeys(range(6), 0)
        for epoch in range(1, 4):
            listed = {number: position[number] for number in seen[-2:]}
            response = await client.fetch(listed, session=(session, epoch), max_bytes=2_200)
            with_data = [number for number, (_, count) in told(response).items() if count]
            assert len(with_data) == 2
            seen += with_data
            for number in with_data:
                position[number] = 1
        assert sorted(seen) == list(range(6))

    play(story, partitions=6)


def test_a_batch_larger_than_all_limits_still_comes() -> None:
    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(0, b"x" * 5_000)
        await client.produce(1, b"x" * 5_000)
        response = await client.fetch(session=(session, 1), max_bytes=100, partition_bytes=100)
        assert sorted(told(response).values()) == [(0, 0), (0, 1)] or list(
            told(response).values()
        ) == [(0, 1)]

    play(story)


@pytest.mark.parametrize(
    ("session_id", "epoch", "error"),
    [
        (12345, 1, ErrorCode.fetch_session_id_not_found),
        (None, 2, ErrorCode.invalid_fetch_session_epoch),
        (None, -7, ErrorCode.invalid_fetch_session_epoch),
    ],
)
def test_wrong_sessions_are_refused(session_id: int | None, epoch: int, error: ErrorCode) -> None:
    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        response = await client.fetch(session=(session_id or session, epoch))
        assert ErrorCode(response.error) is error
        assert response.session_id == 0
        assert told(await client.fetch({0: 0}, session=(session, 1), max_wait_ms=0)) == {}

    play(story)


def test_a_session_belongs_to_whoever_began_it() -> None:
    """A replica id is refused before a session is looked at; the other way round as well."""

    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        response = await client.fetch(session=(session, 1), replica_id=1)
        assert ErrorCode(response.error) is ErrorCode.cluster_authorization_failed

    play(story)


def test_a_session_ends_with_its_connection() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        client.connection.close()
        await asyncio.sleep(0.1)
        response = await (await broker.client()).fetch(session=(session, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found
        replica = broker.node.replicas.held["t", 0]
        assert not replica.watchers, "nobody is told any more"

    play(story)


def test_a_full_fetch_ends_the_session_it_names() -> None:
    async def story(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        assert (await client.fetch({0: 0}, session=(session, -1), max_wait_ms=0)).session_id == 0
        response = await client.fetch(session=(session, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found

    play(story)


def test_one_connection_has_one_session() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        first = await begin(client, {0: 0})
        for _ in range(50):
            await begin(client, {0: 0})
        assert len(broker.node.replicas.held["t", 0].watchers) <= 1
        response = await client.fetch(session=(first, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found

    play(story)


def test_sessions_are_bounded() -> None:
    """The longest unused makes room; while all are in use a newcomer fetches without."""

    async def story(broker: OneBroker, client: Client) -> None:
        first = await begin(client, {0: 0})
        other = await broker.client()
        second = await begin(other, {0: 0})
        response = await client.fetch(session=(first, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found
        waiting = asyncio.ensure_future(other.fetch(session=(second, 1), max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        assert (await client.fetch({0: 0}, session=(0, 0), max_wait_ms=0)).session_id == 0
        assert told(await waiting) == {}

    play(story, max_incremental_fetch_session_cache_slots="1")


def test_an_idle_request_looks_at_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        session = await begin(client, dict.fromkeys(range(50), 0))
        looked: list[object] = []
        held = broker.node.replicas
        monkeypatch.setattr(held, "leader_of", looked.append)
        for epoch in range(1, 6):
            assert told(await client.fetch(session=(session, epoch))) == {}
        assert looked == []

    play(story, partitions=50)


# Reads that are not in memory.


async def timed(broker: OneBroker, fetch: Coroutine[Any, Any, FetchResponse]) -> tuple[Any, int]:
    began_ms = broker.loop.clock_ms()
    response = await fetch
    return told(response), broker.loop.clock_ms() - began_ms


def test_a_slow_read_delays_no_other_partition_of_the_session() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(0, b"a")
        await client.produce(1, b"a")
        broker.disk.cold.add("t-0")
        found, took_ms = await timed(broker, client.fetch(session=(session, 1)))
        assert (found, took_ms < 20) == ({0: (0, 0), 1: (0, 1)}, True)  # 0 tells its watermark
        found, took_ms = await timed(
            broker, client.fetch({1: 1}, session=(session, 2), max_wait_ms=5_000)
        )
        assert found == {0: (0, 1)}, "it comes when it was read"
        assert 900 < took_ms < 1_100

    play(story)


def test_outside_a_session_a_slow_read_is_waited_for() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        await client.produce(0, b"a")
        await client.produce(1, b"a")
        broker.disk.cold.add("t-0")
        found, took_ms = await timed(broker, client.fetch({0: 0, 1: 0}, max_wait_ms=100))
        assert found == {0: (0, 1), 1: (0, 1)}
        assert 990 < took_ms < 1_100

    play(story)


def test_slow_reads_of_one_reader_are_bounded() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        for number in range(20):
            await client.produce(number, b"x" * 900)
            broker.disk.cold.add(f"t-{number}")
        got: set[int] = set()
        session = await begin(client, dict.fromkeys(range(20), 0))
        epoch = 1
        listed: dict[int, int] = {}
        while len(got) < 20:
            response = await client.fetch(
                listed, session=(session, epoch), max_bytes=4_000, partition_bytes=1_000
            )
            listed = {number: 1 for number, (_, count) in told(response).items() if count}
            got |= set(listed)
            epoch += 1
            assert epoch < 100
        # The first request asked for up to 1 MiB per answer, the others for 4 kB.
        assert broker.reads.most_under_way <= 5

    play(story, partitions=20)


def test_a_read_that_fails_is_said_and_tried_again() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        await client.produce(0, b"a")
        session = await begin(client, {0: 1, 1: 0})
        broker.disk.cold.add("t-0")
        broker.disk.is_broken = True
        response = await client.fetch({0: 0}, session=(session, 1), max_wait_ms=5_000)
        assert told(response) == {0: (int(ErrorCode.kafka_storage_error), 0)}
        broker.disk.is_broken = False
        assert told(await client.fetch(session=(session, 2), max_wait_ms=5_000)) == {0: (0, 1)}

    play(story)


def test_a_reader_that_moved_on_is_not_given_what_it_no_longer_asks() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        for _ in range(3):
            await client.produce(0, b"a")
        session = await begin(client, {0: 3})
        broker.disk.cold.add("t-0")
        assert told(await client.fetch({0: 0}, session=(session, 1), max_wait_ms=10)) == {}
        response = await client.fetch({0: 2}, session=(session, 2), max_wait_ms=5_000)
        assert told(response) == {0: (0, 1)}

    play(story)


def test_a_reader_that_left_leaves_nothing_behind() -> None:
    async def story(broker: OneBroker, client: Client) -> None:
        await client.produce(0, b"a")
        broker.disk.cold.add("t-0")
        waiting = asyncio.ensure_future(client.fetch({0: 0}, session=(0, 0), max_wait_ms=60_000))
        await asyncio.sleep(0.1)
        client.connection.close()
        await asyncio.sleep(2)
        assert not broker.node.replicas.held["t", 0].watchers
        waiting.cancel()

    play(story)


class SomeLog:
    start, end = 0, 5


def test_news_between_reading_and_answering_is_not_lost() -> None:
    """While one partition of an answer is read, a producer of another may be told and go on."""
    replica = Replica(("t", 0), UUID(int=1), SomeLog(), high_watermark=5)  # type: ignore[arg-type]
    reader = Reader(BrokerId(2), now_ms=0)
    asked = FetchPartition(0, 0, 5, 0, 0, 1_000)
    part = FetchedPartition(0, ErrorCode.none, 5, log_start=0)

    def read() -> Interest:
        interest = Interest(reader, "t", asked)
        reader.ready[interest] = None
        interest.watch(replica)
        return interest

    quiet = read()
    quiet.told(part)
    assert quiet not in reader.ready
    for grew, committed in ((True, False), (False, True), (False, False)):
        interest = read()
        replica.high_watermark = 6 if committed else 5
        interest.on_news(replica, grew=grew, committed=committed)
        interest.told(part)
        assert interest in reader.ready, (grew, committed)
