"""A loop on virtual time leaves nothing behind that fails whatever runs after it."""

from __future__ import annotations

import asyncio
import gc
import warnings

from insync.sim.ownership import run_as
from insync.sim.virtual_loop import VirtualLoop, virtual_time

HOST = 1


async def never_begun() -> None:
    raise AssertionError


async def kill_while_paused(loop: VirtualLoop) -> None:
    loop.pause(HOST)
    run_as(HOST, lambda: loop.create_task(never_begun()))
    await asyncio.sleep(1)
    loop.forget(HOST)


async def leave_in_the_loop(loop: VirtualLoop) -> None:
    loop.pause(HOST)
    run_as(HOST, lambda: loop.create_task(never_begun()))
    await asyncio.sleep(1)


def test_a_task_that_never_begins_is_no_warning_later() -> None:
    for leave in (kill_while_paused, leave_in_the_loop):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with virtual_time() as loop:
                loop.run_until_complete(leave(loop))
            del loop
            gc.collect()
        assert [str(each.message) for each in warned] == [], leave.__name__
