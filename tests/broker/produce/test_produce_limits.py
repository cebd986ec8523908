"""How many batches, records and offsets one Produce request may claim: as Apache Kafka allows."""

from __future__ import annotations

import asyncio
import struct

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop
from insync.wire import batches
from insync.wire.apis import Api
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)
from support.sim.few_brokers import KEY, client_of, isr_of, play, replica_of, topic, until
from support.sim.one_broker import PRODUCE_VERSION, TOPIC, Client, OneBroker, on_virtual_time

MOST = 2**31 - 1  # records that one header can claim
GZIP = 1

NONE, INVALID, CORRUPT = ErrorCode.none, ErrorCode.invalid_record, ErrorCode.corrupt_message


def reseal(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch)


def claiming(
    count: int, delta: int | None = None, *, attributes: int = GZIP, size: int = 3_400
) -> bytes:
    """A batch under a valid CRC whose header claims what it likes.

    Compressed unless said otherwise: how many records that is, only decompressing it would tell.
    """
    batch = bytearray(batches.build([(None, b"v" * size)], timestamp_ms=1))
    struct.pack_into(">hi", batch, 21, attributes, count - 1 if delta is None else delta)
    struct.pack_into(">i", batch, 57, count)
    return reseal(batch)


GOOD = batches.build([(None, b"one"), (None, b"two")], timestamp_ms=1)


def produce_body(topic_name: str, records: bytes, acks: int = -1) -> bytes:
    request = ProduceRequest(None, acks, 1_000, [ProducePartition(topic_name, 0, records)])
    return write_produce_request(PRODUCE_VERSION, request)


async def produce(client: Client, records: bytes, acks: int = -1) -> tuple[ErrorCode, int]:
    body = produce_body(TOPIC, records, acks)
    frame, at = await client.connection.ask(Api.PRODUCE, PRODUCE_VERSION, [body])
    (result,) = read_produce_response(PRODUCE_VERSION, frame, at).results
    return ErrorCode(result.error), result.base_offset


def with_byte(at: int, value: int) -> bytes:
    batch = bytearray(GOOD)
    batch[at] = value
    return bytes(batch)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (claiming(MOST) * 3, INVALID),
        (GOOD * 2, INVALID),
        (GOOD * 20_000, INVALID),
        (GOOD + claiming(MOST), INVALID),
        (GOOD + GOOD[:-1], CORRUPT),
        (GOOD + b"tail", CORRUPT),
        (b"", INVALID),
        (GOOD[:60], INVALID),
        (GOOD[:-1], INVALID),
        (with_byte(8, 0xFF), CORRUPT),
        (with_byte(16, 1), INVALID),
        (claiming(0), INVALID),
        (claiming(0, 0), INVALID),
        (claiming(-1), INVALID),
        (claiming(-(2**31), 2**31 - 1), INVALID),
        (claiming(1, -1), INVALID),
        (claiming(1, MOST), INVALID),
        (claiming(MOST, MOST), INVALID),
        (claiming(MOST, 0), INVALID),
        (claiming(2, 0), INVALID),
        (claiming(MOST, attributes=0), INVALID),
        (claiming(500, attributes=0), INVALID),
        (with_byte(60, 9), CORRUPT),
        (with_byte(26, 9), CORRUPT),
    ],
    ids=[
        *("three of the most", "two", "many", "good and greedy", "good and half", "tail", "none"),
        *("half a header", "half a batch", "negative length", "magic", "no records", "delta of 0"),
        *("negative", "most negative", "negative delta", "delta of the most", "delta of one more"),
        *("most and no delta", "delta too small", "most in plain", "more than bytes allow"),
        *("damaged count", "damaged delta"),
    ],
)
def test_a_request_that_kafka_refuses_is_refused_and_nothing_is_appended(
    records: bytes, expected: ErrorCode
) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=1)
        client = await broker.client()
        assert await produce(client, GOOD) == (NONE, 0)
        for acks in (1, -1):
            assert await produce(client, records, acks) == (expected, -1)
        assert await produce(client, GOOD) == (NONE, 2)
        response = await client.fetch({0: 0})
        ((_, (fetched,)),) = response.topics
        assert fetched.high_watermark == 4
        assert len(fetched.records or b"") == 2 * len(GOOD)

    on_virtual_time(scenario)


