"""How this broker asks to hand over a partition that it leads.

The leader's state machine says when: a read for a follower takes too long (KIP-501, solution 2), or
the broker stalled most of the time. The request is a node in the metadata store that names the
leader epoch. The controller grants it or removes it; until then, and if it is refused, this broker
leads on.

If reads of several partitions are slow together, their disk is. Then the broker asks to hand over
all partitions that it leads with the feature on: the others will be slow too, and a follower that
is evicted meanwhile cannot lead. Requests that are made together are written in one step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.replication.replica import Replica
from insync.broker.replication.store_tasks import StoreTasks
from insync.metadata import paths
from insync.metadata.cooldowns import brokers_in_cooldown
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.records import Resignation
from insync.metadata.store import STATES_PER_STEP_MAX, Check, Create, MetadataStore
from insync.rules.leader_machine import ResignReason
from insync.rules.leadership import Leadership
from insync.rules.resignation import resign
from insync.rules.stalls import Stall, StallRecord
from insync.rules.values import NO_BROKERS, BrokerId, Incarnation

logger = logging.getLogger(__name__)


SLOW_TOGETHER: Final = 3
"""Partitions with slow reads at one time from which on it is their disk."""


class ResignationRequests:
    def __init__(
        self,
        *,
        broker: BrokerId,
        store: MetadataStore,
        view: ClusterView,
        partitions: Mapping[TopicPartition, Replica],
        silent_after_ms: Callable[[], int],
    ) -> None:
        self.incarnation = Incarnation(-1)  # of this broker; set when it has registered
        self._broker = broker
        self._store = store
        self._view = view
        self._partitions = partitions
        self._silent_after_ms = silent_after_ms
        self._tasks = StoreTasks()
        self._requests: dict[str, Resignation] = {}  # by path, to be written
        self._is_writing = False
        self._slow_at_ms: dict[TopicPartition, int] = {}  # when a read of it was found too slow
        self._stalls: dict[int, StallRecord] = {}  # by the lag limit of partitions led here

    def on_stall(self, stall: Stall, lag_limits_ms: Iterable[int]) -> None:
        for limit_ms in lag_limits_ms:
            before = self._stalls.get(limit_ms) or StallRecord(lag_time_max_ms=limit_ms)
            self._stalls[limit_ms] = before.after(stall)

    def stalls_of(self, lag_time_max_ms: int) -> StallRecord | None:
        """The recent stalls of this broker, as far back as this limit looks."""
        return self._stalls.get(lag_time_max_ms)

    def request(
        self, replica: Replica, term: Leadership, reason: ResignReason, *, now_ms: int
    ) -> None:
        """Ask the controller to hand the partition over, if another replica can lead it."""
        if reason is ResignReason.STALLED:
            span_ms = 2 * term.policy.lag_time_max_ms
            why = f"its event loop did not run for more than half of the last {span_ms} ms"
            # It read no fetch meanwhile, so no follower counts as silent.
            self._ask(replica, why, silent=NO_BROKERS)
            return
        limit_ms = term.rule.process_time_max_ms
        assert limit_ms is not None, "a read was found too slow"
        if reason is ResignReason.PENDING_IN_STALL:
            why = (
                f"a follower's fetch was pending for more than {limit_ms} ms, stalls of this leader"
                " included (follower.fetch.process.time.include.stalls)"
            )
            self._ask(replica, why, silent=NO_BROKERS)
            return
        why = (
            f"a read for {_longest_waiting_follower(term)} has taken more than"
            f" {limit_ms} ms (follower.fetch.process.time.max.ms)"
        )
        self._ask(replica, why, silent=self._silent_followers(replica, now_ms))
        slow = self._slow_at_ms
        for key in [key for key, at_ms in slow.items() if now_ms - at_ms > limit_ms]:
            del slow[key]
        slow[replica.key] = now_ms
        if len(slow) == SLOW_TOGETHER:
            self._ask_for_all(
                f"the disk is slow: reads of {SLOW_TOGETHER} partitions have taken more than"
                f" {limit_ms} ms (follower.fetch.process.time.max.ms)",
                now_ms=now_ms,
            )

    def _ask_for_all(self, why: str, *, now_ms: int) -> None:
        led = [
            replica
            for replica in self._partitions.values()
            if replica.term is not None and replica.term.policy.pending_reads
        ]
        before = len(self._requests)
        for replica in led:
            silent = self._silent_followers(replica, now_ms)
            self._ask(replica, why, silent=silent, is_logged=False)
        if len(self._requests) > before:
            logger.warning(
                "this broker asks to hand over %d partitions: %s", len(self._requests), why
            )

    def _ask(
        self, replica: Replica, why: str, *, silent: frozenset[BrokerId], is_logged: bool = True
    ) -> None:
        path = paths.resignation(*replica.key)
        if path in self._requests or self._store.get(path) is not None:
            return  # it is requested already
        state = self._view.states.get(replica.key)
        if state is None or (state.leader, state.leader_epoch) != (self._broker, replica.epoch):
            return  # another leader is elected already
        cooling = brokers_in_cooldown(self._store, replica.key)
        if resign(state, live=self._view.live, cooling=cooling) is None:
            return  # no other replica can lead
        if is_logged:
            logger.info("%s-%d: this leader asks to resign: %s", *replica.key, why)
        self._requests[path] = Resignation(
            topic_id=replica.topic_id,
            leader=self._broker,
            leader_epoch=replica.epoch,
            why=why,
            silent=silent,
        )
        if not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write())

    def _silent_followers(self, replica: Replica, now_ms: int) -> frozenset[BrokerId]:
        """Those that no fetch came from for so long that their brokers may be gone."""
        assert replica.term is not None, "only a leader asks"
        silent_from_ms = now_ms - self._silent_after_ms()
        silent = set()
        for broker, follower in replica.term.followers.items():
            session = replica.sessions.get(broker)
            session_ms = follower.fetched_at_ms if session is None else session.fetched_at_ms
            is_reading = bool(follower.reads.reads)
            if max(follower.fetched_at_ms, session_ms) < silent_from_ms and not is_reading:
                silent.add(broker)
        return frozenset(silent)

    async def _write(self) -> None:
        """Write the requests, and those that come meanwhile."""
        try:
            while self._requests:
                batch = dict(islice(self._requests.items(), STATES_PER_STEP_MAX))
                topic_ids = dict.fromkeys(request.topic_id for request in batch.values())
                try:
                    await self._store.commit(
                        *(Create(path, request.encode()) for path, request in batch.items()),
                        Check(paths.broker_incarnation(self.incarnation)),
                        *(Check(paths.topic_id(topic_id)) for topic_id in topic_ids),
                    )
                except Conflict as conflict:
                    self._drop(conflict.path, batch)
                else:
                    for path in batch:
                        self._requests.pop(path, None)
        except (SessionEnded, Unavailable) as error:
            logger.info("could not write %d resignations: %s", len(self._requests), error)
        except Exception:  # the leader's rules ask again
            logger.exception("could not write %d resignations", len(self._requests))
        finally:
            self._requests.clear()
            self._is_writing = False

    def _drop(self, path: str, batch: Mapping[str, Resignation]) -> None:
        """Drop what cannot be written: it is there already, or its topic or this broker is gone."""
        gone = {
            each
            for each, request in batch.items()
            if path in (each, paths.topic_id(request.topic_id))
        }
        for each in gone or batch:
            self._requests.pop(each, None)

    async def stop(self) -> None:
        await self._tasks.stop()


def _longest_waiting_follower(term: Leadership) -> str:
    """Whose pending read began first, unless that read was done in this very moment."""
    began_at_ms = {
        broker: follower.reads.oldest_parsed_at_ms
        for broker, follower in term.followers.items()
        if follower.reads.oldest_parsed_at_ms is not None
    }
    if not began_at_ms:
        return "a follower"
    return f"follower {min(began_at_ms, key=lambda broker: (began_at_ms[broker], broker))}"
