"""Fetch sessions (KIP-227) and reads that are not in memory, on one broker and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from insync.broker.broker_loop import BrokerLoop
from insync.broker.fetch.fetch_sessions import FetchSession, SessionPartition
from insync.broker.replication.replica import Replica
from insync.rules.values import BrokerId
from insync.sim.virtual_loop import VirtualLoop
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from support.sim.one_broker import Client, OneBroker, answers_in, on_virtual_time

Scenario = Callable[[OneBroker, Client], Coroutine[Any, Any, None]]


def play(scenario: Scenario, *, partitions: int = 3, **settings: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        broker = OneBroker(loop, **settings)
        await broker.start(partitions=partitions)
        await scenario(broker, await broker.client())

    on_virtual_time(test)


async def begin(client: Client, offsets: dict[int, int]) -> int:
    response = await client.fetch(offsets, session=(0, 0), max_wait_ms=0)
    assert response.error == 0
    assert response.session_id != 0
    assert set(answers_in(response)) == set(offsets), "the first response has every partition"
    return response.session_id


def test_a_response_has_only_partitions_that_changed() -> None:
    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0, 2: 0})
        await client.produce(1, b"a", b"b")
        assert answers_in(await client.fetch(session=(session, 1))) == {1: (0, 2)}

    play(scenario)


def test_an_unlisted_partition_is_fetched_from_its_last_offset() -> None:
    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(1, b"a")
        assert answers_in(await client.fetch(session=(session, 1))) == {1: (0, 1)}
        # The client did not list it at another offset: it gets the same again.
        assert answers_in(await client.fetch(session=(session, 2))) == {1: (0, 1)}
        assert answers_in(await client.fetch({1: 1}, session=(session, 3), max_wait_ms=10)) == {}

    play(scenario)


def test_without_changes_the_response_is_empty_after_the_maximum_wait() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        before_ms = broker.loop.clock_ms()
        assert answers_in(await client.fetch(session=(session, 1), max_wait_ms=500)) == {}
        assert broker.loop.clock_ms() - before_ms >= 500

    play(scenario)


def test_an_append_answers_a_waiting_fetch_at_once() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        waiting = asyncio.ensure_future(client.fetch(session=(session, 1), max_wait_ms=60_000))
        await asyncio.sleep(1)
        before_ms = broker.loop.clock_ms()
        await (await broker.client()).produce(0, b"a")
        assert answers_in(await waiting) == {0: (0, 1)}
        assert broker.loop.clock_ms() - before_ms < 20

    play(scenario)


def test_a_forgotten_partition_is_in_no_response() -> None:
    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(0, b"a")
        await client.produce(1, b"a")
        assert answers_in(await client.fetch(session=(session, 1), forget=(0,))) == {1: (0, 1)}

    play(scenario)


def test_a_partition_joins_the_session_later() -> None:
    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        await client.produce(2, b"a")
        assert answers_in(await client.fetch({2: 0}, session=(session, 1))) == {2: (0, 1)}

    play(scenario)


def test_a_newer_request_ends_the_waiting_one_with_an_empty_response() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        first = asyncio.ensure_future(client.fetch(session=(session, 1), max_wait_ms=60_000))
        await asyncio.sleep(1)
        await (await broker.client()).produce(1, b"a")
        before_ms = broker.loop.clock_ms()
        second = await client.fetch({1: 0}, session=(session, 2), max_wait_ms=60_000)
        assert answers_in(await first) == {}
        assert answers_in(second) == {1: (0, 1)}
        assert broker.loop.clock_ms() - before_ms < 20

    play(scenario)


def test_many_ready_partitions_take_turns() -> None:
    """An answer that is full leaves the others ready, and they come first next time."""

    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, dict.fromkeys(range(6), 0))
        for number in range(6):
            await client.produce(number, b"x" * 1_000)
        seen: list[int] = []
        position = dict.fromkeys(range(6), 0)
        for epoch in range(1, 4):
            listed = {number: position[number] for number in seen[-2:]}
            response = await client.fetch(listed, session=(session, epoch), max_bytes=2_200)
            with_data = [number for number, (_, count) in answers_in(response).items() if count]
            assert len(with_data) == 2
            seen += with_data
            for number in with_data:
                position[number] = 1
        assert sorted(seen) == list(range(6))

    play(scenario, partitions=6)


def test_a_batch_larger_than_all_limits_is_still_sent() -> None:
    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(0, b"x" * 5_000)
        await client.produce(1, b"x" * 5_000)
        response = await client.fetch(session=(session, 1), max_bytes=100, partition_bytes=100)
        assert sorted(answers_in(response).values()) == [(0, 0), (0, 1)] or list(
            answers_in(response).values()
        ) == [(0, 1)]

    play(scenario)


@pytest.mark.parametrize(
    ("session_id", "epoch", "error"),
    [
        (12345, 1, ErrorCode.fetch_session_id_not_found),
        (None, 2, ErrorCode.invalid_fetch_session_epoch),
        (None, -7, ErrorCode.invalid_fetch_session_epoch),
    ],
)
def test_wrong_sessions_are_refused(session_id: int | None, epoch: int, error: ErrorCode) -> None:
    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        response = await client.fetch(session=(session_id or session, epoch))
        assert ErrorCode(response.error) is error
        assert response.session_id == 0
        assert answers_in(await client.fetch({0: 0}, session=(session, 1), max_wait_ms=0)) == {}

    play(scenario)


def test_a_session_belongs_to_the_client_that_began_it() -> None:
    """A replica id is refused before the session is looked up; and the other way round."""

    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        response = await client.fetch(session=(session, 1), replica_id=1)
        assert ErrorCode(response.error) is ErrorCode.cluster_authorization_failed

    play(scenario)


def test_a_session_ends_with_its_connection() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        client.connection.close()
        await asyncio.sleep(0.1)
        response = await (await broker.client()).fetch(session=(session, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found
        replica = broker.node.replicas.partitions["t", 0]
        assert not replica._watchers, "no watcher is left"

    play(scenario)


def test_a_full_fetch_ends_the_session_it_names() -> None:
    async def scenario(_: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0})
        assert (await client.fetch({0: 0}, session=(session, -1), max_wait_ms=0)).session_id == 0
        response = await client.fetch(session=(session, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found

    play(scenario)


def test_one_connection_has_one_session() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        first = await begin(client, {0: 0})
        for _ in range(50):
            await begin(client, {0: 0})
        assert len(broker.node.replicas.partitions["t", 0]._watchers) <= 1
        response = await client.fetch(session=(first, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found

    play(scenario)


def test_sessions_are_bounded() -> None:
    """The session unused for longest is evicted; while all are in use a new client gets none."""

    async def scenario(broker: OneBroker, client: Client) -> None:
        first = await begin(client, {0: 0})
        other = await broker.client()
        second = await begin(other, {0: 0})
        response = await client.fetch(session=(first, 1))
        assert ErrorCode(response.error) is ErrorCode.fetch_session_id_not_found
        waiting = asyncio.ensure_future(other.fetch(session=(second, 1), max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        assert (await client.fetch({0: 0}, session=(0, 0), max_wait_ms=0)).session_id == 0
        assert answers_in(await waiting) == {}

    play(scenario, max_incremental_fetch_session_cache_slots="1")


def test_an_idle_request_reads_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        session = await begin(client, dict.fromkeys(range(50), 0))
        lookups: list[object] = []
        held = broker.node.replicas
        monkeypatch.setattr(held, "leader_of", lookups.append)
        for epoch in range(1, 6):
            assert answers_in(await client.fetch(session=(session, epoch))) == {}
        assert lookups == []

    play(scenario, partitions=50)


def test_a_waiting_request_reads_again_only_partitions_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of many partitions may wake it: else that is a read for each pair of them."""

    async def scenario(broker: OneBroker, client: Client) -> None:
        listed = dict.fromkeys(range(50), 0)
        session = await begin(client, listed)
        read: list[int] = []
        find_leader = broker.node.replicas.leader_of

        def leader_of(key: tuple[str, int]) -> Replica | None:
            read.append(key[1])
            return find_leader(key)

        fetch = client.fetch(listed, session=(session, 1), max_wait_ms=500, min_bytes=10_000)
        waiting = asyncio.ensure_future(fetch)
        await asyncio.sleep(0.1)
        producer = await broker.client()
        monkeypatch.setattr(broker.node.replicas, "leader_of", leader_of)
        for _ in range(4):
            await producer.produce(1, b"a")
        assert set(read) == {1}
        assert answers_in(await waiting) == {1: (0, 4)}

    play(scenario, partitions=50)


