"""The HTTP server of /metrics: its answers, its errors, and when it closes connections."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from insync.broker.observability.metrics_http import (
    CONNECTIONS_MAX,
    FRESH_MS,
    REQUEST_TIMEOUT_S,
    MetricsHttp,
)
from insync.sim.virtual_loop import VirtualLoop
from insync.telemetry.schemas import TABLES
from support.sim.one_broker import OneBroker, on_virtual_time

CLIENT = 100
INTERVAL_S = 60
PRODUCED = 400
GET = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"


class Visitor(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def status(self) -> int:
        return int(self.received.split(b" ")[1])


Visit = Callable[[bytes], Coroutine[Any, Any, tuple[Visitor, asyncio.Transport]]]


def visiting(
    scenario: Callable[[VirtualLoop, OneBroker, Visit], Coroutine[Any, Any, None]], **settings: str
) -> None:
    async def whole(loop: VirtualLoop) -> None:
        one = OneBroker(loop, metrics_port="9100", metrics_host="broker", **settings)
        await one.start(partitions=1)

        async def visit(sends: bytes) -> tuple[Visitor, asyncio.Transport]:
            visitor = Visitor()
            transport = await one.network.connect(CLIENT, ("broker", 9_100), visitor)
            if sends:
                transport.write(sends)
            return visitor, transport

        await scenario(loop, one, visit)
        await one.node.stop()

    on_virtual_time(whole)


def test_requests_are_answered() -> None:
    async def scenario(_loop: VirtualLoop, one: OneBroker, visit: Visit) -> None:
        client = await one.client()
        await client.produce(0, b"a", b"b", b"c")
        visitor, _transport = await visit(GET)
        await visitor.ended
        head, _, body = visitor.received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
        assert f"Content-Length: {len(body)}\r\n".encode() in head
        assert b"\nkafka_server_brokertopicmetrics_messagesin_total 3.0\n" in body
        assert b"\nkafka_server_replicamanager_leadercount 1.0\n" in body
        assert b"\nprocess_resident_memory_bytes " in body
        visitor, _transport = await visit(GET.replace(b"GET", b"HEAD"))
        await visitor.ended
        assert visitor.status == 200
        assert visitor.received.endswith(b"\r\n\r\n")

    visiting(scenario)


def test_dropped_telemetry_rows_are_counted_by_table() -> None:
    async def scenario(_loop: VirtualLoop, one: OneBroker, visit: Visit) -> None:
        async def dropped() -> dict[bytes, float]:
            visitor, _transport = await visit(GET)
            await visitor.ended
            counts = re.findall(
                rb'\ninsync_telemetry_dropped_rows_total{table="(\w+)"} (\S+)', visitor.received
            )
            return {table: float(rows) for table, rows in counts}

        nothing = {name.encode(): 0 for name in TABLES}
        assert await dropped() == nothing
        client = await one.client()
        for _ in range(PRODUCED):
            await client.produce(0, b"a")
        assert one.node.publisher is not None
        kept = len(one.node.publisher.recorder.rows["appends"])
        assert kept < PRODUCED
        await asyncio.sleep(1)
        # Each append is a row, and so is the beginning of the leader's term.
        lost = {**nothing, b"appends": PRODUCED + 1 - kept}
        assert await dropped() == lost
        await asyncio.sleep(INTERVAL_S)
        await client.produce(0, b"there is room again")
        await asyncio.sleep(1)
        assert await dropped() == lost, "they stay lost, and no others are"

    visiting(
        scenario,
        telemetry_enable="true",
        telemetry_publish_interval_ms=str(INTERVAL_S * 1_000),
        telemetry_buffer_bytes="65536",
    )


def test_a_broker_without_telemetry_drops_no_rows() -> None:
    async def scenario(_loop: VirtualLoop, _one: OneBroker, visit: Visit) -> None:
        visitor, _transport = await visit(GET)
        await visitor.ended
        tables = visitor.received.count(b"\ninsync_telemetry_dropped_rows_total{")
        assert tables == visitor.received.count(b"} 0.0\n") == len(TABLES)

    visiting(scenario)


@pytest.mark.parametrize(
    ("sends", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metricss HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics?x=1 HTTP/1.0\n\n", 200),
        (b"GET /metrics?partitions=all HTTP/1.1\n\n", 200),
        (b"GET /metrics?\xff=%1&x&partitions=all HTTP/1.1\n\n" + GET, 200),
        (b"GET /metrics?partitions=some HTTP/1.1\n\n", 400),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"\0\1\2\xff\n\n", 400),
        (b"\n\n", 400),
        (b"GET /" + b"x" * 10_000, 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 2_000, 431),
        (GET + GET + b"more", 200),
    ],
)
def test_every_request_gets_one_answer(sends: bytes, status: int) -> None:
    async def scenario(_: VirtualLoop, __: OneBroker, visit: Visit) -> None:
        visitor, transport = await visit(sends[:3])
        for position in range(3, len(sends), 1_000):
            transport.write(sends[position : position + 1_000])
        await visitor.ended
        assert visitor.status == status
        assert visitor.received.count(b"HTTP/1.1 ") == 1

    visiting(scenario)


def test_a_client_that_sends_no_whole_request_is_disconnected() -> None:
    async def scenario(loop: VirtualLoop, _: OneBroker, visit: Visit) -> None:
        began_s = loop.time()
        visitor, transport = await visit(b"GET /met")
        for _turn in range(100):
            await asyncio.sleep(0.5)
            if visitor.ended.done():
                break
            transport.write(b"r")
        assert visitor.received == b""
        assert loop.time() - began_s == pytest.approx(REQUEST_TIMEOUT_S, abs=0.6)

    visiting(scenario)


def test_beyond_the_limit_the_oldest_connection_is_closed() -> None:
    async def scenario(_: VirtualLoop, __: OneBroker, visit: Visit) -> None:
        mute = [(await visit(b""))[0] for _ in range(CONNECTIONS_MAX + 3)]
        await asyncio.sleep(1)
        assert [visitor.ended.done() for visitor in mute] == [True] * 3 + [False] * CONNECTIONS_MAX
        visitor, _transport = await visit(GET)
        await visitor.ended
        assert visitor.status == 200

    visiting(scenario)


def http_of(
    loop: VirtualLoop,
    collect: Callable[[], bytes],
    collect_all: Callable[[], Iterator[bytes]] = lambda: iter([b"all"]),
) -> MetricsHttp:
    return MetricsHttp(collect, collect_all=collect_all, clock_ms=loop.clock_ms)


class DeafTransport(asyncio.Transport):
    """A transport whose peer does not read: it accepts all writes and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass  # only once all is sent

    def abort(self) -> None:
        self.is_aborted = True


