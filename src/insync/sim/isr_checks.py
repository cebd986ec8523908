"""KAFKA-4485's first two guarantees in a run: caught-up replicas join the ISR, lagging ones leave.

The policy decides which replicas are caught up or lag. Besides, a replica whose log does not grow
while its leader's does must leave by any policy that goes by time. A decision may change at any
moment, and the leader acts on it a little later; so a violation counts only if every check within
a time limit saw it. There are no checks while an ISR change is pending or the leader is paused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from insync.broker.replication.replica import Replica
from insync.rules import isr as isr_rules
from insync.rules.leadership import Leadership
from insync.rules.policy import LagBegin, Messages
from insync.sim.cluster import Broker

DECIDED_WITHIN_MS: Final = 50
"""A leader's timer fires when it is due, also under load."""

JOINS_WITHIN_MS: Final = 1_000
"""Time for several fetches, and for a proposal that lost to another change in the store."""

STILL_FETCHES_MS: Final = 500

OVERDUE: Final = "is past its deadline and still in the ISR"
NO_PROGRESS: Final = "does not append, is behind its leader and still in the ISR"
NOT_JOINED: Final = "is caught up and fetches, but is not in the ISR"


class _Term(NamedTuple):
    """A partition, led by one incarnation of a broker in one leader epoch."""

    leader: int
    incarnation: int
    partition: tuple[str, int]
    epoch: int


class _Violation(NamedTuple):
    member: int
    text: str
    end: int  # its log end offset for NO_PROGRESS, else 0


class IsrChecker:
    def __init__(self) -> None:
        self._since_ms: dict[_Term, dict[_Violation, int]] = {}

    def check_partition(
        self, broker: Broker, replica: Replica, ends: Mapping[int, int | None], *, now_ms: int
    ) -> Iterator[str]:
        """Violations in the ISR of a partition led by `broker`; `ends`: log ends of its members."""
        node, term = broker.node, replica.term
        assert node is not None, "it leads"
        assert term is not None, "it leads"
        term_key = _Term(broker.number, node.replicas.incarnation, replica.key, term.epoch)
        before = self._since_ms.pop(term_key, {})
        if broker.is_paused or not isinstance(term.isr, isr_rules.Stable):
            return
        limits_ms = dict(_violations(replica, term, ends, now_ms))
        self._since_ms[term_key] = {each: before.get(each, now_ms) for each in limits_ms}
        for each, since_ms in self._since_ms[term_key].items():
            if now_ms - since_ms > limits_ms[each]:
                yield f"{replica.key}: {each.member} {each.text}, for {now_ms - since_ms} ms"


def _violations(
    replica: Replica, term: Leadership, ends: Mapping[int, int | None], now_ms: int
) -> Iterator[tuple[_Violation, int]]:
    """Violations at this moment, each with how long it may last."""
    deadlines = term.deadlines(replica.session_fetched_at_ms)
    for broker, follower in term.followers.items():
        if broker not in isr_rules.committed(term.isr):
            fetches = now_ms - follower.served_at_ms <= STILL_FETCHES_MS
            if fetches and not term.obstacles(broker, now_ms=now_ms):
                yield _Violation(broker, NOT_JOINED, 0), JOINS_WITHIN_MS
            continue
        if deadlines.get(broker, now_ms) < now_ms:
            yield _Violation(broker, OVERDUE, 0), DECIDED_WITHIN_MS
        end = ends.get(broker)
        if end is not None and end < replica.log.end and _evicts_by_time(term):
            # A fetch that was in flight still counts, and after a stall there is a grace period.
            allowed_ms = term.policy.lag_time_max_ms + 2 * term.fetch_wait_max_ms
            if isinstance(term.policy, LagBegin):
                # KIP-16's lag begins with a fetch, which may come after up to T of silence.
                allowed_ms += term.policy.lag_time_max_ms
            yield _Violation(broker, NO_PROGRESS, end), allowed_ms + DECIDED_WITHIN_MS


def _evicts_by_time(term: Leadership) -> bool:
    """By messages a follower may lag a little for ever; a pending read keeps it in sync."""
    return not isinstance(term.policy, Messages) and not term.policy.pending_reads