# Reads that are not in memory.


async def timed(broker: OneBroker, fetch: Coroutine[Any, Any, FetchResponse]) -> tuple[Any, int]:
    began_ms = broker.loop.clock_ms()
    response = await fetch
    return answers_in(response), broker.loop.clock_ms() - began_ms


def test_a_slow_read_delays_no_other_partition_of_the_session() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        session = await begin(client, {0: 0, 1: 0})
        await client.produce(0, b"a")
        await client.produce(1, b"a")
        broker.disk.cold.add("t-0")
        answers, took_ms = await timed(broker, client.fetch(session=(session, 1)))
        assert (answers, took_ms < 20) == (
            {0: (0, 0), 1: (0, 1)},
            True,
        )  # of 0 the watermark is new
        answers, took_ms = await timed(
            broker, client.fetch({1: 1}, session=(session, 2), max_wait_ms=5_000)
        )
        assert answers == {0: (0, 1)}, "it is sent when it has been read"
        assert 900 < took_ms < 1_100

    play(scenario)


def test_without_a_session_a_fetch_waits_for_a_slow_read() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        await client.produce(0, b"a")
        await client.produce(1, b"a")
        broker.disk.cold.add("t-0")
        answers, took_ms = await timed(broker, client.fetch({0: 0, 1: 0}, max_wait_ms=100))
        assert answers == {0: (0, 1), 1: (0, 1)}
        assert 990 < took_ms < 1_100

    play(scenario)


