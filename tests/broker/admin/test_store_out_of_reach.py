"""A broker that cannot write to the metadata store answers with a code that clients retry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from insync.sim.cluster import Cluster
from insync.wire.apis import Api
from insync.wire.moves import Move
from support.sim.few_brokers import KEY, ONE, TWO, client_of, play, stays, topic
from support.sim.reassignments import alter, ask, hold, moved_to, start_moves

SAYS = "this broker is cut off from the metadata store"
TIMED_OUT = ErrorCode.request_timed_out
Result = tuple[ErrorCode, str | None]


async def reassigned(cluster: Cluster) -> Result:
    return (await alter(cluster, {KEY: (3, 2)}))[KEY]


async def started(cluster: Cluster) -> Result:
    answer = await start_moves(cluster, Move("t", 0, (3, 2)), throttle=1000)
    return ErrorCode(answer.error), answer.message


async def held(cluster: Cluster) -> Result:
    answer = await hold(cluster)
    return ErrorCode(answer.error), answer.message


async def elected(cluster: Cluster) -> Result:
    partitions = [{"topic": "t", "partitions": [0]}]
    values = {"election_type": 0, "topic_partitions": partitions}
    answer = await ask(cluster, Api.ELECT_LEADERS, values, version=2)
    return _result(answer.replica_election_results[0].partition_result[0])


def _result(result: Any) -> Result:
    return result.error_code, result.error_message


async def created(cluster: Cluster) -> Result:
    values = {"name": "u", "num_partitions": 1, "replication_factor": 1}
    answer = await ask(cluster, Api.CREATE_TOPICS, {"topics": [values]}, version=5)
    return _result(answer.topics[0])


async def grown(cluster: Cluster) -> Result:
    values = {"topics": [{"name": "t", "count": 2}]}
    return _result((await ask(cluster, Api.CREATE_PARTITIONS, values, version=1)).results[0])


async def deleted(cluster: Cluster) -> Result:
    answer = await ask(cluster, Api.DELETE_TOPICS, {"topic_names": ["t"]}, version=5)
    return _result(answer.responses[0])


async def configured(cluster: Cluster) -> Result:
    change = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [change]}
    answer = await ask(cluster, Api.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]})
    return _result(answer.responses[0])


@pytest.mark.parametrize(
    "change", [reassigned, started, held, elected, created, grown, deleted, configured]
)
def test_a_change_gets_a_retriable_error_and_can_be_requested_again(
    change: Callable[[Cluster], Awaitable[Result]], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        if change is elected:
            assert await alter(cluster, {KEY: (2, 1)}) == {KEY: (ErrorCode.none, None)}
            await stays(lambda: moved_to(cluster, 2, 1), for_s=0.5)
        cluster.cut_off_from_store(1)
        before = cluster.tree.revision
        assert await change(cluster) == (TIMED_OUT, SAYS)
        assert cluster.tree.revision == before
        cluster.reconnect_to_store(1)
        await asyncio.sleep(0.2)
        assert await change(cluster) == (ErrorCode.none, None)

    with caplog.at_level(logging.ERROR):
        play(scenario)
    assert "failed; closing the connection" not in caplog.text
