"""What a client or a follower fetches: for one request, or for a fetch session (KIP-227).

In a session a request lists only what changed, and a response only what is new. The work is as
small: a partition that was listed, or has records, an error or a watermark to send, is `ready`.
One that is not ready watches its replica. It costs nothing until the replica changes, however many
partitions there are and however often the client sends a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.broker_loop import BrokerLoop
from insync.broker.replication.replica import Replica
from insync.rules.leader_machine import SessionFetched
from insync.rules.values import BrokerId, LeaderEpoch
from insync.storage.log import ReadResult
from insync.telemetry.recorder import Run
from insync.telemetry.schemas import MERGED_GAP_MS
from insync.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from insync.wire.fetch_session_epochs import FIRST_EPOCH, NO_SESSION

RUNS_MAX: Final = 64  # spans of a session's requests between gaps; older ones are dropped

PartitionKey = tuple[str | UUID, int]
"""A topic as the client names it, and the number of a partition."""


class WaitingFetch(Protocol):
    """A fetch that has not been answered yet."""

    def try_to_answer(self) -> None: ...
    def answer_empty(self) -> None:
        """Answer without records: the client has sent another request in the session."""


class Backlog(Enum):
    """What there was to read for a partition when it was last read."""

    NONE = "nothing"
    UNLIMITED = "records that may be sent"
    LIMITED = "records that may be sent as the leader's quota allows (KIP-73)"
    HELD_BACK = "records of which the leader's quota admitted none"


class PoolReading(NamedTuple):
    """The read pool reads for the partition, or will when the session has memory for it."""

    read_id: int


class QueuedRead(Protocol):
    """A read that waits until the session has memory for it."""

    size_bytes: int

    def start(self) -> None: ...
    def cancel(self) -> None: ...


class PoolResult(NamedTuple):
    """What the pool read, to be sent with the next response."""

    epoch: LeaderEpoch
    """The leader epoch in which it was read. In another one it is stale."""
    records: ReadResult | ErrorCode


class SessionPartition:
    """One partition that a client or follower fetches from an offset on."""

    __slots__ = (
        "backlog",
        "is_outside_isr",
        "pool_read",
        "requested",
        "reserved_bytes",
        "sent_log_start",
        "sent_watermark",
        "session",
        "topic",
        "watched",
    )

    def __init__(self, session: FetchSession, topic: str | UUID, requested: FetchPartition) -> None:
        self.session = session
        self.topic = topic
        self.requested = requested  # the latest listing
        self.backlog = Backlog.NONE
        self.is_outside_isr = False  # of a follower: each of its requests may expand the ISR
        self.sent_watermark = self.sent_log_start = -1
        self.pool_read: PoolReading | PoolResult | None = None
        self.reserved_bytes = 0  # memory for `pool_read`; counted in the session's too
        self.watched: Replica | None = None  # None after a notification, or before the first read

    def watch(self, replica: Replica) -> None:
        if self.watched is not replica:
            self._stop_watching()
            self.watched = replica
        replica.watch(self)

    def _stop_watching(self) -> None:
        if self.watched is not None:
            self.watched.unwatch(self)
            self.watched = None

    def reserve(self, size_bytes: int) -> None:
        self.session.reserved_bytes += size_bytes - self.reserved_bytes
        self.reserved_bytes = size_bytes

    def awaits_read(self, read_id: int) -> bool:
        return isinstance(self.pool_read, PoolReading) and self.pool_read.read_id == read_id

    def on_partition_changed(self, replica: Replica, *, grew: bool, committed: bool) -> None:
        """Wake the session if there is more to read, or the role or the ISR has changed.

        A follower reads to the log's end. Commits do not wake it: its next response has them.
        """
        session = self.session
        if grew or committed:
            if self.backlog is Backlog.HELD_BACK or self in session.limited:
                replica.watch(self)  # it waits for the quota, not for records
                return
        else:
            session.limited.pop(self, None)  # whether it is limited may have changed
        is_follower = session.follower is not None
        wakes = (grew if is_follower else committed) or not (grew or committed)
        if wakes or (is_follower and replica.high_watermark != self.sent_watermark):
            session.ready[self] = None
        if wakes:
            self.watched = None
            if grew or committed:
                session.wake()
            else:
                session.wake_soon()
        else:
            replica.watch(self)

    def has_news(self, answer: FetchedPartition) -> bool:
        """Whether the answer says more than the one before it."""
        return (
            bool(answer.records)
            or answer.error != 0
            or answer.diverging is not None
            or answer.high_watermark != self.sent_watermark
            or answer.log_start != self.sent_log_start
        )

    def is_unchanged_since(self, answer: FetchedPartition) -> bool:
        """Whether reading it again would bring what this request has read before.

        Reading it again at every change of another partition would cost as many reads as there
        are pairs of them. Outside the ISR it stays ready: the next request may expand the ISR.
        """
        replica = self.watched
        is_reading = isinstance(self.pool_read, PoolReading)
        is_unchanged = (
            replica is not None
            and (is_reading or (self.backlog is Backlog.NONE and self.pool_read is None))
            and replica.high_watermark == answer.high_watermark
            and replica.log.start == answer.log_start
        )
        if is_unchanged and (is_reading or not self.is_outside_isr) and not self.has_news(answer):
            self.session.ready.pop(self, None)
        return is_unchanged

    def on_sent(self, answer: FetchedPartition) -> None:
        """The answer is sent. Records and errors are sent again until the client lists it again."""
        if not isinstance(self.pool_read, PoolReading) and self.backlog is not Backlog.HELD_BACK:
            self.drop_pool_read()
        # After an error every answer is news.
        self.sent_watermark = -1 if answer.error else answer.high_watermark
        self.sent_log_start = answer.log_start
        ready, limited = self.session.ready, self.session.limited
        ready.pop(self, None)
        if isinstance(self.pool_read, PoolReading) and not answer.error:
            limited.pop(self, None)
            return  # it is ready again when it is read
        match self.backlog:
            case Backlog.HELD_BACK:
                limited[self] = None
                return
            case Backlog.LIMITED:
                limited.pop(self, None)  # it got records: the others come first now
                limited[self] = None
                return
            case _:
                limited.pop(self, None)
        is_behind = self.backlog is Backlog.UNLIMITED
        if is_behind or self.is_outside_isr or answer.error or answer.diverging is not None:
            ready[self] = None  # after the others, so that each gets its turn
        elif self._has_changed_since(answer):
            ready[self] = None

    def _has_changed_since(self, answer: FetchedPartition) -> bool:
        """Whether the replica has changed between reading the partition and sending the answer.

        Reading others meanwhile may acknowledge commits, and the producer sends more at once.
        """
        replica = self.watched
        return replica is None or replica.high_watermark != answer.high_watermark

    def drop_pool_read(self) -> None:
        """Forget a read that is queued, under way or done."""
        self.pool_read = None
        queued = self.session.queued_reads.pop(self, None)
        if queued is not None:
            queued.cancel()
        if self.reserved_bytes:
            self.reserve(0)
            self.session.start_reads()

    def release(self) -> None:
        """It is fetched no longer. The result of a read that is under way will be discarded."""
        self.session.ready.pop(self, None)
        self.session.limited.pop(self, None)
        self.drop_pool_read()
        self._stop_watching()


class FetchSession:
    """What one client or follower fetches: in one request, or in many if it has a session id."""

    __slots__ = (
        "_attached",
        "_is_wake_queued",
        "_loop",
        "epoch",
        "fetched_at_ms",
        "follower",
        "limited",
        "max_bytes",
        "partitions",
        "queued_reads",
        "ready",
        "reserved_bytes",
        "runs",
        "session_id",
        "waiting",
    )

    def __init__(self, follower: BrokerId | None, loop: BrokerLoop) -> None:
        self.follower = follower  # None: a client
        self._loop = loop
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.fetched_at_ms = loop.now_ms
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.ready: dict[SessionPartition, None] = {}  # in the order they are served
        self.limited: dict[SessionPartition, None] = {}  # behind; served as the quota allows
        self.max_bytes = 0  # of a response, as the latest request has it
        self.reserved_bytes = 0  # memory for reads in the pool and their results
        self.queued_reads: dict[SessionPartition, QueuedRead] = {}  # which wait for such memory
        self.waiting: WaitingFetch | None = None
        self.runs: deque[Run] = deque(maxlen=RUNS_MAX)
        self._attached: dict[PartitionKey, Replica] = {}  # replicas whose `sessions` have this one
        self._is_wake_queued = False

    def note_request(self, now_ms: int, *, max_wait_ms: int) -> None:
        """A request counts as a fetch of all partitions that it does not list."""
        self.fetched_at_ms = now_ms
        runs = self.runs
        if runs and now_ms - runs[-1][1] <= max_wait_ms + MERGED_GAP_MS:
            first_ms, _, count, wait_ms = runs[-1]
            runs[-1] = (first_ms, now_ms, count + 1, wait_ms)
        else:
            runs.append((now_ms, now_ms, 1, 0))

    def note_wait(self, wait_ms: int) -> None:
        """The latest request waited for so long."""
        first_ms, last_ms, count, before_ms = self.runs[-1]
        self.runs[-1] = (first_ms, last_ms, count, before_ms + wait_ms)

    def queue_read(self, partition: SessionPartition, read: QueuedRead) -> None:
        """Start a read as soon as the session's reads and results leave memory for it."""
        self.queued_reads[partition] = read
        self.start_reads()

    def start_reads(self) -> None:
        while self.queued_reads:
            partition, read = next(iter(self.queued_reads.items()))
            if not self.has_memory_for(read.size_bytes):
                return
            del self.queued_reads[partition]
            partition.reserve(read.size_bytes)
            read.start()

    def has_memory_for(self, size_bytes: int) -> bool:
        """One read always fits."""
        return not self.reserved_bytes or self.reserved_bytes + size_bytes <= self.max_bytes

    def apply_request(self, request: FetchRequest) -> None:
        self.max_bytes = request.max_bytes
        for topic, numbers in request.forgotten:
            for number in numbers:
                self._forget((topic, number))
        for topic, partitions in request.topics:
            for requested in partitions:
                self._list(topic, requested)

    def _list(self, topic: str | UUID, requested: FetchPartition) -> None:
        key = (topic, requested.partition)
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = SessionPartition(self, topic, requested)
        elif partition.requested[:-1] == requested[:-1]:
            partition.requested = requested  # only the maximum bytes differ: reads remain valid
        elif isinstance(partition.pool_read, PoolReading):
            partition.release()  # the read that is under way is for another offset
            partition = self.partitions[key] = SessionPartition(self, topic, requested)
        else:
            partition.requested = requested
            partition.drop_pool_read()
        if self.follower is not None:
            # It may have discarded the last answer: it sends a second request before the first is
            # answered, and what was read for an earlier listing is stale to it.
            partition.sent_watermark = partition.sent_log_start = -1
        # It is looked at again, and answered only if there is something new.
        self.ready[partition] = None
        self.limited.pop(partition, None)

    def _forget(self, key: PartitionKey) -> None:
        partition = self.partitions.pop(key, None)
        if partition is not None:
            partition.release()
            self._detach(key)

    def attach(self, key: PartitionKey, replica: Replica) -> None:
        """From now on each request of a follower's session is a fetch of this replica too."""
        if self.follower is None or self.session_id == NO_SESSION:
            return
        if self._attached.get(key) is not replica:
            self._detach(key)
            self._attached[key] = replica
        replica.attach_session(self.follower, self)

    def _detach(self, key: PartitionKey) -> None:
        replica = self._attached.pop(key, None)
        if replica is None or self.follower is None:
            return
        if replica.sessions.get(self.follower) is self:
            term = replica.term
            if term is not None and replica.record is not None:
                replica.record.record_session_fetches(term, self.follower, self)
            # First: a deadline that is due now is met with what this session has said.
            replica.report(SessionFetched(self.follower, self.fetched_at_ms))
            replica.detach_session(self.follower)

    def has_room(self) -> None:
        self.wake()

    def wake(self) -> None:
        if self.waiting is not None:
            self.waiting.try_to_answer()

    def wake_soon(self) -> None:
        """Wake once for all changes of this moment.

        One change of the metadata may change the roles of thousands of partitions, and each
        attempt to answer reads all that are ready.
        """
        if self.waiting is not None and not self._is_wake_queued:
            self._is_wake_queued = True
            self._loop.then(self._wake_now)

    def _wake_now(self) -> None:
        self._is_wake_queued = False
        self.wake()

    def close(self) -> None:
        for key in list(self.partitions):
            self._forget(key)


class FetchSessions:
    """The fetch sessions of one broker. With too many, the longest unused is evicted."""

    def __init__(self, *, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}  # by id, the longest unused first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def limited(self) -> int:
        """Partitions that wait for the quota, counted for each follower."""
        return sum(len(session.limited) for session in self._sessions.values())

    def begin(self, session: FetchSession) -> None:
        """Give it an id, or none if there is no slot: then it is for one request only."""
        if len(self._sessions) >= self._slots:
            unused = next(iter(self._evictable()), None)
            if unused is None and session.follower is None:
                return
            if unused is not None:
                self.end(unused.session_id)
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session.session_id = session_id
        self._sessions[session_id] = session

    def _evictable(self) -> Iterable[FetchSession]:
        """Not those of followers: without one, each fetch costs as much as they follow."""
        return (
            session
            for session in self._sessions.values()
            if session.follower is None and session.waiting is None
        )

    def find(self, session_id: int, follower: BrokerId | None) -> FetchSession | None:
        """The session with this id, if it belongs to this follower or, with None, to a client."""
        session = self._sessions.get(session_id)
        if session is None or session.follower != follower:
            return None
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
