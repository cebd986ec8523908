"""KAFKA-4485's first two guarantees in a whole life: who is close is let in, who lags is let go.

Close and lagging are the policy's verdict; beside it, whose log stands still behind its leader's
has left by any rule that goes by time. A verdict may change at any moment and is acted upon a
little later, so what counts is how long it was so without a break, as far as looks tell. There is
no verdict while a change is under way in the store, or while the leader stands still itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from insync.broker.replica import Replica
from insync.rules import isr as isr_rules
from insync.rules.leadership import Leadership
from insync.rules.policy import Messages
from insync.sim.cluster import Broker

DECIDED_WITHIN_MS: Final = 50
"""A leader's timer fires when it is due, whatever else goes on."""

LET_IN_WITHIN_MS: Final = 1_000
"""Several fetches, and a proposal that the store refused because somebody else was first."""

STILL_FETCHES_MS: Final = 500

OVERDUE: Final = "is past its deadline, and in sync"
STANDS_STILL: Final = "has stood still behind its leader, and is in sync"
CLOSE: Final = "is close and fetches, and is not in sync"


class _Led(NamedTuple):
    """A partition, as one life of a broker leads it in one epoch."""

    leader: int
    incarnation: int
    partition: tuple[str, int]
    epoch: int


class _Finding(NamedTuple):
    member: int
    what: str
    end: int  # of its log, if that is what matters


class Memberships:
    def __init__(self) -> None:
        self._since_ms: dict[_Led, dict[_Finding, int]] = {}

    def look(
        self, broker: Broker, found: Replica, ends: Mapping[int, int | None], *, now_ms: int
    ) -> Iterator[str]:
        """What is wrong with the ISR of a partition led here; `ends` are the members' own."""
        node, term = broker.node, found.term
        assert node is not None, "it leads"
        assert term is not None, "it leads"
        led = _Led(broker.number, node.replicas.incarnation, found.key, term.epoch)
        before = self._since_ms.pop(led, {})
        if broker.is_paused or not isinstance(term.isr, isr_rules.Stable):
            return
        limits_ms = dict(_findings(found, term, ends, now_ms))
        self._since_ms[led] = {each: before.get(each, now_ms) for each in limits_ms}
        for each, since_ms in self._since_ms[led].items():
            if now_ms - since_ms > limits_ms[each]:
                yield f"{found.key}: {each.member} {each.what}, for {now_ms - since_ms} ms"


def _findings(
    found: Replica, term: Leadership, ends: Mapping[int, int | None], now_ms: int
) -> Iterator[tuple[_Finding, int]]:
    """Each with how long it may be so."""
    deadlines = term.deadlines(found.session_fetched_at_ms)
    for broker, follower in term.followers.items():
        if broker not in isr_rules.committed(term.isr):
            fetches = now_ms - follower.served_at_ms <= STILL_FETCHES_MS
            if fetches and not term.obstacles(broker, now_ms=now_ms):
                yield _Finding(broker, CLOSE, 0), LET_IN_WITHIN_MS
            continue
        if deadlines.get(broker, now_ms) < now_ms:
            yield _Finding(broker, OVERDUE, 0), DECIDED_WITHIN_MS
        end = ends.get(broker)
        if end is not None and end < found.log.end and _goes_by_time(term):
            # The fetch that was on its way still counts, and after a stall there is grace.
            patience_ms = term.policy.lag_time_max_ms + 2 * term.fetch_wait_max_ms
            yield _Finding(broker, STANDS_STILL, end), patience_ms + DECIDED_WITHIN_MS


def _goes_by_time(term: Leadership) -> bool:
    """By messages, who asks on may lag a little for ever; a pending read speaks for its reader."""
    return not isinstance(term.policy, Messages) and not term.policy.pending_reads
