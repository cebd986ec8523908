"""Noticing that the loop did not run, before anything that waited is looked at."""

from __future__ import annotations

import asyncio

import pytest
from one_broker import on_virtual_time

from insync.broker.awake import Awake
from insync.rules.stalls import Stall
from insync.sim.virtual_loop import VirtualLoop


class Stopwatch:
    """A clock that a test may hold up: as a stopped process, it jumps when it goes on."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jump_ms = 0

    def __call__(self) -> int:
        return self._loop.clock_ms() + self.jump_ms


@pytest.mark.parametrize(("jump_ms", "is_stall"), [(40, False), (100, True), (5_000, True)])
def test_a_jump_of_the_clock_is_a_stall(*, jump_ms: int, is_stall: bool) -> None:
    async def story(loop: VirtualLoop) -> None:
        clock = Stopwatch(loop)
        awake = Awake(clock)
        stalls: list[Stall] = []
        awake.on_stall = stalls.append
        awake.start()
        await asyncio.sleep(1.0)
        assert stalls == [], "an idle loop is not a stalled one"
        began_ms = awake.now_ms()
        clock.jump_ms = jump_ms
        ended_ms = awake.now_ms()
        expected = [Stall(began_at_ms=began_ms, ended_at_ms=ended_ms)] if is_stall else []
        assert stalls == expected, "whoever asks first is told"
        awake.stop()

    on_virtual_time(story)


def test_the_sockets_are_read_before_a_stall_is_over() -> None:
    async def story(loop: VirtualLoop) -> None:
        clock = Stopwatch(loop)
        awake = Awake(clock)
        order: list[str] = []
        awake.on_stall = lambda _stall: order.append("stall")
        awake.on_drained = lambda: order.append("drained")
        awake.start()
        await asyncio.sleep(0)
        clock.jump_ms = 1_000
        awake.now_ms()
        was_draining = awake.is_draining
        loop.call_soon(order.append, "socket")
        await asyncio.sleep(0.01)
        assert order == ["stall", "socket", "drained"]
        assert (was_draining, awake.is_draining) == (True, False)
        awake.stop()

    on_virtual_time(story)


def test_a_stall_while_draining_begins_the_draining_anew() -> None:
    async def story(loop: VirtualLoop) -> None:
        clock = Stopwatch(loop)
        awake = Awake(clock)
        drained: list[int] = []
        awake.on_drained = lambda: drained.append(1)
        awake.start()
        clock.jump_ms = 1_000
        awake.now_ms()
        await asyncio.sleep(0)
        clock.jump_ms = 2_000
        awake.now_ms()
        await asyncio.sleep(0.01)
        assert drained == [1], "once for both"
        awake.stop()

    on_virtual_time(story)
