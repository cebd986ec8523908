"""What a reader asked for and was last told, for one fetch or for a session of them (KIP-227).

In a session a request lists only what changed, and an answer only what there is to say. So does
the work: a partition that was listed, or has data, an error or a watermark to tell, is `ready`;
one that is not ready watches its replica, and costs nothing until that changes, however many
there are and however often the reader asks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.replica import Replica
from insync.rules.values import BrokerId, LeaderEpoch
from insync.storage.log import ReadResult
from insync.telemetry.recorder import Run
from insync.telemetry.schemas import MERGED_GAP_MS
from insync.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

NO_SESSION: Final = 0
CLOSE_EPOCH: Final = -1  # a full fetch outside any session, which ends the one it names
FIRST_EPOCH: Final = 0  # a full fetch that would begin a session
EPOCH_MAX: Final = 2_147_483_647
RUNS_MAX: Final = 64  # of a session's requests, told apart by gaps; older ones are forgotten

Place = tuple[str | UUID, int]  # a topic as the reader names it, and the partition's number


class Waiting(Protocol):
    """A fetch that was not answered yet."""

    def look(self) -> None: ...
    def give_way(self) -> None:
        """Answer without anything: the reader has asked again."""


class Interest:
    """One partition that a reader wants to read on from where it says it stands."""

    __slots__ = (
        "ahead",
        "asked",
        "is_behind",
        "is_held_back",
        "is_limited",
        "is_outside",
        "reader",
        "reading",
        "reserved_bytes",
        "told_log_start",
        "told_watermark",
        "topic",
        "watching",
    )

    def __init__(self, reader: Reader, topic: str | UUID, asked: FetchPartition) -> None:
        self.reader = reader
        self.topic = topic
        self.asked = asked
        self.is_behind = False  # there was more to read than it has
        self.is_outside = False  # a follower not in sync: each of its requests may let it in
        self.is_limited = False  # by the leader's quota (KIP-73)
        self.is_held_back = False  # there was more, and the quota let nothing go
        self.told_watermark = self.told_log_start = -1
        self.reading: int | None = None  # the read under way in the pool
        self.ahead: tuple[LeaderEpoch, ReadResult | ErrorCode] | None = None  # what it brought
        self.reserved_bytes = 0  # what both may take of memory
        self.watching: Replica | None = None

    def watch(self, replica: Replica) -> None:
        if self.watching is not replica:
            self._look_away()
            self.watching = replica
        replica.watchers[self] = None

    def _look_away(self) -> None:
        if self.watching is not None:
            self.watching.watchers.pop(self, None)
            self.watching = None

    def reserve(self, size_bytes: int) -> None:
        self.reader.reserved_bytes += size_bytes - self.reserved_bytes
        self.reserved_bytes = size_bytes

    def on_news(self, replica: Replica, *, grew: bool, committed: bool) -> None:
        """More to read wakes the reader. A follower is told of commits beside other things."""
        if grew or committed:
            if self.is_held_back or self in self.reader.limited:
                replica.watchers[self] = None  # it waits for the quota, not for records
                return
        else:
            self.reader.limited.pop(self, None)  # whether it is limited may have changed
        is_follower = self.reader.follower is not None
        is_for_me = (grew if is_follower else committed) or not (grew or committed)
        if is_for_me or is_follower:
            self.reader.ready[self] = None
        if is_for_me:
            self.watching = None
            if grew or committed:
                self.reader.wake()
            else:
                self.reader.wake_soon()
        else:
            replica.watchers[self] = None

    def has_news(self, part: FetchedPartition) -> bool:
        return (
            bool(part.records)
            or part.error != 0
            or part.diverging is not None
            or part.high_watermark != self.told_watermark
            or part.log_start != self.told_log_start
        )

    def told(self, part: FetchedPartition) -> None:
        """What leaves now. Records and errors are said again until the reader moves on."""
        if self.reading is None and not self.is_held_back:
            self.ahead = None
            self.reserve(0)
        # After an error whatever comes next is news.
        self.told_watermark = -1 if part.error else part.high_watermark
        self.told_log_start = part.log_start
        ready, limited = self.reader.ready, self.reader.limited
        ready.pop(self, None)
        if self.is_limited and self.is_behind:
            if not self.is_held_back:
                limited.pop(self, None)  # it got something: the others come first now
            limited[self] = None
            return
        limited.pop(self, None)
        if self.is_behind or self.is_outside or part.error or part.diverging is not None:
            ready[self] = None  # behind the others: nobody starves
        elif self._has_changed_since(part):
            ready[self] = None

    def _has_changed_since(self, part: FetchedPartition) -> bool:
        """There may be news between reading a partition and answering: while others are read their
        commits are acknowledged, and a producer that is answered goes on at once."""
        replica = self.watching
        return replica is None or replica.high_watermark != part.high_watermark

    def let_go(self) -> None:
        """Nobody asks for it any more; what the pool still reads of it will be thrown away."""
        self.reader.ready.pop(self, None)
        self.reader.limited.pop(self, None)
        self.reading = self.ahead = None
        self.reserve(0)
        self._look_away()


class Reader:
    """Whoever fetches: once, or in a session if it has an id."""

    __slots__ = (
        "_held",
        "_is_waking",
        "epoch",
        "fetched_at_ms",
        "follower",
        "interests",
        "limited",
        "ready",
        "reserved_bytes",
        "runs",
        "session_id",
        "waiting",
    )

    def __init__(self, follower: BrokerId | None, *, now_ms: int) -> None:
        self.follower = follower
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.fetched_at_ms = now_ms
        self.interests: dict[Place, Interest] = {}
        self.ready: dict[Interest, None] = {}  # in the order they are served
        self.limited: dict[Interest, None] = {}  # behind, and served as the quota allows
        self.reserved_bytes = 0  # by reads in the pool, and by what they brought
        self.waiting: Waiting | None = None
        self.runs: deque[Run] = deque(maxlen=RUNS_MAX)
        self._held: dict[Place, Replica] = {}
        self._is_waking = False

    def asked_at(self, now_ms: int, *, max_wait_ms: int) -> None:
        """What the session says of partitions it does not list counts from the next request on."""
        self.fetched_at_ms = now_ms
        runs = self.runs
        if runs and now_ms - runs[-1][1] <= max_wait_ms + MERGED_GAP_MS:
            first_ms, _, count, wait_ms = runs[-1]
            runs[-1] = (first_ms, now_ms, count + 1, wait_ms)
        else:
            runs.append((now_ms, now_ms, 1, 0))

    def waited(self, wait_ms: int) -> None:
        """The last request did, for as long."""
        first_ms, last_ms, count, before_ms = self.runs[-1]
        self.runs[-1] = (first_ms, last_ms, count, before_ms + wait_ms)

    def ask(self, request: FetchRequest) -> None:
        """Take in what a request lists and forgets."""
        for topic, numbers in request.forgotten:
            for number in numbers:
                self._forget((topic, number))
        for topic, partitions in request.topics:
            for asked in partitions:
                self._list(topic, asked)

    def _list(self, topic: str | UUID, asked: FetchPartition) -> None:
        place = (topic, asked.partition)
        interest = self.interests.get(place)
        if interest is None:
            interest = self.interests[place] = Interest(self, topic, asked)
        elif interest.asked[:-1] == asked[:-1]:
            interest.asked = asked  # how much it may be sent changes nothing about what is read
        else:
            if interest.reading is not None:
                # That read answers a question nobody asks any more.
                interest.let_go()
                interest = self.interests[place] = Interest(self, topic, asked)
            interest.asked = asked
            interest.ahead = None
            interest.reserve(0)
        # A reader that lists a partition again is due an answer on it only if there is news.
        self.ready[interest] = None
        self.limited.pop(interest, None)

    def _forget(self, place: Place) -> None:
        interest = self.interests.pop(place, None)
        if interest is not None:
            interest.let_go()
            self._release(place)

    def hold(self, place: Place, replica: Replica) -> None:
        """From its first listing on, a follower's session speaks for the partition."""
        if self.follower is None or self.session_id == NO_SESSION:
            return
        if self._held.get(place) is not replica:
            self._release(place)
            self._held[place] = replica
        replica.sessions[self.follower] = self

    def _release(self, place: Place) -> None:
        replica = self._held.pop(place, None)
        if replica is None or self.follower is None:
            return
        if replica.sessions.get(self.follower) is self:
            term = replica.term
            if term is not None and replica.record is not None:
                replica.record.carried(term, self.follower, self)
            del replica.sessions[self.follower]
            if term is not None and self.follower in term.followers:
                replica.advance(term.session_fetched(self.follower, at_ms=self.fetched_at_ms))

    def has_room(self) -> None:
        self.wake()

    def wake(self) -> None:
        if self.waiting is not None:
            self.waiting.look()

    def wake_soon(self) -> None:
        """Once for all that change now: one step of the store changes roles by the thousand, and
        each look is at all that is ready."""
        if self.waiting is not None and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._is_waking = False
        self.wake()

    def let_go(self) -> None:
        """It reads no more."""
        for place in list(self.interests):
            self._forget(place)


