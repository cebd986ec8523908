"""One replica of a partition on this broker: its log, and its role by the latest state read.

While this broker leads, `term` is the state of the leader's state machine; only the driver
(`leader_driver.py`) changes it. Every field is written by the methods here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from insync.broker.broker_loop import BrokerLoop
from insync.broker.replication.inbound_rate import InboundRate
from insync.broker.replication.pending_acks import OnVerdict, PendingAcks
from insync.rules.acknowledgement import Verdict, after_append
from insync.rules.leader_machine import Event
from insync.rules.leadership import Leadership
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch, Offset
from insync.storage.log import Log
from insync.telemetry.recorder import PartitionRecord, Session

NEVER_ENOUGH: Final = 1 << 31
"""More in-sync replicas than a partition can have."""


class Watcher(Protocol):
    """A fetch that waits for this partition to change. Notified once; it then watches again."""

    def on_partition_changed(self, replica: Replica, *, grew: bool, committed: bool) -> None:
        """The log grew, more of it is committed; or neither, when the role or the ISR changed."""


class Replica:
    __slots__ = (
        "_loop",
        "_report",
        "_watchers",
        "acks",
        "batch_bytes_max",
        "epoch",
        "has_eligible",
        "high_watermark",
        "inbound",
        "key",
        "leader",
        "leader_watermark",
        "log",
        "members",
        "min_isr",
        "proposed_why",
        "record",
        "sent_ends",
        "sessions",
        "term",
        "topic_id",
    )

    def __init__(
        self,
        key: tuple[str, int],
        topic_id: UUID,
        log: Log,
        *,
        high_watermark: int,
        report: Callable[[Replica, Event], None],
        loop: BrokerLoop,
    ) -> None:
        self._report = report
        self._loop = loop
        self.key = key
        self.topic_id = topic_id
        self.log = log

        self.leader: BrokerId | None = None
        """By the latest partition state; None before the first and after the replica is dropped."""
        self.epoch = LeaderEpoch(-1)
        """By the latest partition state; the epoch of `term` while this broker leads."""
        self.members: frozenset[BrokerId] | None = None
        """The ISR by the latest partition state; None before the first."""
        self.has_eligible = False
        """By the latest partition state: another broker may be elected with what it has."""
        self.min_isr = 1
        """The effective minimum: never more than the replicas there are."""
        self.batch_bytes_max = 0
        """By the topic's settings."""

        self.high_watermark = min(high_watermark, log.end)
        """Never above `log.end`; never falls while this broker leads."""
        self.leader_watermark = self.high_watermark
        """As a follower: the leader's latest, which may be beyond the end of this log."""

        self.term: Leadership | None = None
        """The state of the leader's state machine; None unless this broker leads."""
        self.record: PartitionRecord | None = None
        """Telemetry of the term; None without a term, and for a topic that is not recorded."""
        self.proposed_why = ""
        """The reason of the latest proposed ISR change, for the log."""
        self.acks = PendingAcks()
        """Producers that wait; empty unless this broker leads."""
        self.inbound = InboundRate()
        """What producers append; of use only while this broker leads."""
        self._watchers: dict[Watcher, None] = {}  # in the order they came
        self.sent_ends: dict[BrokerId, int] = {}
        """Of followers outside the ISR: the offset after what was last sent. A throttled follower
        says only with its next fetch that it has it."""
        self.sessions: dict[BrokerId, Session] = {}
        """Fetch sessions of followers that cover this partition: each request is a fetch of it."""

    # By the partition state and the topic's settings.

    def apply_state(self, state: PartitionState) -> None:
        if state.leader != self.leader:  # a new epoch of the same leader goes on counting
            self.inbound.restart(self._loop.now_ms)
        self.epoch, self.leader = state.leader_epoch, state.leader
        self.members = frozenset(state.isr)
        self.has_eligible = bool(state.eligible)

    def apply_limits(self, *, min_isr: int, batch_bytes_max: int) -> None:
        self.min_isr = min_isr
        self.batch_bytes_max = batch_bytes_max

    @property
    def min_isr_to_acknowledge(self) -> int:
        """The members that acks=all needs; more than there are while others are eligible."""
        return NEVER_ENOUGH if self.has_eligible else self.min_isr

    def drop(self) -> None:
        """The partition was deleted, or moved to other brokers."""
        self.end_term()
        self.leader = None

    # As leader.

    @property
    def is_leader(self) -> bool:
        return self.term is not None

    def begin_term(self, term: Leadership, record: PartitionRecord | None) -> None:
        self.end_term()
        self.store(term)
        self.record = record

    def report(self, event: Event) -> None:
        """Report an event to the leader's state machine, if this broker leads."""
        self._report(self, event)

    def store(self, term: Leadership) -> None:
        """Keep the next state of this leadership; its effects are performed after that."""
        self.term = term
        self.high_watermark = term.high_watermark

    def note_proposal(self, why: str) -> None:
        self.proposed_why = why

    def count_produced(self, size_bytes: int) -> None:
        self.inbound.add(size_bytes, now_ms=self._loop.now_ms)

    def acknowledge(self) -> None:
        """Answer the producers whose records are committed now."""
        assert self.term is not None, "only a leader acknowledges"
        self.acks.acknowledge(
            self.term.isr, high_watermark=self.high_watermark, min_isr=self.min_isr_to_acknowledge
        )

    def judge_committed(self, last_offset: int) -> Verdict | None:
        """The answer for a record that is committed, by the ISR of now; None if not the leader.

        An append may block for so long that the ISR has shrunk since it was checked.
        """
        if self.term is None:
            return None
        return after_append(
            self.term.isr,
            last_offset=Offset(last_offset),
            high_watermark=self.term.high_watermark,
            min_isr=self.min_isr_to_acknowledge,
            deadline_ms=0,
            now_ms=0,
        )

    def await_commit(self, last_offset: int, *, deadline_ms: int, on_verdict: OnVerdict) -> bool:
        """True if no timer runs yet: then the caller sees to it that `acks.expire` is called."""
        assert self.term is not None, "a follower commits nothing"
        self.acks.add(last_offset, deadline_ms=deadline_ms, on_verdict=on_verdict)
        had_timer, self.acks.has_timer = self.acks.has_timer, True
        return not had_timer

    def end_term(self) -> None:
        """This broker leads the partition no longer: producers and fetches that wait are told."""
        self.term = self.record = None
        self.sent_ends.clear()
        for on_verdict in self.acks.give_up():
            self._loop.then(on_verdict, None)
        if self._watchers:
            self._loop.then(partial(self.notify, grew=False, committed=False))

    def note_sent(self, follower: BrokerId, end: int) -> None:
        """A response has the records before this offset, for a follower outside the ISR."""
        self.sent_ends[follower] = end

    # Fetch sessions of followers.

    @property
    def session_fetched_at_ms(self) -> Mapping[BrokerId, int]:
        """When each follower last sent a request in the session that covers this partition."""
        return {broker: session.fetched_at_ms for broker, session in self.sessions.items()}

    def attach_session(self, follower: BrokerId, session: Session) -> None:
        self.sessions[follower] = session

    def detach_session(self, follower: BrokerId) -> None:
        self.sessions.pop(follower, None)

    def record_sessions(self) -> None:
        """Record the requests of fetch sessions that the rules are about to take into account."""
        if self.record is not None and self.term is not None:
            for broker, session in self.sessions.items():
                self.record.record_session_fetches(self.term, broker, session)

    # As follower.

    def follow(self, high_watermark: int) -> None:
        """The leader's watermark is this; ours follows as far as the log goes."""
        self.leader_watermark = high_watermark
        known = min(high_watermark, self.log.end)
        if known > self.high_watermark:
            self.high_watermark = known
            if self._watchers:
                self._loop.run(partial(self.notify, grew=False, committed=True))

    def log_truncated(self) -> None:
        self.high_watermark = min(self.high_watermark, self.log.end)

    def log_restarted(self) -> None:
        """The log is empty, and begins where the leader's does."""
        assert self.log.start == self.log.end, "the log is empty"
        self.high_watermark = self.log.end

    # Fetches that wait.

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def notify(self, *, grew: bool, committed: bool) -> None:
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers:
            watcher.on_partition_changed(self, grew=grew, committed=committed)
