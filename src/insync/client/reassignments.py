"""Starting and cancelling reassignments, and the id of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from insync.client.admin import Admin
from insync.client.admin_connections import Refused
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId, PartitionId
from insync.wire import moves as wire
from insync.wire.apis import Api


class NoClusterId(Refusal):
    """The brokers are too old to have a cluster id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of starting or cancelling moves: an error for each partition that was refused."""

    refused: Mapping[TopicPartition, Refused]
    lease: str | None = None  # of their throttle, on brokers that have leases

    @property
    def is_done(self) -> bool:
        return not self.refused


async def cluster_id(admin: Admin) -> str:
    connections = admin.connections
    response = await connections.operation(lambda: connections.metadata([]))
    identity: str | None = getattr(response, "cluster_id", None)
    if identity is None:
        raise NoClusterId("these brokers have no cluster id; Kafka 0.10.1 and later do")
    return identity


async def alter(
    admin: Admin,
    targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
    *,
    timeout_ms: int,
) -> Outcome:
    """Move each partition to its target, or cancel its move if the target is None."""
    connections = admin.connections
    values = {
        "timeout": timedelta(milliseconds=timeout_ms),
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "replicas": targets[name, number]}
                    for name, number in sorted(targets)
                    if name == topic
                ],
            }
            for topic in _topics(targets)
        ],
    }

    async def attempt() -> Any:
        response = await connections.ask_controller(Api.ALTER_PARTITION_REASSIGNMENTS, values)
        if response.error_code is not ErrorCode.none:
            raise Refused(response.error_code, response.error_message or "the reassignment")
        results = [each for topic in response.responses for each in topic.partitions]
        if results and all(each.error_code is ErrorCode.request_timed_out for each in results):
            # The controller could not reach the metadata, for any of them.
            raise Refused(results[0].error_code, results[0].error_message or "the reassignment")
        return response

    response = await connections.operation(attempt)
    return Outcome(
        refused={
            (topic.name, each.partition_index): Refused(
                each.error_code, each.error_message or f"{topic.name}-{each.partition_index}"
            )
            for topic in response.responses
            for each in topic.partitions
            if each.error_code is not ErrorCode.none
        }
    )


async def offers_leases(admin: Admin) -> bool:
    """Whether brokers start moves with a throttle that ends with them."""
    connections = admin.connections
    return await connections.operation(lambda: connections.offers(Api.START_MOVES))


async def start_with_throttle(
    admin: Admin,
    targets: Mapping[TopicPartition, tuple[BrokerId, ...]],
    *,
    throttle_bytes_per_s: int,
    is_additional: bool,
    timeout_ms: int,
) -> Outcome:
    """Start moves and their throttle in one step, all or nothing."""
    request = wire.StartMoves(
        partitions=tuple(
            wire.Move(topic, number, targets[topic, number]) for topic, number in sorted(targets)
        ),
        throttle_bytes_per_s=throttle_bytes_per_s,
        is_additional=is_additional,
        timeout_ms=timeout_ms,
    )
    return await _start_moves(admin, request)


async def preserve_throttle(
    admin: Admin, cancelled: Iterable[TopicPartition], *, timeout_ms: int
) -> Outcome:
    """Cancel these moves, if any, and delete the lease: its throttle stays set."""
    request = wire.StartMoves(
        partitions=tuple(wire.Move(topic, number) for topic, number in sorted(cancelled)),
        throttle_bytes_per_s=wire.PRESERVE_THROTTLE,
        timeout_ms=timeout_ms,
    )
    return await _start_moves(admin, request)


async def _start_moves(admin: Admin, request: wire.StartMoves) -> Outcome:
    connections = admin.connections
    body = wire.write_request(request)

    async def attempt() -> wire.MovesStarted:
        frame, at = await connections.ask_controller_bytes(Api.START_MOVES, body)
        started = wire.read_response(frame, at)
        refusals = [each for each in started.partitions if each.error]
        if started.error and not refusals:
            code = ErrorCode(started.error)
            raise Refused(code, started.message or "the reassignment")
        return started

    started = await connections.operation(attempt)
    return Outcome(
        refused={
            (each.topic, PartitionId(each.partition)): Refused(
                ErrorCode(each.error), each.message or f"{each.topic}-{each.partition}"
            )
            for each in started.partitions
            if each.error
        },
        lease=started.lease,
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted({topic for topic, _ in partitions})
