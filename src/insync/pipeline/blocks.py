"""Blocks of the telemetry topic, read from brokers by partition and range of offsets.

Runs in Spark's workers (and, for the bounds, on the driver). With Insync's own client: it hands out
batches as they are, so that one whose bytes are damaged is told of instead of ending the read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from insync.client.admin import Admin, Topic
from insync.client.admin_connections import Connections, Patience, parse_bootstrap
from insync.client.partition_client import PartitionClient, Refused
from insync.client.sockets import Sockets
from insync.rules.refusals import Refusal
from insync.telemetry.blocks import BadBlock, Label, read_label
from insync.telemetry.collection import Part, Record, parts
from insync.telemetry.schemas import TELEMETRY_TOPIC

READ_BYTES: Final = 4 << 20

T = TypeVar("T")


class NoTelemetry(Refusal):
    """A cluster without the topic."""


class Unreadable(Refusal):
    """A partition of the telemetry topic that nobody serves, or not from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Whom to ask, and how long to bear with a partition whose leader has died."""

    bootstrap: str
    patience_ms: int

    def client(self, partition: int) -> PartitionClient:
        return PartitionClient(
            Sockets(), parse_bootstrap(self.bootstrap), TELEMETRY_TOPIC, partition
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of one partition of the topic, the end not included."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one offset holds: a labelled block, or why there is none."""

    offset: int
    label: Label | None = None
    data: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything the topic holds now, by partition. Deleted and made anew it has another id."""

    topic_id: str
    spans: list[Span]


def topic_id(cluster: Cluster) -> str:
    return str(asyncio.run(_topic(cluster)).topic_id)


def contents(cluster: Cluster) -> Contents:
    async def ask() -> Contents:
        topic = await _topic(cluster)
        found = await asyncio.gather(*(_span(cluster, part.number) for part in topic.partitions))
        return Contents(topic_id=str(topic.topic_id), spans=list(found))

    return asyncio.run(ask())


async def _topic(cluster: Cluster) -> Topic:
    patience = Patience(operation_ms=cluster.patience_ms)
    connections = Connections(Sockets(), parse_bootstrap(cluster.bootstrap), patience=patience)
    async with Admin(connections) as admin:
        topics = {topic.name: topic for topic in await admin.topics()}
    if TELEMETRY_TOPIC not in topics:
        raise NoTelemetry(
            f"the cluster has no {TELEMETRY_TOPIC}: its brokers are not Insync's, have "
            "telemetry.enable=false, or have led nothing yet"
        )
    return topics[TELEMETRY_TOPIC]


async def _span(cluster: Cluster, partition: int) -> Span:
    client = cluster.client(partition)
    try:
        start, end = await _patiently(client.bounds(), cluster, f"{TELEMETRY_TOPIC}-{partition}")
    finally:
        await client.close()
    return Span(partition=partition, start=start, end=end)


async def _patiently(asking: Awaitable[T], cluster: Cluster, what: str) -> T:
    try:
        async with asyncio.timeout(cluster.patience_ms / 1_000):
            return await asking
    except TimeoutError:
        why = f"nobody answers for it within {cluster.patience_ms} ms"
    except Refused as refused:
        why = str(refused)
    raise Unreadable(f"cannot read {what}: {why}")


def another_topic(topic_id: str, former_id: str | None) -> Unreadable:
    return Unreadable(
        f"{TELEMETRY_TOPIC} has the id {topic_id}, and had {former_id}: the topic was made anew, "
        "or it is another cluster's; stream it into another folder"
    )


def went_back(partition: int, end: int, former_end: int) -> Unreadable:
    return Unreadable(
        f"{TELEMETRY_TOPIC}-{partition} ends at {end}, before {former_end} where it once did: "
        "blocks were lost, or the topic was made anew"
    )


def blocks(cluster: Cluster, span: Span) -> Iterator[Block]:
    """Every offset's block in order; what retention took before we came is told of as one error."""
    client = cluster.client(span.partition)
    offset, last_heard_s = span.start, time.monotonic()
    with asyncio.Runner() as runner:
        try:
            while offset < span.end:
                reading = client.read_batches(offset, max_bytes=READ_BYTES, from_start=True)
                what = f"{TELEMETRY_TOPIC}-{span.partition} at offset {offset}"
                part = runner.run(_patiently(reading, cluster, what))
                before = offset
                if part.log_start > offset:
                    gone = min(part.log_start, span.end)
                    yield Block(offset=offset, error=f"gone by retention: {offset} to {gone - 1}")
                    offset = part.log_start
                for found in parts(part.records or b"", offset=offset):
                    yield from _blocks(found, span.end)
                    offset = found.next_offset
                if offset > before:
                    last_heard_s = time.monotonic()
                elif time.monotonic() > last_heard_s + cluster.patience_ms / 1_000:
                    raise _no_batch(span, offset, part.high_watermark)
        finally:
            runner.run(client.close())


def _no_batch(span: Span, offset: int, high_watermark: int) -> Unreadable:
    if high_watermark < span.end:  # a new leader's may be behind for a moment, not for so long
        return went_back(span.partition, high_watermark, span.end)
    return Unreadable(f"{TELEMETRY_TOPIC}-{span.partition} has no batch at offset {offset}")


def _blocks(part: Part, end: int) -> Iterator[Block]:
    if part.trouble and part.offset < end:
        yield Block(offset=part.offset, error=part.trouble)
    for record in part.records:
        if record.offset < end:
            yield block_of(record)


def block_of(record: Record) -> Block:
    try:
        label = read_label(record.key)
    except BadBlock as refusal:
        return Block(offset=record.offset, error=str(refusal))
    return Block(offset=record.offset, label=label, data=record.value or b"")
