"""Microseconds per operation of the hand-written Fetch codec, beside kio's.

Run: .venv/bin/python bench/wire.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from io import BytesIO
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from insync.wire import fetch, frames, headers, messages, produce
from insync.wire.apis import Api

VERSION = 18
SECONDS_PER_FIGURE = 0.3
TOPIC = UUID(int=7)
HUNDRED_BYTES = b"r" * 100
MEBIBYTE = bytes(1024 * 1024)


def us_per_op(operation: Callable[[], object]) -> float:
    """The best of five rounds: what the code costs when nothing else runs."""
    count, best = 1, float("inf")
    while True:
        started = time.process_time()
        for _ in range(count):
            operation()
        taken = time.process_time() - started
        if taken > SECONDS_PER_FIGURE / 5:
            break
        count *= 2
    for _ in range(5):
        started = time.process_time()
        for _ in range(count):
            operation()
        best = min(best, (time.process_time() - started) / count)
    return best * 1e6


def fetch_request(partitions: int, *, topics: int) -> fetch.FetchRequest:
    each = partitions // topics
    rows = [fetch.FetchPartition(n, 3, 1000 + n, 3, 0, 1_048_576) for n in range(each)]
    return fetch.FetchRequest(
        replica_id=2,
        replica_epoch=9,
        max_wait_ms=500,
        min_bytes=1,
        session_id=5,
        session_epoch=6,
        topics=[fetch.FetchTopic(UUID(int=n + 1), rows) for n in range(topics)],
    )


def fetch_response(partitions: int) -> fetch.FetchResponse:
    rows = [
        fetch.FetchedPartition(n, 0, 1000, 1000, 0, records=HUNDRED_BYTES)
        for n in range(partitions)
    ]
    return fetch.FetchResponse(session_id=5, topics=[(TOPIC, rows)])


def show(what: str, ours: float, theirs: float | None = None) -> None:
    beside = "" if theirs is None else f"   kio {theirs:10.2f}   {theirs / ours:6.1f}x"
    print(f"{what:<44} {ours:10.2f}{beside}")  # noqa: T201


def show_fetch(partitions: int, *, topics: int = 1) -> None:
    body = fetch.write_fetch_request(VERSION, fetch_request(partitions, topics=topics))
    request_type = messages.request_type(Api.FETCH, VERSION)
    kio_read, kio_write = entity_reader(request_type), entity_writer(request_type)
    entity, _ = kio_read(body, 0)
    request = fetch.read_fetch(VERSION, body, 0)
    of = f"{partitions} partitions" + (f" in {topics} topics" if topics > 1 else "")
    show(
        f"read Fetch request, {of}",
        us_per_op(lambda: fetch.read_fetch(VERSION, body, 0)),
        us_per_op(lambda: kio_read(body, 0)),
    )
    show(
        f"write Fetch request, {of}",
        us_per_op(lambda: fetch.write_fetch_request(VERSION, request)),
        us_per_op(lambda: kio_write(BytesIO(), entity)),
    )


def show_fetched(partitions: int) -> None:
    response = fetch_response(partitions)
    body = b"".join(fetch.write_fetch_response(VERSION, response))
    response_type = messages.response_type(Api.FETCH, VERSION)
    kio_read, kio_write = entity_reader(response_type), entity_writer(response_type)
    entity, _ = kio_read(body, 0)
    show(
        f"write Fetch response, {partitions} partitions",
        us_per_op(lambda: fetch.write_fetch_response(VERSION, response)),
        us_per_op(lambda: kio_write(BytesIO(), entity)),
    )
    show(
        f"read Fetch response, {partitions} partitions",
        us_per_op(lambda: fetch.read_fetch_response(VERSION, body, 0)),
        us_per_op(lambda: kio_read(body, 0)),
    )


def show_produce() -> None:
    request = produce.ProduceRequest(
        None, -1, 30_000, [produce.ProducePartition(TOPIC, 0, MEBIBYTE)]
    )
    body = produce.write_produce_request(13, request)
    result = [produce.ProduceResult(TOPIC, 0, 0, 1234)]
    kio_read = entity_reader(messages.request_type(Api.PRODUCE, 13))
    show(
        "read Produce, 1 partition, 1 MiB",
        us_per_op(lambda: produce.read_produce(13, body, 0)),
        us_per_op(lambda: kio_read(body, 0)),
    )
    show("write Produce response", us_per_op(lambda: produce.write_produce_response(13, result)))


def show_frames() -> None:
    header = headers.write_request_header(
        api_key=Api.PRODUCE, api_version=13, correlation_id=1, client_id="rdkafka"
    )
    show("read request header", us_per_op(lambda: headers.read_request_header(header)))
    for size, chunk in ((200, 200), (1024 * 1024, 65_536), (1024 * 1024, 262_144)):
        stream = size.to_bytes(4, "big") + bytes(size)
        chunks = [stream[at : at + chunk] for at in range(0, len(stream), chunk)]

        def receive(chunks: list[bytes] = chunks) -> object:
            buffer = frames.FrameBuffer()
            for piece in chunks:
                buffer.receive(piece)
            return buffer.next_frame()

        show(f"frame of {size} bytes in chunks of {chunk}", us_per_op(receive))


def show_metadata() -> None:
    of = messages.response_type(Api.METADATA, 12)
    schema = import_module(of.__module__)
    broker = schema.MetadataResponseBroker(node_id=1, host="localhost", port=9092, rack=None)
    partition = schema.MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=1,
        leader_epoch=1,
        replica_nodes=(1, 2, 3),
        isr_nodes=(1, 2, 3),
        offline_replicas=(),
    )
    topic = schema.MetadataResponseTopic(
        error_code=ErrorCode.none, name="t", topic_id=TOPIC, partitions=(partition,) * 100
    )
    entity = of(
        throttle_time=timedelta(0),
        brokers=(broker,) * 3,
        cluster_id="c",
        controller_id=1,
        topics=(topic,),
    )
    body = messages.write_response(entity)
    kio_read, kio_write = entity_reader(of), entity_writer(of)
    show(
        "read Metadata response, 100 partitions",
        us_per_op(lambda: messages.read_response(Api.METADATA, 12, body, 0)),
        us_per_op(lambda: kio_read(body, 0)),
    )
    show(
        "write Metadata response, 100 partitions",
        us_per_op(lambda: messages.write_response(entity)),
        us_per_op(lambda: kio_write(BytesIO(), entity)),
    )


def main() -> None:
    show_frames()
    show_produce()
    for partitions in (0, 1, 100, 1000):
        show_fetch(partitions)
        show_fetched(partitions)
    show_fetch(1000, topics=1000)
    show_metadata()


if __name__ == "__main__":
    main()
