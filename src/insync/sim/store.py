"""A broker's connection to the tree, which runs as that broker, and ends its session if it is lost.

As in a real cluster, a session ends some time after the broker's last heartbeat, and never before
the broker itself considers its session over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from insync.metadata import paths
from insync.metadata.errors import Unavailable
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.store import Operation
from insync.sim.ownership import context_of, run_as

SESSION_TIMEOUT_MS = 2_000
CLOCK_DRIFT_MAX = 0.01  # of a broker's clock against the others
NOTICED_WITHIN_MS = 500  # the heartbeat's interval: how much later the session may end


@dataclass
class StoreFaults:
    """What is wrong between one broker and the store; it outlives the broker's process."""

    is_read_only: bool = False
    is_unreadable: bool = False  # no changes are read; steps and heartbeats go through
    lost_answers: float = 0.0  # the chance that a step is made and reported as unavailable
    commit_delay_ms_max: int = 0  # before each step, and again before its answer


def is_controllers(step: Sequence[Operation]) -> bool:
    """Whether only a controller makes this step."""
    return any(each.path.startswith(paths.CONTROLLER) for each in step)


class BrokerStore(MemoryStore):
    def __init__(
        self,
        tree: MemoryTree,
        number: int,
        *,
        clock_ms: Callable[[], int],
        random: Random,
        faults: StoreFaults | None = None,
    ) -> None:
        self.faults = faults or StoreFaults()
        super().__init__(tree, clock_ms=clock_ms, session_timeout_ms=SESSION_TIMEOUT_MS)
        self._number = number
        self._random = random
        # Called before and after a step that only a controller makes; may raise.
        self.before_controller_step: Callable[[], None] = do_nothing
        self.after_controller_step: Callable[[], None] = do_nothing
        # The same for each step; for faults that wait for a certain one.
        self.before_step: Callable[[Sequence[Operation]], None] = _ignore
        self.after_step: Callable[[Sequence[Operation]], None] = _ignore
        # Awaited before each step: for faults that decide when a certain one reaches the store.
        self.hold_step: Callable[[Sequence[Operation]], Awaitable[None]] | None = None

    def notify(self, revision: int) -> None:
        run_as(self._number, super().notify, revision)

    def forget_hooks(self) -> None:
        self.before_controller_step = self.after_controller_step = do_nothing
        self.before_step = self.after_step = _ignore
        self.hold_step = None

    async def commit(self, *operations: Operation) -> int:
        faults = self.faults
        is_controller_step = is_controllers(operations)
        if faults.is_read_only:
            raise Unavailable("the metadata store is read-only")
        await self._delay(faults)
        if self.hold_step is not None:
            await self.hold_step(operations)
        if is_controller_step:
            self.before_controller_step()
        self.before_step(operations)
        revision = await super().commit(*operations)
        if is_controller_step:
            self.after_controller_step()
        self.after_step(operations)
        await self._delay(faults)
        if faults.lost_answers and self._random.random() < faults.lost_answers:
            raise Unavailable("the answer of the metadata store was lost")
        return revision

    async def _delay(self, faults: StoreFaults) -> None:
        if faults.commit_delay_ms_max:
            await asyncio.sleep(self._random.randint(0, faults.commit_delay_ms_max) / 1_000)

    def is_over(self, now_ms: int) -> bool:
        """As `not is_alive`, for a check: the broker itself does not learn of it."""
        since_ms = self._disconnected_since_ms
        has_expired = since_ms is not None and now_ms - since_ms > self._session_timeout_ms
        return self.session is None or has_expired

    def _catch_up(self, until: int) -> None:
        if not self.faults.is_unreadable:
            super()._catch_up(until)

    def _disconnect(self) -> None:
        super()._disconnect()
        # The broker times its session by its own clock, which may be slow.
        ends_after_ms = SESSION_TIMEOUT_MS * (1 + CLOCK_DRIFT_MAX) + self._random.randint(
            1, NOTICED_WITHIN_MS
        )
        since_ms = self._disconnected_since_ms
        asyncio.get_running_loop().call_later(
            ends_after_ms / 1_000, self._end_lost_session, since_ms, context=context_of(None)
        )

    def _end_lost_session(self, since_ms: int | None) -> None:
        if since_ms == self._disconnected_since_ms and self._incarnation is not None:
            self._tree.expire_session(self._incarnation)


def do_nothing() -> None:
    pass


def _ignore(_operations: Sequence[Operation]) -> None:
    pass
