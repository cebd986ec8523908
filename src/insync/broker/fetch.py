"""Fetch: what a consumer or a follower may read, at once or as soon as there is enough of it.

A consumer reads below the high watermark, a follower to the log's end. A fetch that finds too
little waits: it looks again when one of its partitions has news, and answers with what there is
when its time is up.

A follower's fetch is also news of the follower. It takes effect once, when it is first read, with
the leader's end from just before that read. Bytes that are not in memory are read in the pool:
meanwhile the read is pending, and in a session the other partitions are answered without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.fetch_sessions import (
    CLOSE_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    FetchSessions,
    Interest,
    Reader,
    next_epoch,
)
from insync.broker.pending_read import PendingRead, Reading
from insync.broker.quotas import Passage, Quota
from insync.broker.reads import ReadPool
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.broker.server import Connection, Reply
from insync.rules import isr as isr_rules
from insync.rules.epochs import divergence
from insync.rules.follower import Fetch as FollowerFetch
from insync.rules.throttling import Treatment
from insync.rules.values import BrokerId, Incarnation, LeaderEpoch, Offset
from insync.storage.errors import OffsetOutOfRange, StorageRefusal
from insync.storage.log import ReadResult, WouldBlock
from insync.telemetry.recorder import PartitionRecord
from insync.telemetry.schemas import DIVERGING, ERROR
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    read_fetch,
    write_fetch_response,
)

FETCH_BYTES_MAX = 55 << 20  # fetch.max.bytes: what one answer may hold, whoever asks

logger = logging.getLogger(__name__)


class Fetch:
    def __init__(
        self,
        replicas: Replicas,
        view: ClusterView,
        sessions: FetchSessions,
        pool: ReadPool,
        quota: Quota,
    ) -> None:
        self.replicas = replicas
        self.pool = pool
        self.quota = quota
        self.read_ids = count()
        self._view = view
        self._sessions = sessions
        self._on: dict[Connection, Reading] = {}

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = read_fetch(reply.header.api_version, frame, reply.header.body_at)
        if request.replica_id >= 0 and not self._is_proven(reply, request):
            refuse(reply, ErrorCode.cluster_authorization_failed)
            return
        reader = self._reader(reply, request)
        if isinstance(reader, ErrorCode):
            refuse(reply, reader)
            return
        is_full = request.session_epoch in (CLOSE_EPOCH, FIRST_EPOCH)
        Attempt(self, reply, request, reader, is_full=is_full).look()
        reader.asked_at(self.replicas.clock_ms(), max_wait_ms=request.max_wait_ms)

    def _is_proven(self, reply: Reply, request: FetchRequest) -> bool:
        """A replica id is believed only from a broker that proved itself (CVE-2018-1288)."""
        if reply.connection.broker is None:
            return False
        broker, incarnation = reply.connection.broker
        record = self._view.brokers.get(BrokerId(broker))
        return (
            broker == request.replica_id
            and record is not None
            and incarnation == record.incarnation
        )

    def _reader(self, reply: Reply, request: FetchRequest) -> Reader | ErrorCode:
        """Who asks, with everything the request lists and forgets taken in."""
        follower = BrokerId(request.replica_id) if request.replica_id >= 0 else None
        now_ms = self.replicas.clock_ms()
        known = None
        if request.session_id != NO_SESSION:
            known = self._sessions.find(request.session_id, follower)
        if request.session_epoch in (CLOSE_EPOCH, FIRST_EPOCH):
            if known is not None:
                self._sessions.end(known.session_id)
            reader = Reader(follower, now_ms=now_ms)
            if request.session_epoch == FIRST_EPOCH:
                self._begin_session(reply, reader)
        elif known is None:
            return ErrorCode.fetch_session_id_not_found
        elif request.session_epoch != next_epoch(known.epoch):
            return ErrorCode.invalid_fetch_session_epoch
        else:
            reader = known
            reader.epoch = request.session_epoch
            if reader.waiting is not None:
                reader.waiting.give_way()
        reader.ask(request)
        return reader

    def _begin_session(self, reply: Reply, reader: Reader) -> None:
        """One per connection: a reader that begins another, or comes back, begins anew."""
        reading = self.reading_on(reply.connection)
        self._sessions.end(reading.session_id)
        self._sessions.begin(reader)
        reading.session_id = reader.session_id

    def reading_on(self, connection: Connection) -> Reading:
        reading = self._on.get(connection)
        if reading is None:
            reading = self._on[connection] = Reading()
            connection.on_close.append(partial(self._connection_closed, connection))
        return reading

    def _connection_closed(self, connection: Connection) -> None:
        reading = self._on.pop(connection)
        self._sessions.end(reading.session_id)
        for pending in reading.pending:
            pending.connection_closed()

    def find(self, interest: Interest) -> Replica | ErrorCode:
        key = self._key_of(interest.topic, interest.asked.partition)
        return key if isinstance(key, ErrorCode) else self._replica_for(key, interest.asked)

    def _key_of(self, topic: str | UUID, partition: int) -> TopicPartition | ErrorCode:
        name = topic if isinstance(topic, str) else self._view.topic_names.get(topic)
        if name is None:
            return ErrorCode.unknown_topic_id
        if (name, partition) not in self._view.states:
            return ErrorCode.unknown_topic_or_partition
        return name, partition

    def _replica_for(self, key: TopicPartition, asked: FetchPartition) -> Replica | ErrorCode:
        found = self.replicas.leader_of(key)
        if found is None:
            return ErrorCode.not_leader_or_follower
        if asked.current_leader_epoch >= 0:
            if asked.current_leader_epoch < found.epoch:
                return ErrorCode.fenced_leader_epoch
            if asked.current_leader_epoch > found.epoch:
                return ErrorCode.unknown_leader_epoch
        return found


def refuse(reply: Reply, code: ErrorCode) -> None:
    reply.send(write_fetch_response(reply.header.api_version, FetchResponse(error=code)))


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a reader's partitions found."""

    parts: list[tuple[Interest, FetchedPartition]]
    size_bytes: int
    must_answer: bool  # an error or a divergence does not wait
    passage: Passage | None  # through the quota, if there is one