class FetchSessions:
    """The sessions of one broker, by id; the longest unused goes first when they are too many."""

    def __init__(self, *, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._readers: dict[int, Reader] = {}  # the longest unused first

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def limited(self) -> int:
        """Partitions that wait for the quota, each for one follower."""
        return sum(len(reader.limited) for reader in self._readers.values())

    def begin(self, reader: Reader) -> None:
        """Give the reader an id, or none if there is no room: then it fetches without."""
        if len(self._readers) >= self._slots:
            unused = next((each for each in self._evictable()), None)
            if unused is None and reader.follower is None:
                return
            if unused is not None:
                self.end(unused.session_id)
        session_id = self._new_id()
        while session_id in self._readers or session_id == NO_SESSION:
            session_id = self._new_id()
        reader.session_id = session_id
        self._readers[session_id] = reader

    def _evictable(self) -> Iterable[Reader]:
        """Followers keep theirs: without it every fetch costs as much as they follow."""
        return (
            reader
            for reader in self._readers.values()
            if reader.follower is None and reader.waiting is None
        )

    def find(self, session_id: int, follower: BrokerId | None) -> Reader | None:
        """The reader of this session, if it is whose it claims to be."""
        reader = self._readers.get(session_id)
        if reader is None or reader.follower != follower:
            return None
        self._readers[session_id] = self._readers.pop(session_id)
        return reader

    def end(self, session_id: int) -> None:
        reader = self._readers.pop(session_id, None)
        if reader is not None:
            reader.let_go()


def next_epoch(epoch: int) -> int:
    """Epochs go round without coming back to the one that begins a session."""
    return 1 if epoch >= EPOCH_MAX else epoch + 1
