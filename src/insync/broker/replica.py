"""One partition on this broker: its log, and its role by the latest state that was read.

As leader it wraps `rules.leadership`; every change goes through `advance`, which notices what a
change of the watermark or of the end means for those who wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol
from uuid import UUID

from insync.rules.acknowledgement import Verdict, after_append
from insync.rules.leadership import Leadership
from insync.rules.values import NEVER_MS, BrokerId, LeaderEpoch, Offset
from insync.storage.log import Log
from insync.telemetry.recorder import PartitionRecord, Session

Told = Callable[[Verdict | None], None]  # None: this broker no longer leads


class Watcher(Protocol):
    """Somebody who waits for this partition to change. Told once: to hear more it watches again."""

    def on_news(self, replica: Replica, *, grew: bool, committed: bool) -> None:
        """The log grew, more of it is committed; or neither, when the role or the ISR changed."""


class Replica:
    __slots__ = (
        "_acks",
        "_order",
        "asks_again_at_ms",
        "batch_bytes_max",
        "bytes_in",
        "epoch",
        "high_watermark",
        "is_expiring",
        "key",
        "leader",
        "leader_watermark",
        "log",
        "members",
        "min_isr",
        "process_time_max_ms",
        "record",
        "sessions",
        "term",
        "timer_at_ms",
        "topic_id",
        "watchers",
    )

    def __init__(
        self, key: tuple[str, int], topic_id: UUID, log: Log, *, high_watermark: int
    ) -> None:
        self.key = key
        self.topic_id = topic_id
        self.log = log
        self.high_watermark = min(high_watermark, log.end)
        self.leader: BrokerId | None = None
        self.leader_watermark = self.high_watermark  # as a follower was told: may be beyond its end
        self.epoch = LeaderEpoch(-1)
        self.term: Leadership | None = None
        self.members: frozenset[BrokerId] | None = None  # the ISR by the latest state read
        self.min_isr = 1
        self.batch_bytes_max = 0
        self.bytes_in = 0  # produced to it here, since the start
        self.process_time_max_ms: int | None = None  # KIP-501; None: a slow leader stays
        self.asks_again_at_ms = NEVER_MS  # not before this does it ask to resign
        self.timer_at_ms: int | None = None
        self.watchers: dict[Watcher, None] = {}  # in the order they came
        # Fetch sessions of followers that hold this partition: a request in one is a fetch of it.
        self.sessions: dict[BrokerId, Session] = {}
        self.record: PartitionRecord | None = None  # what this leader writes down
        self.is_expiring = False
        self._acks: list[tuple[int, int, int, Told]] = []  # (last offset, order, deadline, told)
        self._order = count()

    @property
    def is_leader(self) -> bool:
        return self.term is not None

    @property
    def session_fetched_at_ms(self) -> Mapping[BrokerId, int]:
        """When each follower last asked in the session that speaks for this partition."""
        return {broker: session.fetched_at_ms for broker, session in self.sessions.items()}

    def note_sessions(self) -> None:
        """Write down what fetch sessions have said for this partition: the rule takes it over."""
        if self.record is not None and self.term is not None:
            for broker, session in self.sessions.items():
                self.record.carried(self.term, broker, session)

    def advance(self, term: Leadership) -> None:
        """Take the next state of this leadership, and tell whoever waited for it."""
        before = self.term
        self.term = term
        grew = before is None or term.end != before.end
        committed = term.high_watermark != self.high_watermark
        self.high_watermark = term.high_watermark
        if committed:
            self._acknowledge()
        if grew or committed or (before is not None and before.isr is not term.isr):
            self._tell(grew=grew, committed=committed)

    def follow(self, high_watermark: int) -> None:
        """As a follower: what the leader says is committed, as far as it is here."""
        self.leader_watermark = high_watermark
        known = min(high_watermark, self.log.end)
        if known > self.high_watermark:
            self.high_watermark = known
            self._tell(grew=False, committed=True)

    def await_commit(self, last_offset: int, *, deadline_ms: int, told: Told) -> bool:
        """True if nobody was waiting: then the caller sees to it that `expire` is called."""
        heapq.heappush(self._acks, (last_offset, next(self._order), deadline_ms, told))
        was_expiring, self.is_expiring = self.is_expiring, True
        return not was_expiring

    def expire(self, now_ms: int) -> int | None:
        """Tell those whose time is up; returns when to ask again."""
        late = [ack for ack in self._acks if ack[2] <= now_ms]
        if late:
            self._acks = [ack for ack in self._acks if ack[2] > now_ms]
            heapq.heapify(self._acks)
            for *_, told in late:
                told(Verdict.TIMED_OUT)
        self.is_expiring = bool(self._acks)
        return min((ack[2] for ack in self._acks), default=None)

    def abandon(self) -> None:
        """This broker leads no longer: nobody who waits here can be promised anything."""
        self.term = self.record = None
        self.timer_at_ms = None
        acks, self._acks = self._acks, []
        for *_, told in sorted(acks):
            told(None)
        self._tell(grew=False, committed=False)

    def _acknowledge(self) -> None:
        assert self.term is not None, "only a leader acknowledges"
        while self._acks and self._acks[0][0] < self.high_watermark:
            last_offset, _, deadline_ms, told = heapq.heappop(self._acks)
            told(
                after_append(
                    self.term.isr,
                    last_offset=Offset(last_offset),
                    high_watermark=Offset(self.high_watermark),
                    min_isr=self.min_isr,
                    deadline_ms=deadline_ms,
                    now_ms=deadline_ms,  # no matter: what is committed is never late
                )
            )

    def _tell(self, *, grew: bool, committed: bool) -> None:
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher.on_news(self, grew=grew, committed=committed)
