"""Blocks of the telemetry topic, read from brokers by partition and range of offsets.

Runs in Spark's workers, and on the driver for the bounds. Insync's own client returns batches as
they are stored, so that a damaged batch is reported and does not end the read.
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
    """The cluster has no telemetry topic."""


class Unreadable(Refusal):
    """No broker serves a partition of the telemetry topic, or not from that offset on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The brokers to read from, and how long to wait for a partition without a leader."""

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
    """A labelled block at an offset, or the error that is there instead."""

    offset: int
    label: Label | None = None
    data: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The offsets of the topic now, by partition. A topic that is created again has another id."""

    topic_id: str
    spans: list[Span]


def topic_id(cluster: Cluster) -> str:
    return str(asyncio.run(_topic(cluster)).topic_id)


def contents(cluster: Cluster) -> Contents:
    async def read() -> Contents:
        topic = await _topic(cluster)
        spans = await asyncio.gather(*(_span(cluster, each.number) for each in topic.partitions))
        return Contents(topic_id=str(topic.topic_id), spans=list(spans))

    return asyncio.run(read())


async def _topic(cluster: Cluster) -> Topic:
    patience = Patience(operation_ms=cluster.patience_ms)
    connections = Connections(Sockets(), parse_bootstrap(cluster.bootstrap), patience=patience)
    async with Admin(connections) as admin:
        topics = {topic.name: topic for topic in await admin.topics()}
    if TELEMETRY_TOPIC not in topics:
        raise NoTelemetry(
            f"the cluster has no {TELEMETRY_TOPIC}: its brokers are not Insync's, have "
            "telemetry.enable=false, or have not led a partition yet"
        )
    return topics[TELEMETRY_TOPIC]


async def _span(cluster: Cluster, partition: int) -> Span:
    client = cluster.client(partition)
    try:
        name = f"{TELEMETRY_TOPIC}-{partition}"
        start, end = await _within_patience(client.bounds(), cluster, name)
    finally:
        await client.close()
    return Span(partition=partition, start=start, end=end)


async def _within_patience(request: Awaitable[T], cluster: Cluster, what: str) -> T:
    try:
        async with asyncio.timeout(cluster.patience_ms / 1_000):
            return await request
    except TimeoutError:
        why = f"no broker answers for it within {cluster.patience_ms} ms"
    except Refused as refused:
        why = str(refused)
    raise Unreadable(f"cannot read {what}: {why}")


def another_topic(topic_id: str, former_id: str | None) -> Unreadable:
    return Unreadable(
        f"{TELEMETRY_TOPIC} has the id {topic_id}, and had {former_id}: the topic was created "
        "again, or belongs to another cluster; stream it into another folder"
    )


def went_back(partition: int, end: int, former_end: int) -> Unreadable:
    return Unreadable(
        f"{TELEMETRY_TOPIC}-{partition} ends at {end}, and ended at {former_end} before: "
        "blocks were lost, or the topic was created again"
    )


def blocks(cluster: Cluster, span: Span) -> Iterator[Block]:
    """The block of every offset in order; offsets that retention deleted are one error."""
    client = cluster.client(span.partition)
    offset, last_progress_s = span.start, time.monotonic()
    with asyncio.Runner() as runner:
        try:
            while offset < span.end:
                reading = client.read_batches(offset, max_bytes=READ_BYTES, from_start=True)
                what = f"{TELEMETRY_TOPIC}-{span.partition} at offset {offset}"
                answer = runner.run(_within_patience(reading, cluster, what))
                before = offset
                if answer.log_start > offset:
                    last = min(answer.log_start, span.end) - 1
                    yield Block(offset=offset, error=f"deleted by retention: {offset} to {last}")
                    offset = answer.log_start
                for batch in parts(answer.records or b"", offset=offset):
                    yield from _blocks(batch, span.end)
                    offset = batch.next_offset
                if offset > before:
                    last_progress_s = time.monotonic()
                elif time.monotonic() > last_progress_s + cluster.patience_ms / 1_000:
                    raise _no_batch(span, offset, answer.high_watermark)
        finally:
            runner.run(client.close())


def _no_batch(span: Span, offset: int, high_watermark: int) -> Unreadable:
    if high_watermark < span.end:  # a new leader's may be behind, but only for a moment
        return went_back(span.partition, high_watermark, span.end)
    return Unreadable(f"{TELEMETRY_TOPIC}-{span.partition} has no batch at offset {offset}")


def _blocks(batch: Part, end: int) -> Iterator[Block]:
    if batch.trouble and batch.offset < end:
        yield Block(offset=batch.offset, error=batch.trouble)
    for record in batch.records:
        if record.offset < end:
            yield block_of(record)


def block_of(record: Record) -> Block:
    try:
        label = read_label(record.key)
    except BadBlock as refusal:
        return Block(offset=record.offset, error=str(refusal))
    return Block(offset=record.offset, label=label, data=record.value or b"")
