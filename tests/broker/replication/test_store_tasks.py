"""Many tasks that write to the metadata store take turns, and none waits for one that pauses."""

from __future__ import annotations

import asyncio

from insync.broker.replication.store_tasks import ATTEMPTS_AT_ONCE_MAX, RETRY_MS, StoreTasks
from insync.metadata.errors import Unavailable
from insync.sim.virtual_loop import VirtualLoop
from support.sim.one_broker import on_virtual_time

CHANGES = 6_000
STEPS_WAITING_MAX = 1_000
STEP_S = 0.001


class OneWriter:
    """A store that makes one step at a time and refuses when too many wait, as SQLite's does."""

    def __init__(self) -> None:
        self.attempts = 0
        self.made = 0
        self._waiting = 0
        self._writing = asyncio.Lock()

    async def make_step(self) -> bool:
        self.attempts += 1
        if self._waiting > STEPS_WAITING_MAX:
            raise Unavailable("too many steps wait")
        self._waiting += 1
        async with self._writing:
            await asyncio.sleep(STEP_S)
        self._waiting -= 1
        self.made += 1
        return True


def test_thousands_of_changes_are_tried_once_each() -> None:
    async def scenario(_loop: VirtualLoop) -> None:
        store, tasks = OneWriter(), StoreTasks()
        for number in range(CHANGES):
            tasks.start_until_known(store.make_step, f"change {number}")
        await asyncio.sleep(CHANGES * STEP_S + 1.0)
        assert (store.made, store.attempts) == (CHANGES, CHANGES)
        await tasks.stop()

    on_virtual_time(scenario)


def test_a_change_that_waits_to_try_again_keeps_no_other_from_its_turn() -> None:
    async def scenario(_loop: VirtualLoop) -> None:
        tasks, done = StoreTasks(), []

        async def refuse() -> bool:
            raise Unavailable("not now")

        async def succeed() -> bool:
            done.append(True)
            return True

        for number in range(ATTEMPTS_AT_ONCE_MAX):
            tasks.start_until_known(refuse, f"change {number}")
        tasks.start_until_known(succeed, "the last one")
        await asyncio.sleep(RETRY_MS / 2_000)
        assert done == [True]
        await tasks.stop()

    on_virtual_time(scenario)
