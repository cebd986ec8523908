"""Requests that reassign and throttle, to brokers on virtual time, and what the store has then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from insync.client.connection import ClientConnection
from insync.metadata import paths
from insync.metadata.records import decode_config
from insync.sim.cluster import PORT, Cluster
from insync.wire import holds, messages, moves
from insync.wire.any_version import build
from insync.wire.apis import Api
from insync.wire.holds import HoldThrottle, ThrottleHeld
from insync.wire.moves import Move, MovesStarted, StartMoves
from support.sim.few_brokers import state_of

NONE = ErrorCode.none
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


async def connected(cluster: Cluster, number: int = 1) -> ClientConnection:
    connection = ClientConnection(client_id="test")
    await cluster.network.host(300 + number).connect(f"broker-{number}", PORT, connection)
    return connection


async def ask(
    cluster: Cluster, api: Api, values: dict[str, Any], *, version: int = 0, of: int = 1
) -> Any:
    connection = await connected(cluster, of)
    request = build(messages.request_type(api, version), values)
    try:
        return await connection.request(request)
    finally:
        connection.close()


async def alter(
    cluster: Cluster,
    targets: dict[tuple[str, int], Sequence[int] | None],
    *,
    version: int = 1,
    **options: object,
) -> dict[tuple[str, int], tuple[ErrorCode, str | None]]:
    values = {
        "topics": [
            {"name": name, "partitions": [{"partition_index": number, "replicas": target}]}
            for (name, number), target in targets.items()
        ],
        **options,
    }
    answer = await ask(cluster, Api.ALTER_PARTITION_REASSIGNMENTS, values, version=version)
    assert answer.error_code is NONE
    return {
        (each.name, part.partition_index): (part.error_code, part.error_message)
        for each in answer.responses
        for part in each.partitions
    }


def moved_to(cluster: Cluster, *target: int) -> bool:
    state = state_of(cluster)
    return state["replicas"] == list(target) and not (state["adding"] or state["removing"])


def config(cluster: Cluster, path: str) -> dict[str, str]:
    entry = cluster.tree.entries.get(path)
    return {} if entry is None else decode_config(entry.value)


def throttles(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Everything that throttles, wherever it is set."""
    throttles = {}
    for path in cluster.tree.entries:
        if path.startswith("/config/"):
            kept = {k: v for k, v in config(cluster, path).items() if "throttled" in k}
            if kept:
                throttles[path] = kept
    return throttles


def leases(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.entries if path.startswith(paths.THROTTLE_LEASES)]


async def start_moves(
    cluster: Cluster, *requested: Move, throttle: int = -1, is_additional: bool = False, of: int = 1
) -> MovesStarted:
    connection = await connected(cluster, of)
    body = moves.write_request(StartMoves(requested, throttle, is_additional, 1_000))
    frame, at = await connection.ask(Api.START_MOVES, 0, [body])
    connection.close()
    return moves.read_response(frame, at)


async def hold(
    cluster: Cluster, *, throttle: int = 1000, broker: int = 2, holder: str = "tool", of: int = 1
) -> ThrottleHeld:
    connection = await connected(cluster, of)
    body = holds.write_request(HoldThrottle(broker, holder, throttle))
    frame, at = await connection.ask(Api.HOLD_THROTTLE, 0, [body])
    connection.close()
    return holds.read_response(frame, at)
