"""A paused process runs nothing until it resumes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from insync.client.connection import ClientConnection
from insync.sim.clients import Admin, SimClient
from insync.sim.cluster import Cluster
from insync.sim.ownership import acting_as
from insync.sim.store import SESSION_TIMEOUT_MS
from insync.sim.virtual_loop import VirtualLoop
from insync.wire import batches
from insync.wire.apis import Api
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)
from support.sim.few_brokers import play


def test_a_paused_host_does_nothing_and_then_everything_in_order() -> None:
    loop = VirtualLoop()
    done: list[tuple[str, float]] = []

    def note(what: str) -> None:
        done.append((what, loop.time()))

    async def scenario() -> None:
        with acting_as(1):
            loop.call_later(1.0, note, "timer 1")
            loop.call_later(2.0, note, "timer 2")
        loop.call_later(1.5, note, "another host")
        loop.pause(1)
        await asyncio.sleep(3.0)
        assert done == [("another host", 1.5)]
        loop.resume(1, timers_first=False)
        await asyncio.sleep(0)
        assert done[1:] == [("timer 1", 3.0), ("timer 2", 3.0)]

    loop.run_until_complete(scenario())
    loop.close()


@pytest.mark.parametrize("outlives_its_session", [False, True])
def test_a_leader_that_slept_past_its_session_acknowledges_nothing(
    outlives_its_session: bool,  # noqa: FBT001
) -> None:
    """An acks=1 request waits in its socket; meanwhile another leader is elected, or is not."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    cluster = Cluster(loop, Random(3))  # noqa: S311 - chance, not secrecy

    async def scenario() -> None:
        for number in cluster.brokers:
            await cluster.start(number)
        client = SimClient(cluster, 100, ("t", 0), Random(1))  # noqa: S311
        await Admin(cluster, client).create("t", 1, factor=3)
        assert await client.append([b"before"]) == 0
        leader = client.responding_broker
        connection = ClientConnection(client_id="patient")
        await cluster.network.host(101).connect(f"broker-{leader}", 9092, connection)
        produce = ProducePartition("t", 0, batches.build([(None, b"late")]))
        body = write_produce_request(9, ProduceRequest(None, 1, 1_000, [produce]))
        cluster.pause(leader)
        response = loop.create_task(connection.ask(Api.PRODUCE, 9, [body]))
        await asyncio.sleep(SESSION_TIMEOUT_MS / 1_000 + (1.0 if outlives_its_session else -1.0))
        cluster.resume(leader)
        (result,) = read_produce_response(9, *await response).results
        await asyncio.sleep(1.0)
        values, _ = await client.read(0)
        if outlives_its_session:
            assert result.error == ErrorCode.not_leader_or_follower
            assert values == [b"before"]
        else:
            assert result.error == ErrorCode.none
            assert values == [b"before", b"late"]

    loop.run_until_complete(scenario())
    asyncio.set_event_loop(None)
    loop.close()


def test_a_broker_that_pauses_from_within_resumes() -> None:
    async def scenario(cluster: Cluster) -> None:
        with acting_as(1):
            cluster.pause_for(1, 0.5)
        assert cluster.brokers[1].is_paused
        await asyncio.sleep(0.6)
        assert not cluster.brokers[1].is_paused

    play(scenario)
