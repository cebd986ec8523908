"""A broker's handle on the tree: it works in that broker's name, and others notice its silence.

Sessions end as they do in life: some time after a broker was last heard, never before that broker
itself knows that it may no longer speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from insync.metadata import paths
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.store import Operation
from insync.sim.ownership import context_of, in_the_name_of

SESSION_TIMEOUT_MS = 2_000
NOTICED_WITHIN_MS = 500  # the heartbeat's interval: how much later others may give a session up


class BrokerStore(MemoryStore):
    def __init__(
        self, tree: MemoryTree, number: int, *, clock_ms: Callable[[], int], random: Random
    ) -> None:
        super().__init__(tree, clock_ms=clock_ms, session_timeout_ms=SESSION_TIMEOUT_MS)
        self._number = number
        self._random = random
        # Called before and after a step that only a controller makes; may not return.
        self.before_controller_step: Callable[[], None] = _nothing
        self.after_controller_step: Callable[[], None] = _nothing

    def notify(self, revision: int) -> None:
        in_the_name_of(self._number, super().notify, revision)

    async def commit(self, *operations: Operation) -> int:
        is_controllers = any(each.path.startswith(paths.CONTROLLER) for each in operations)
        if is_controllers:
            self.before_controller_step()
        revision = await super().commit(*operations)
        if is_controllers:
            self.after_controller_step()
        return revision

    def _lose_touch(self) -> None:
        super()._lose_touch()
        given_up_after_ms = SESSION_TIMEOUT_MS + self._random.randint(1, NOTICED_WITHIN_MS)
        since_ms = self._out_of_touch_since_ms
        asyncio.get_running_loop().call_later(
            given_up_after_ms / 1_000, self._be_given_up, since_ms, context=context_of(None)
        )

    def _be_given_up(self, since_ms: int | None) -> None:
        if since_ms == self._out_of_touch_since_ms and self._incarnation is not None:
            self._tree.end_session(self._incarnation)


def _nothing() -> None:
    pass