class Attempt:
    """One fetch until it is answered."""

    def __init__(
        self, fetch: Fetch, reply: Reply, request: FetchRequest, reader: Reader, *, is_full: bool
    ) -> None:
        self._fetch = fetch
        self._reply = reply
        self._request = request
        self._reader = reader
        self._is_full = is_full
        self._timer: asyncio.TimerHandle | None = None
        self._is_first = True
        self._parsed_at_ms = fetch.replicas.clock_ms()
        self._wanted_at_ms: dict[Interest, int] = {}
        self._is_late = request.max_wait_ms <= 0
        self._has_waited = False
        self._is_done = False
        self._reads_under_way = 0
        self._idle: list[PartitionRecord] = []  # what is written down with how long this waits

    def look(self) -> None:
        """Read what there is, and answer if it is enough."""
        if self._is_done:
            return
        if not self._reply.connection.is_open:
            self._finish()
            return
        found = self._look()
        self._is_first = False
        is_enough = found.must_answer or found.size_bytes >= self._request.min_bytes
        if (is_enough or self._is_late) and not self._must_wait():
            counts = self._fetch.replicas.counts
            if self._reader.follower is None:
                counts.bytes_out += found.size_bytes
            else:
                counts.replication_bytes_out += found.size_bytes
            if found.passage is not None:
                found.passage.leaves()
            self._answer(found.parts)
        elif not self._is_late and self._timer is None:
            self._wait()

    def _must_wait(self) -> bool:
        """Outside a session there is no later answer for what the pool still reads."""
        return self._reads_under_way > 0 and self._reader.session_id == NO_SESSION

    def give_way(self) -> None:
        self._answer([])

    def _answer(self, parts: Iterable[tuple[Interest, FetchedPartition]]) -> None:
        topics: dict[str | UUID, list[FetchedPartition]] = {}
        for interest, part in parts:
            if self._is_full or interest.has_news(part):
                topics.setdefault(interest.topic, []).append(part)
            interest.told(part)
        self._finish()
        response = FetchResponse(session_id=self._reader.session_id, topics=list(topics.items()))
        self._reply.send(write_fetch_response(self._reply.header.api_version, response))

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._request.max_wait_ms / 1_000, self._time_is_up)
        self._has_waited = True
        self._reader.waiting = self

    def _time_is_up(self) -> None:
        self._timer = None
        self._is_late = True
        self.look()

    def _finish(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._reader.waiting is self:
            self._reader.waiting = None
        if self._reader.follower is not None and (self._has_waited or self._idle):
            self._note_wait(self._reader.follower)
        if self._reader.session_id == NO_SESSION:
            self._reader.let_go()

    def _note_wait(self, follower: BrokerId) -> None:
        wait_ms = self._fetch.replicas.clock_ms() - self._parsed_at_ms
        if self._has_waited:
            self._reader.waited(wait_ms)
        for record in self._idle:
            record.waited(follower, wait_ms)

    # Reading.

    def _look(self) -> Look:
        reader = self._reader
        left = min(self._request.max_bytes, FETCH_BYTES_MAX)
        parts: list[tuple[Interest, FetchedPartition]] = []
        size_bytes, must_answer = 0, False
        passage = None if reader.follower is None else self._fetch.quota.passage(reader)
        for interest in self._in_order(passage):
            is_full_up = left <= 0 < size_bytes
            if is_full_up and not self._is_full and not self._is_first:
                break  # the others stay ready, and come first next time
            found = self._fetch.find(interest)
            if isinstance(found, ErrorCode):
                part = FetchedPartition(interest.asked.partition, found, -1)
            else:
                # A follower gets a batch larger than it asked for as long as it fits the answer:
                # else one beside busy partitions would never come first.
                is_roomy = reader.follower is not None and left >= found.batch_bytes_max
                part = self._read_one(
                    interest, found, left, passage, min_one_batch=size_bytes == 0 or is_roomy
                )
                interest.watch(found)
            size = len(part.records or b"")
            size_bytes, left = size_bytes + size, max(0, left - size)
            must_answer |= part.error != ErrorCode.none or part.diverging is not None
            parts.append((interest, part))
        return Look(parts, size_bytes, must_answer, passage)

    def _in_order(self, passage: Passage | None) -> Iterator[Interest]:
        """What is to be looked at: what waits for the quota first, as far as it lets go."""
        reader = self._reader
        if self._is_full:
            yield from list(reader.interests.values())
            return
        for interest in list(reader.limited):
            if passage is not None and not passage.is_open:
                break
            yield interest
        yield from list(reader.ready)

    def _read_one(
        self,
        interest: Interest,
        found: Replica,
        left: int,
        passage: Passage | None,
        *,
        min_one_batch: bool,
    ) -> FetchedPartition:
        asked, log = interest.asked, found.log
        parted = _divergence(found, asked)
        if parted is not None:
            self._note_refused(found, asked, DIVERGING)
            return FetchedPartition(
                asked.partition,
                ErrorCode.none,
                found.high_watermark,
                log_start=log.start,
                diverging=parted,
            )
        leader_end = log.end
        if not log.start <= asked.fetch_offset <= leader_end:
            self._note_refused(found, asked, ERROR)
            return _refused(found, asked, ErrorCode.offset_out_of_range)
        is_follower = self._reader.follower is not None
        up_to = leader_end if is_follower else found.high_watermark
        interest.is_behind = asked.fetch_offset < up_to
        interest.is_outside = is_follower and self._is_outside(found)
        treated = _treated(interest, found, passage)
        if interest.is_limited and passage is not None and interest.is_behind:
            left, min_one_batch = passage.room_bytes(left), passage.is_open
            interest.is_held_back = left == 0
        if interest.ahead is not None and interest.ahead[0] != found.epoch:
            interest.ahead = None  # read under another leader
        is_fresh = interest.reading is None and interest.ahead is None
        data = self._read_now(interest, found, left, up_to=up_to, min_one_batch=min_one_batch)
        if isinstance(data, ErrorCode):
            return _refused(found, asked, data)
        if isinstance(data, WouldBlock):
            self._read_later(interest, found, left, up_to=up_to, min_one_batch=min_one_batch)
            return _answered(found, asked, None)
        if data is not None and passage is not None and treated is not Treatment.FREE:
            data = _through(passage, interest, data)
        if self._is_first and is_fresh:
            size_bytes = 0 if data is None else len(data.data)
            self._note_fetch(interest, found, leader_end, size_bytes)
            interest.is_outside = is_follower and self._is_outside(found)  # that may let it in
        return _answered(found, asked, data)

    def _read_now(
        self, interest: Interest, found: Replica, left: int, *, up_to: int, min_one_batch: bool
    ) -> ReadResult | WouldBlock | ErrorCode | None:
        """What is in memory, or was read meanwhile; None: nothing is to be read now."""
        if interest.ahead is not None:
            return None if interest.is_held_back else interest.ahead[1]
        if interest.reading is not None or not interest.is_behind:
            return None
        if left <= 0 and not min_one_batch:
            return None
        return _read(found, interest.asked, left, up_to=up_to, min_one_batch=min_one_batch)

    def _is_outside(self, found: Replica) -> bool:
        follower, term = self._reader.follower, found.term
        return term is not None and follower not in isr_rules.committed(term.isr)

    def _note_fetch(
        self, interest: Interest, found: Replica, leader_end: int, size_bytes: int
    ) -> None:
        follower = self._reader.follower
        replicas = self._fetch.replicas
        now_ms = replicas.clock_ms()
        if follower is None or found.term is None or follower not in found.term.followers:
            return
        asked = interest.asked
        replicas.fetched(
            found,
            follower,
            FollowerFetch(
                offset=Offset(asked.fetch_offset),
                leader_end=Offset(leader_end),
                at_ms=now_ms,
                served_at_ms=now_ms,
                log_start=Offset(max(0, asked.log_start)),
                incarnation=Incarnation(self._request.replica_epoch),
            ),
            size_bytes=size_bytes,
            is_held_back=interest.is_held_back,
        )
        if found.record is not None and not interest.is_behind:
            self._idle.append(found.record)
        self._reader.hold((interest.topic, asked.partition), found)

    def _note_refused(self, found: Replica, asked: FetchPartition, outcome: str) -> None:
        """Written down, though to the rules such a fetch says nothing."""
        follower = self._reader.follower
        if self._is_first and follower is not None and found.record is not None:
            found.record.fetch(
                follower,
                offset=asked.fetch_offset,
                leader_end=found.log.end,
                high_watermark=found.high_watermark,
                log_start=max(0, asked.log_start),
                size_bytes=0,
                at_ms=self._fetch.replicas.clock_ms(),
                outcome=outcome,
            )

    # Reading what is not in memory.

    def _read_later(
        self, interest: Interest, found: Replica, left: int, *, up_to: int, min_one_batch: bool
    ) -> None:
        """Have it read in the pool: pending until then, and ready when it is done."""
        asked, reader = interest.asked, self._reader
        # Reading begins when the request is parsed; a wait for records is no part of it.
        now_ms = self._fetch.replicas.clock_ms()
        since_ms = self._parsed_at_ms if self._is_first else now_ms
        wanted_at_ms = self._wanted_at_ms.setdefault(interest, since_ms)
        size_bytes = min(asked.max_bytes, left)
        if reader.reserved_bytes and reader.reserved_bytes + size_bytes > self._request.max_bytes:
            return  # enough of this reader's memory is spoken for; it is looked at again
        interest.reserve(size_bytes)
        pending = PendingRead(
            self,
            interest,
            found,
            read_id=next(self._fetch.read_ids),
            leader_end=up_to,
            incarnation=Incarnation(self._request.replica_epoch),
        )
        interest.reading = pending.read_id
        self._reads_under_way += 1
        pending.begin(reader.follower, parsed_at_ms=wanted_at_ms)
        read = partial(
            found.log.read,
            asked.fetch_offset,
            size_bytes,
            up_to=up_to,
            min_one_batch=min_one_batch,
            nowait=False,
        )
        self._fetch.pool.submit(read).add_done_callback(pending.on_done)

    def read_is_over(self) -> None:
        self._reads_under_way -= 1
        self.look()

    @property
    def connection(self) -> Connection:
        return self._reply.connection

    @property
    def replicas(self) -> Replicas:
        return self._fetch.replicas

    @property
    def reading(self) -> Reading:
        return self._fetch.reading_on(self.connection)


def _treated(interest: Interest, found: Replica, passage: Passage | None) -> Treatment:
    """How the quota treats what this reader is to be sent."""
    treated = Treatment.FREE
    if passage is not None:
        treated = passage.treatment(found.key, is_in_sync=not interest.is_outside)
    interest.is_limited = treated is Treatment.LIMITED
    interest.is_held_back = False
    return treated


def _through(passage: Passage, interest: Interest, data: ReadResult) -> ReadResult | None:
    """What was read, if the quota lets it go; else it is read again when it does."""
    size_bytes = len(data.data)
    if not interest.is_limited:
        passage.in_sync(size_bytes)
    elif size_bytes and not passage.admits(size_bytes):
        interest.is_held_back = True
        return None
    return data


def _answered(found: Replica, asked: FetchPartition, data: ReadResult | None) -> FetchedPartition:
    watermark = found.high_watermark
    return FetchedPartition(
        asked.partition,
        ErrorCode.none,
        watermark,
        last_stable_offset=watermark,
        log_start=found.log.start,
        records=None if data is None else memoryview(data.data),
    )


def _read(
    found: Replica, asked: FetchPartition, left: int, *, up_to: int, min_one_batch: bool
) -> ReadResult | WouldBlock | ErrorCode:
    try:
        return found.log.read(
            asked.fetch_offset,
            min(asked.max_bytes, left),
            up_to=up_to,
            min_one_batch=min_one_batch,
            nowait=True,
        )
    except OffsetOutOfRange:
        return ErrorCode.offset_out_of_range
    except StorageRefusal:
        return ErrorCode.kafka_storage_error


def _divergence(found: Replica, asked: FetchPartition) -> tuple[int, int] | None:
    """Where the reader's log parted from this one, if it says what it last read."""
    latest = found.log.epochs.latest
    if asked.last_fetched_epoch < 0 or latest is None:
        return None
    parted = divergence(
        found.log.epochs,
        leader_log_end=Offset(found.log.end),
        fetch_offset=Offset(asked.fetch_offset),
        last_fetched_epoch=LeaderEpoch(min(asked.last_fetched_epoch, latest)),
    )
    return None if parted is None else (parted.epoch, parted.end)


def _refused(found: Replica, asked: FetchPartition, code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(asked.partition, code, found.high_watermark, log_start=found.log.start)