class RecordingTransport(DeafTransport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def write(self, data: object) -> None:
        self.sent += cast("bytes", data)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        scrape = http_of(loop, lambda: b"text").connection()
        transport = DeafTransport()
        scrape.connection_made(transport)
        scrape.data_received(GET)
        await asyncio.sleep(REQUEST_TIMEOUT_S - 0.1)
        assert not transport.is_aborted
        await asyncio.sleep(0.2)
        assert transport.is_aborted

    on_virtual_time(scenario)


def test_frequent_scrapes_share_one_collection() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        collected = 0

        def collect() -> bytes:
            nonlocal collected
            collected += 1
            return b"text"

        scrapes = http_of(loop, collect)
        for _ in range(50):
            assert scrapes.text() == b"text"
        assert collected == 1
        await asyncio.sleep(FRESH_MS / 1_000)
        scrapes.text()
        assert collected == 2

    on_virtual_time(scenario)


def test_a_failed_collection_is_a_server_error() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        scrape = http_of(loop, lambda: b"%d" % (1 // 0)).connection()
        transport = RecordingTransport()
        scrape.connection_made(transport)
        scrape.data_received(GET)
        assert transport.sent.startswith(b"HTTP/1.1 500 ")
        scrape.connection_lost(None)

    on_virtual_time(scenario)


def test_all_partitions_are_collected_in_turns_and_shared() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        begun, others = 0, 0

        def collect_all() -> Iterator[bytes]:
            nonlocal begun
            begun += 1
            for turn in range(10):
                yield b"%d" % turn

        async def run_others() -> None:
            nonlocal others
            for _ in range(10):
                await asyncio.sleep(0)
                others += 1

        server = http_of(loop, lambda: b"text", collect_all)
        transports = [RecordingTransport() for _ in range(3)]
        for transport in transports:
            scrape = server.connection()
            scrape.connection_made(transport)
            scrape.data_received(GET.replace(b"/metrics", b"/metrics?partitions=all"))
            assert transport.sent == b""
        other = asyncio.create_task(run_others())
        while not all(transport.sent for transport in transports):
            await asyncio.sleep(0)
        assert others >= 9, "between any two turns"
        assert {transport.sent.rpartition(b"\r\n")[2] for transport in transports} == {
            b"0123456789"
        }
        assert begun == 1
        await server.text_of_all_partitions()
        assert begun == 1, "it is fresh"
        await asyncio.sleep(FRESH_MS / 1_000)
        await server.text_of_all_partitions()
        assert begun == 2
        await other

    on_virtual_time(scenario)


def test_a_failed_collection_of_all_partitions_is_a_server_error() -> None:
    def fail() -> Iterator[bytes]:
        yield b"%d" % (1 // 0)

    async def scenario(loop: VirtualLoop) -> None:
        transport = RecordingTransport()
        scrape = http_of(loop, lambda: b"text", fail).connection()
        scrape.connection_made(transport)
        scrape.data_received(GET.replace(b"/metrics", b"/metrics?partitions=all"))
        await asyncio.sleep(1)
        assert transport.sent.startswith(b"HTTP/1.1 500 ")

    on_virtual_time(scenario)
