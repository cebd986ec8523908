"""How this broker asks to hand over a partition that it leads.

The leader's state machine says when: a read for a follower takes too long (KIP-501, solution 2), or
the broker stalled most of the time. The request is a node in the metadata store that names the
leader epoch. The controller grants it or removes it; until then, and if it is refused, this broker
leads on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from insync.broker.cluster_view import ClusterView
from insync.broker.replication.replica import Replica
from insync.broker.replication.store_tasks import StoreTasks
from insync.metadata import paths
from insync.metadata.cooldowns import brokers_in_cooldown
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.records import Resignation
from insync.metadata.store import Check, Create, MetadataStore
from insync.rules.leader_machine import ResignReason
from insync.rules.leadership import Leadership
from insync.rules.resignation import resign
from insync.rules.stalls import Stall, StallRecord
from insync.rules.values import BrokerId, Incarnation

logger = logging.getLogger(__name__)


class ResignationRequests:
    def __init__(self, *, broker: BrokerId, store: MetadataStore, view: ClusterView) -> None:
        self.incarnation = Incarnation(-1)  # of this broker; set when it has registered
        self._broker = broker
        self._store = store
        self._view = view
        self._tasks = StoreTasks()
        self._stalls: dict[int, StallRecord] = {}  # by the lag limit of partitions led here

    def on_stall(self, stall: Stall, lag_limits_ms: Iterable[int]) -> None:
        for limit_ms in lag_limits_ms:
            before = self._stalls.get(limit_ms) or StallRecord(lag_time_max_ms=limit_ms)
            self._stalls[limit_ms] = before.after(stall)

    def stalls_of(self, lag_time_max_ms: int) -> StallRecord | None:
        """The recent stalls of this broker, as far back as this limit looks."""
        return self._stalls.get(lag_time_max_ms)

    def request(self, replica: Replica, term: Leadership, reason: ResignReason) -> None:
        """Ask the controller to hand the partition over, if another replica can lead it."""
        if reason is ResignReason.SLOW_READ:
            why = (
                f"a read for {_longest_waiting_follower(term)} has taken more than"
                f" {term.rule.process_time_max_ms} ms (follower.fetch.process.time.max.ms)"
            )
        else:
            span_ms = 2 * term.policy.lag_time_max_ms
            why = f"its event loop did not run for more than half of the last {span_ms} ms"
        state = self._view.states.get(replica.key)
        if state is None or (state.leader, state.leader_epoch) != (self._broker, replica.epoch):
            return  # another leader is elected already
        cooling = brokers_in_cooldown(self._store, replica.key)
        if resign(state, live=self._view.live, cooling=cooling) is None:
            return  # no other replica can lead
        request = Resignation(
            topic_id=replica.topic_id, leader=self._broker, leader_epoch=replica.epoch, why=why
        )
        logger.info("%s-%d: this leader asks to resign: %s", *replica.key, why)
        self._tasks.start(self._commit(replica, request))

    async def _commit(self, replica: Replica, request: Resignation) -> None:
        try:
            await self._store.commit(
                Create(paths.resignation(*replica.key), request.encode()),
                Check(paths.broker_incarnation(self.incarnation)),
                Check(paths.topic_id(replica.topic_id)),
            )
        except Conflict:
            pass  # it has asked already, or the topic or this broker's registration is gone
        except (SessionEnded, Unavailable) as error:
            logger.info("%s-%d: could not write the resignation: %s", *replica.key, error)
        except Exception:  # the leader's rules ask again
            logger.exception("%s-%d: could not write the resignation", *replica.key)

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