def test_as_many_records_as_bytes_allow_are_appended() -> None:
    """The smallest record takes seven bytes, without key, value and headers."""

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=1)
        client = await broker.client()
        smallest = batches.build([(None, None)] * 60, timestamp_ms=1)
        assert len(smallest) == batches.HEADER_BYTES + 60 * 7
        assert await produce(client, smallest) == (NONE, 0)

    on_virtual_time(scenario)


def test_a_failed_log_acknowledges_no_repeated_batch() -> None:
    """It may have lost records: whether a batch was appended, the next leader decides."""

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=1)
        client = await broker.client()
        batch = batches.build(
            [(None, b"x")], timestamp_ms=1, producer_id=7, producer_epoch=0, base_sequence=0
        )
        assert await produce(client, batch, 1) == (NONE, 0)
        assert await produce(client, batch, 1) == (NONE, 0), "a duplicate"
        broker.node.replicas.partitions[(TOPIC, 0)].log.fail("of a test")
        code, offset = await produce(client, batch, 1)
        assert code in (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
        assert offset == -1

    on_virtual_time(scenario)


def test_a_log_without_offsets_left_refuses_with_an_error_that_is_not_retried() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=1)
        broker.node.replicas.partitions[(TOPIC, 0)].log.truncate_fully(2**63 - 3)
        client = await broker.client()
        for records in (claiming(MOST), claiming(3), GOOD + GOOD):
            code, offset = await produce(client, records, 1)
            expected = INVALID if records == GOOD + GOOD else ErrorCode.unknown_server_error
            assert (code, offset) == (expected, -1)
        assert await produce(client, GOOD, 1) == (NONE, 2**63 - 3)
        for _ in range(2):
            assert await produce(client, GOOD, 1) == (ErrorCode.unknown_server_error, -1)
        response = await client.fetch({0: 2**63 - 2})
        ((_, (fetched,)),) = response.topics
        assert bytes(fetched.records or b"")[8:] == GOOD[8:12] + bytes(4) + GOOD[16:]

    on_virtual_time(scenario)


# Replicated, and after a restart


async def send(client: SimClient, records: bytes) -> tuple[ErrorCode, int]:
    answer = await client._ask_leader(Api.PRODUCE, PRODUCE_VERSION, produce_body(KEY[0], records))
    assert answer is not None
    (result,) = read_produce_response(PRODUCE_VERSION, *answer).results
    return ErrorCode(result.error), result.base_offset


async def restart_all(cluster: Cluster) -> None:
    for number in cluster.brokers:
        cluster.kill(number)
    await asyncio.sleep(1)
    for number in cluster.brokers:
        await cluster.start(number)


@pytest.mark.parametrize("is_one_request", [True, False])
def test_batches_that_use_many_offsets_lose_no_acknowledged_record_and_no_follower(
    *, is_one_request: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, config={"min.insync.replicas": "3"})
        client, offsets = client_of(cluster), list[int]()
        for number in range(10):
            offsets.append(await client.append([b"%d" % number]))
        if is_one_request:
            assert await send(client, claiming(MOST) * 3) == (INVALID, -1)
        else:
            for number in range(3):
                assert await send(client, claiming(MOST)) == (NONE, 10 + number * MOST)
        for number in range(10, 30):
            offsets.append(await client.append([b"%d" % number]))
        skipped = 0 if is_one_request else 3 * MOST
        assert offsets == [*range(10), *range(10 + skipped, 30 + skipped)]
        await asyncio.sleep(60)
        assert isr_of(cluster) == [1, 2, 3]
        await restart_all(cluster)
        await until(lambda: all(replica_of(cluster, n).log.end == 30 + skipped for n in (1, 2, 3)))
        for number, offset in enumerate(offsets):
            values, _ = await client.read(offset, max_bytes=1)
            assert values[:1] == [b"%d" % number]

    play(scenario)