def test_slow_reads_of_one_session_are_bounded() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
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
            listed = {number: 1 for number, (_, count) in answers_in(response).items() if count}
            got |= set(listed)
            epoch += 1
            assert epoch < 100
        # The first request allows up to 1 MiB per response, the others for 4 kB.
        assert broker.reads.most_under_way <= 5

    play(scenario, partitions=20)


def test_a_failed_read_is_answered_with_an_error_and_retried() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        await client.produce(0, b"a")
        session = await begin(client, {0: 1, 1: 0})
        broker.disk.cold.add("t-0")
        broker.disk.is_broken = True
        response = await client.fetch({0: 0}, session=(session, 1), max_wait_ms=5_000)
        assert answers_in(response) == {0: (int(ErrorCode.kafka_storage_error), 0)}
        broker.disk.is_broken = False
        assert answers_in(await client.fetch(session=(session, 2), max_wait_ms=5_000)) == {
            0: (0, 1)
        }

    play(scenario)


def test_a_read_for_a_former_offset_is_discarded() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        for _ in range(3):
            await client.produce(0, b"a")
        session = await begin(client, {0: 3})
        broker.disk.cold.add("t-0")
        assert answers_in(await client.fetch({0: 0}, session=(session, 1), max_wait_ms=10)) == {}
        response = await client.fetch({0: 2}, session=(session, 2), max_wait_ms=5_000)
        assert answers_in(response) == {0: (0, 1)}

    play(scenario)


def test_a_closed_connection_leaves_no_watcher() -> None:
    async def scenario(broker: OneBroker, client: Client) -> None:
        await client.produce(0, b"a")
        broker.disk.cold.add("t-0")
        waiting = asyncio.ensure_future(client.fetch({0: 0}, session=(0, 0), max_wait_ms=60_000))
        await asyncio.sleep(0.1)
        client.connection.close()
        await asyncio.sleep(2)
        assert not broker.node.replicas.partitions["t", 0]._watchers
        waiting.cancel()

    play(scenario)


class SomeLog:
    start, end = 0, 5


def test_a_change_between_reading_and_answering_is_not_lost() -> None:
    """While one partition of a response is read, a producer of another may be acknowledged."""
    loop = BrokerLoop(lambda: 0)
    replica = Replica(("t", 0), UUID(int=1), SomeLog(), high_watermark=5, report=print, loop=loop)  # type: ignore[arg-type]
    session = FetchSession(BrokerId(2), loop)
    requested = FetchPartition(0, 0, 5, 0, 0, 1_000)
    answer = FetchedPartition(0, ErrorCode.none, 5, log_start=0)

    def read() -> SessionPartition:
        partition = SessionPartition(session, "t", requested)
        session.ready[partition] = None
        partition.watch(replica)
        return partition

    quiet = read()
    quiet.on_sent(answer)
    assert quiet not in session.ready
    for grew, committed in ((True, False), (False, True), (False, False)):
        partition = read()
        replica.high_watermark = 6 if committed else 5
        partition.on_partition_changed(replica, grew=grew, committed=committed)
        partition.on_sent(answer)
        assert partition in session.ready, (grew, committed)


def test_a_follower_that_discards_an_answer_gets_its_watermark_again() -> None:
    """It sends its next listing before the answer comes, which is stale to it then."""
    loop = BrokerLoop(lambda: 0)
    session = FetchSession(BrokerId(2), loop)
    answer = FetchedPartition(0, ErrorCode.none, 5, log_start=3)

    def request(offset: int) -> FetchRequest:
        listed = [FetchTopic("t", [FetchPartition(0, 0, offset, 0, 0, 1_000)])]
        return FetchRequest(
            replica_id=2, max_wait_ms=0, min_bytes=1, max_bytes=1_000, topics=listed
        )

    session.apply_request(request(4))
    (partition,) = session.partitions.values()
    partition.on_sent(answer)
    assert not partition.has_news(answer)
    session.apply_request(request(5))
    assert partition.has_news(answer)
    partition.on_sent(answer)
    assert not partition.has_news(answer)
