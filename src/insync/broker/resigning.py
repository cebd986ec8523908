"""When this broker asks to be relieved of a partition it leads, and how it asks.

It asks when a read for a follower takes too long (KIP-501, solution 2) or when the broker itself
stalled for most of the time; `rules.resignation` and `rules.stalls` say when. Asking is a node in
the store that names the term. The controller grants it or takes it away; until then, and if it is
refused, this broker leads on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from insync.broker.cluster_view import ClusterView
from insync.broker.replica import Replica
from insync.metadata import paths
from insync.metadata.cooling import cooling_for
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.records import Resignation
from insync.metadata.store import Check, Create, MetadataStore
from insync.rules.resignation import resign, resigns_at_ms
from insync.rules.stalls import Stall, StallRecord
from insync.rules.values import BrokerId, Incarnation

ASK_AGAIN_MS = 1_000  # nobody could take over, or the store was away: that may have changed

logger = logging.getLogger(__name__)


class Resigning:
    def __init__(self, *, broker: BrokerId, store: MetadataStore, view: ClusterView) -> None:
        self._broker = broker
        self._store = store
        self._view = view
        self._asking: set[asyncio.Task[None]] = set()
        self._stalls: dict[int, StallRecord] = {}  # by the lag limit of partitions led here

    def due_ms(self, found: Replica) -> int | None:
        """When a read under way will have taken too long, or it is time to ask again."""
        if found.process_time_max_ms is None or found.term is None:
            return None
        followers = found.term.followers.values()
        due_ms = resigns_at_ms(followers, process_time_max_ms=found.process_time_max_ms)
        return None if due_ms is None else max(due_ms, found.asks_again_at_ms)

    def look(self, found: Replica, *, incarnation: Incarnation, now_ms: int) -> None:
        due_ms = self.due_ms(found)
        if due_ms is not None and due_ms <= now_ms:
            found.asks_again_at_ms = now_ms + ASK_AGAIN_MS
            why = f"a read for a follower took more than {found.process_time_max_ms} ms"
            self._ask(found, incarnation, why)

    def stalled(self, stall: Stall, lag_limits_ms: Iterable[int]) -> None:
        for limit_ms in lag_limits_ms:
            before = self._stalls.get(limit_ms) or StallRecord(lag_time_max_ms=limit_ms)
            self._stalls[limit_ms] = before.after(stall)

    def look_at_stalls(self, found: Replica, *, incarnation: Incarnation, now_ms: int) -> None:
        assert found.term is not None, "only what is led"
        limit_ms = found.term.policy.lag_time_max_ms
        record = self._stalls.get(limit_ms)
        if record is not None and record.too_often(now_ms=now_ms):
            why = f"its broker stood still for more than half of the last {2 * limit_ms} ms"
            self._ask(found, incarnation, why)

    def _ask(self, found: Replica, incarnation: Incarnation, why: str) -> None:
        state = self._view.states.get(found.key)
        if state is None or (state.leader, state.leader_epoch) != (self._broker, found.epoch):
            return  # it is over already
        cooling = cooling_for(self._store, found.key)
        if resign(state, live=self._view.live, cooling=cooling) is None:
            return  # nobody to hand over to
        wish = Resignation(
            topic_id=found.topic_id, leader=self._broker, leader_epoch=found.epoch, why=why
        )
        logger.info("%s-%d: asks to resign: %s", *found.key, why)
        task = asyncio.get_running_loop().create_task(self._commit(found, incarnation, wish))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _commit(self, found: Replica, incarnation: Incarnation, wish: Resignation) -> None:
        try:
            await self._store.commit(
                Create(paths.resignation(*found.key), wish.encode()),
                Check(paths.broker_incarnation(incarnation)),
                Check(paths.topic_id(found.topic_id)),
            )
        except Conflict:
            pass  # it has asked already, or another life of the topic or of this broker has begun
        except (SessionEnded, Unavailable) as error:
            logger.info("%s-%d: could not ask to resign: %s", *found.key, error)

    async def stop(self) -> None:
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
