"""Entering the broker: stalls are noticed first; effects are performed in order, never nested."""

from __future__ import annotations

import asyncio
import logging

import pytest

from insync.broker.broker_loop import BrokerLoop
from insync.rules.stalls import Stall
from insync.sim.virtual_loop import VirtualLoop
from support.sim.one_broker import on_virtual_time

ENOUGH = 10


class Stopwatch:
    """A clock that a test may stop: as in a paused process, it jumps when it resumes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jump_ms = 0

    def __call__(self) -> int:
        return self._loop.clock_ms() + self.jump_ms


class Listener:
    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self.order: list[str] = []

    def on_stall(self, stall: Stall) -> None:
        self.stalls.append(stall)
        self.order.append("stall")

    def on_drained(self) -> None:
        self.order.append("drained")


def started(clock: Stopwatch) -> tuple[BrokerLoop, Listener]:
    loop, listener = BrokerLoop(clock), Listener()
    loop.stall_listener = listener
    loop.start()
    return loop, listener


@pytest.mark.parametrize(("jump_ms", "is_stall"), [(40, False), (100, True), (5_000, True)])
def test_a_jump_of_the_clock_is_a_stall(*, jump_ms: int, is_stall: bool) -> None:
    async def scenario(virtual: VirtualLoop) -> None:
        clock = Stopwatch(virtual)
        loop, listener = started(clock)
        await asyncio.sleep(1.0)
        assert listener.stalls == [], "an idle loop is not a stalled one"
        loop.run(listener.order.clear)
        began_ms = loop.clock_ms()
        clock.jump_ms = jump_ms
        assert (loop.clock_ms(), loop.now_ms) == (began_ms + jump_ms, began_ms + jump_ms)
        assert listener.stalls == [], "reading the clock decides nothing"
        loop.run(listener.order.append, "callback")
        expected = [Stall(began_at_ms=began_ms, ended_at_ms=began_ms + jump_ms)]
        assert listener.stalls == (expected if is_stall else [])
        assert listener.order == (["stall", "callback"] if is_stall else ["callback"])
        loop.stop()

    on_virtual_time(scenario)


class SlowListener(Listener):
    """Takes longer to handle a stall than the shortest stall lasts."""

    def __init__(self, clock: Stopwatch, loop: BrokerLoop) -> None:
        super().__init__()
        self._clock = clock
        self._loop = loop

    def on_stall(self, stall: Stall) -> None:
        super().on_stall(stall)
        self._take_time()

    def on_drained(self) -> None:
        super().on_drained()
        self._loop.then(self._take_time)

    def _take_time(self) -> None:
        if len(self.order) <= ENOUGH:  # else a broken loop would handle stalls for ever
            self._clock.jump_ms += 200


def test_the_handling_of_a_stall_is_not_another_stall() -> None:
    """With thousands of partitions it takes as long as one, and would never end."""

    async def scenario(virtual: VirtualLoop) -> None:
        clock = Stopwatch(virtual)
        loop, _ = started(clock)
        loop.stall_listener = listener = SlowListener(clock, loop)
        clock.jump_ms = 300
        loop.run(lambda: None)
        await asyncio.sleep(1.0)
        assert listener.order == ["stall", "drained"]
        assert clock.jump_ms == 700, "both took their time"
        loop.stop()

    on_virtual_time(scenario)


def test_a_call_that_blocks_inside_a_callback_is_a_stall_too() -> None:
    async def scenario(virtual: VirtualLoop) -> None:
        clock = Stopwatch(virtual)
        loop, listener = started(clock)

        def append() -> None:
            began_ms = loop.now_ms
            clock.jump_ms = 300
            assert loop.now_ms == began_ms, "one time for one callback"
            assert loop.read_clock() == began_ms + 300 == loop.now_ms
            listener.order.append("appended")

        loop.run(append)
        assert listener.order == ["stall", "appended"]
        loop.stop()

    on_virtual_time(scenario)


def test_the_sockets_are_read_before_a_stall_is_over() -> None:
    async def scenario(virtual: VirtualLoop) -> None:
        clock = Stopwatch(virtual)
        loop, listener = started(clock)
        await asyncio.sleep(0)
        clock.jump_ms = 1_000
        loop.run(lambda: None)
        was_draining = loop.is_draining
        virtual.call_soon(listener.order.append, "socket")
        await asyncio.sleep(0.01)
        assert listener.order == ["stall", "socket", "drained"]
        assert (was_draining, loop.is_draining) == (True, False)
        loop.stop()

    on_virtual_time(scenario)


def test_a_stall_while_draining_restarts_the_drain() -> None:
    async def scenario(virtual: VirtualLoop) -> None:
        clock = Stopwatch(virtual)
        loop, listener = started(clock)
        clock.jump_ms = 1_000
        loop.run(lambda: None)
        await asyncio.sleep(0)
        clock.jump_ms = 2_000
        loop.run(lambda: None)
        await asyncio.sleep(0.01)
        assert listener.order == ["stall", "stall", "drained"], "drained once for both"
        loop.stop()

    on_virtual_time(scenario)


def test_effects_are_performed_in_order_after_the_callback_and_before_it_returns() -> None:
    loop = BrokerLoop(lambda: 0)
    order: list[str] = []

    def effect(name: str, *follow: str) -> None:
        for each in follow:
            loop.then(effect, each)
        order.append(name)

    def callback() -> None:
        loop.then(effect, "first", "of the first")
        loop.run(effect, "a callback inside runs at once", "of the inner")
        loop.then(effect, "second")
        order.append("callback")

    loop.run(callback)
    assert order == [
        "a callback inside runs at once",
        "callback",
        "first",
        "of the inner",
        "second",
        "of the first",
    ]
    loop.then(effect, "from a task")
    assert order[-1] == "from a task"


def test_effects_of_a_stall_are_performed_before_the_callback() -> None:
    async def scenario(virtual: VirtualLoop) -> None:
        clock = Stopwatch(virtual)
        loop, listener = started(clock)
        order = listener.order

        class Deposed(Listener):
            def on_stall(self, stall: Stall) -> None:
                loop.then(order.append, f"refuse what waits after {stall.length_ms} ms")

        loop.stall_listener = Deposed()
        clock.jump_ms = 500
        loop.run(order.append, "request")
        assert order == ["refuse what waits after 500 ms", "request"]
        loop.stop()

    on_virtual_time(scenario)


def test_a_failed_effect_does_not_stop_queued_effects(caplog: pytest.LogCaptureFixture) -> None:
    loop = BrokerLoop(lambda: 0)
    order: list[str] = []

    def fails() -> None:
        raise ZeroDivisionError

    def callback() -> None:
        loop.then(fails)
        loop.then(order.append, "the next one")
        fails()

    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        loop.run(callback)
    assert order == ["the next one"]
    assert "fails" in caplog.text
    loop.run(order.append, "still serving")
    assert order[-1] == "still serving"
