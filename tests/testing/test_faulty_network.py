"""Links between two brokers, and from clients, over real sockets of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import uvloop

from insync.client.connection import ClientConnection
from insync.node.process import SocketNetwork
from insync.node.world import Listener
from insync.testing.faulty_network import (
    CLIENTS,
    UNSENT_BYTES_MAX,
    Cut,
    FaultyNetwork,
    caller_of,
)
from insync.testing.processes import HOST, free_ports
from insync.wire.apis import Api
from insync.wire.headers import write_request_header
from insync.wire.hello import HelloRequest, write_hello_request

QUIET_S = 0.1
"""Long enough for a byte that gets through to have arrived."""

ONE, OTHER = 1, 2
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def hello(broker: int) -> bytes:
    frame = write_request_header(
        api_key=Api.BROKER_HELLO, api_version=0, correlation_id=0, client_id="broker"
    ) + write_hello_request(HelloRequest(broker, 1))
    return len(frame).to_bytes(4, "big") + frame


class End(asyncio.Protocol):
    """Records every call."""

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False
        self.is_paused = False
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        assert not self.is_lost, "notified twice"
        self.is_lost = True
        self.changed.set()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Two:
    """Broker 1, which listens, and broker 2, which connects; a client has no FaultyNetwork."""

    def __init__(self) -> None:
        self.one, self.other = FaultyNetwork(SocketNetwork()), FaultyNetwork(SocketNetwork())
        (self.port,) = free_ports(1)
        self.accepted: asyncio.Queue[End] = asyncio.Queue()
        self.ends: list[End] = []
        self.listener: Listener

    def end(self) -> End:
        self.ends.append(End())
        return self.ends[-1]

    async def stop(self) -> None:
        """uvloop hangs when a loop with an open connection is closed."""
        self.listener.close()
        for end in self.ends:
            if hasattr(end, "transport") and not end.is_lost:
                end.transport.abort()
        await asyncio.sleep(0)

    def _accept(self) -> End:
        end = self.end()
        self.accepted.put_nowait(end)
        return end

    async def listen(self) -> None:
        self.listener = await self.one.listen(HOST, self.port, self._accept)

    async def call(self, first: bytes, network: FaultyNetwork | None = None) -> tuple[End, End]:
        end = self.end()
        via = network or SocketNetwork()
        await via.connect(HOST, self.port, cast("ClientConnection", end))
        there = await self.accepted.get()
        end.transport.writelines([first])
        await there.until(lambda: there.received == first)
        there.received = b""
        return end, there

    async def call_as_broker(self) -> tuple[End, End]:
        return await self.call(hello(OTHER), self.other)

    def cut(self, *, to_one: bool = True, to_other: bool = True) -> None:
        self.one.cut(Cut(peer=OTHER, port=9, sends=to_other, receives=to_one))
        self.other.cut(Cut(peer=ONE, port=self.port, sends=to_one, receives=to_other))

    def mend(self) -> None:
        self.one.mend()
        self.other.mend()


RunScenario = Callable[[Callable[[Two], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS)
def run_scenario(request: pytest.FixtureRequest) -> RunScenario:
    def run(scenario: Callable[[Two], Awaitable[None]]) -> None:
        async def run_with_two() -> None:
            two = Two()
            await two.listen()
            try:
                async with asyncio.timeout(30):
                    await scenario(two)
            finally:
                await two.stop()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(run_with_two())

    return run


async def nothing_arrives(*ends: End) -> None:
    before = [(end.received, end.is_lost) for end in ends]
    await asyncio.sleep(QUIET_S)
    assert [(end.received, end.is_lost) for end in ends] == before


def test_bytes_arrive_both_ways_without_faults(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call_as_broker()
        here.transport.write(b"ab")
        there.transport.writelines([b"x", b"y"])
        await there.until(lambda: there.received == b"ab")
        await here.until(lambda: here.received == b"xy")
        here.transport.close()
        await there.until(lambda: there.is_lost)
        await here.until(lambda: here.is_lost)

    run_scenario(scenario)


def test_a_cut_stops_an_open_connection_without_closing_it(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call_as_broker()
        two.cut()
        here.transport.write(b"ab")
        there.transport.write(b"xy")
        await nothing_arrives(here, there)
        two.mend()
        await there.until(lambda: there.received == b"ab")
        await here.until(lambda: here.received == b"xy")
        here.transport.write(b"cd")
        await there.until(lambda: there.received == b"abcd")

    run_scenario(scenario)


@pytest.mark.parametrize("cutting", ["one", "other"])
def test_either_end_can_cut_alone(run_scenario: RunScenario, cutting: str) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call_as_broker()
        if cutting == "one":
            two.one.cut(Cut(peer=OTHER))
        else:
            two.other.cut(Cut(peer=ONE, port=two.port))
        here.transport.write(b"ab")
        there.transport.write(b"xy")
        await nothing_arrives(here, there)

    run_scenario(scenario)


def test_one_way_stops_one_way(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call_as_broker()
        two.cut(to_one=False)
        here.transport.write(b"ab")
        there.transport.write(b"xy")
        await there.until(lambda: there.received == b"ab")
        await nothing_arrives(here)
        two.mend()
        await here.until(lambda: here.received == b"xy")

    run_scenario(scenario)


@pytest.mark.parametrize("closing", ["here", "there"])
def test_a_close_is_seen_at_once_by_its_end_and_later_by_the_other(
    run_scenario: RunScenario, closing: str
) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call_as_broker()
        gone, left = (here, there) if closing == "here" else (there, here)
        two.cut()
        gone.transport.close()
        await gone.until(lambda: gone.is_lost)
        assert gone.transport.is_closing()
        await nothing_arrives(left)
        two.mend()
        await left.until(lambda: left.is_lost)
        await nothing_arrives(gone)

    run_scenario(scenario)


def test_a_connect_waits_until_the_link_is_mended(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        two.cut()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                await two.call_as_broker()
        waiting = asyncio.ensure_future(two.call_as_broker())
        await asyncio.sleep(QUIET_S)
        assert two.accepted.empty()
        two.mend()
        await waiting

    run_scenario(scenario)


def test_clients_are_cut_off_and_brokers_are_not(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call(b"\0\0\0\x0a\0\x12")
        two.one.cut(Cut(peer=CLIENTS))
        here.transport.write(b"ab")
        there.transport.write(b"xy")
        late = two.end()
        await SocketNetwork().connect(HOST, two.port, cast("ClientConnection", late))
        late_there = await two.accepted.get()
        late.transport.write(b"\0\0\0\x0a\0\x12")
        await nothing_arrives(here, there, late, late_there)
        await two.call_as_broker()
        two.one.mend()
        await there.until(lambda: there.received == b"ab")
        await here.until(lambda: here.received == b"xy")
        await late_there.until(lambda: late_there.received == b"\0\0\0\x0a\0\x12")

    run_scenario(scenario)


def test_brokers_are_cut_off_and_clients_are_not(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        two.cut()
        here, there = await two.call(b"\0\0\0\x0a\0\x12")
        there.transport.write(b"xy")
        await here.until(lambda: here.received == b"xy")

    run_scenario(scenario)


def test_a_sender_is_paused_and_resumed(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call_as_broker()
        two.cut()
        here.transport.write(b"a" * (UNSENT_BYTES_MAX - 1))
        pauses = [here.is_paused]
        here.transport.write(b"a")
        pauses.append(here.is_paused)
        two.mend()
        await there.until(lambda: len(there.received) == UNSENT_BYTES_MAX)
        assert [*pauses, here.is_paused] == [False, True, False]

    run_scenario(scenario)


def test_a_pause_of_reading_outlasts_the_cut(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        here, there = await two.call_as_broker()
        two.cut()
        there.transport.pause_reading()
        here.transport.write(b"ab")
        two.mend()
        await nothing_arrives(there)
        there.transport.resume_reading()
        await there.until(lambda: there.received == b"ab")

    run_scenario(scenario)


def test_a_broker_ends_though_its_links_are_cut(run_scenario: RunScenario) -> None:
    async def scenario(two: Two) -> None:
        _, early = await two.call_as_broker()
        here, there = await two.call_as_broker()
        two.one.cut(Cut(peer=OTHER))
        early.transport.close()
        two.listener.close()
        there.transport.close()
        async with asyncio.timeout(5):
            await two.listener.wait_closed()
        await here.until(lambda: here.is_lost)

    run_scenario(scenario)


def test_a_caller_is_identified_by_its_first_request() -> None:
    assert caller_of(hello(7)) == 7
    assert caller_of(hello(7) + b"and more") == 7
    assert {caller_of(hello(7)[:size]) for size in range(len(hello(7)))} == {None}
    for other in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n"):
        assert caller_of(other) == CLIENTS
    assert caller_of(b"\0\0\0\x0a\0\x12") == CLIENTS
    assert caller_of(b"\0\0\0\x04" + Api.BROKER_HELLO.to_bytes(2, "big") + b"\0\0") == CLIENTS
