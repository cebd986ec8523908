"""One fetch request until it is answered: at once, or when there is enough to send.

A consumer reads below the high watermark, a follower to the log's end. A fetch that has too little
to answer with waits. It reads again when one of its partitions changes, and answers with what there
is when its maximum wait is over.

To the leader, a follower's fetch is also news of the follower. It takes effect once, when it is
first read, with the leader's log end from just before that read. Bytes that are not in memory are
read in the pool. Until then the read is pending, and in a session the other partitions are answered
without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.fetch.fetch_answers import (
    error_answer,
    find_divergence,
    read_from_memory,
    records_answer,
)
from insync.broker.fetch.fetch_sessions import (
    Backlog,
    FetchSession,
    PoolReading,
    PoolResult,
    SessionPartition,
)
from insync.broker.fetch.pending_read import ConnectionFetches, OnReadDone, PendingRead
from insync.broker.quotas.quota_admission import UNTHROTTLED, QuotaAdmission, ResponseAdmission
from insync.broker.reads import ReadPool
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.server.server import Connection, Reply
from insync.rules import isr as isr_rules
from insync.rules.follower import Fetch as FollowerFetch
from insync.rules.throttling import Treatment
from insync.rules.values import BrokerId, Incarnation, Offset
from insync.storage.log import ReadResult, WouldBlock
from insync.telemetry.recorder import PartitionRecord
from insync.telemetry.schemas import DIVERGING, ERROR
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    write_fetch_response,
)
from insync.wire.fetch_session_epochs import NO_SESSION

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 55 << 20  # fetch.max.bytes: the most that one response may hold


class FetchHandler(Protocol):
    """What all fetches of a broker share."""

    replicas: Replicas
    pool: ReadPool
    quota: QuotaAdmission
    read_ids: Iterator[int]

    def find_replica(self, partition: SessionPartition) -> Replica | ErrorCode: ...
    def fetches_on(self, connection: Connection) -> ConnectionFetches: ...


@dataclass(frozen=True, slots=True)
class ResponseDraft:
    """A response as far as it can be filled now. It is sent, or filled again later."""

    answers: list[tuple[SessionPartition, FetchedPartition]]
    size_bytes: int
    must_be_sent: bool  # it has an error or a divergence, which do not wait
    admission: ResponseAdmission  # of its bytes, by the quota


class PendingFetch:
    """One fetch request until it is answered."""

    def __init__(
        self,
        handler: FetchHandler,
        reply: Reply,
        request: FetchRequest,
        session: FetchSession,
        *,
        is_full: bool,
    ) -> None:
        self._handler = handler
        self._reply = reply
        self._request = request
        self._session = session
        self._is_full = is_full  # the response has all partitions, not only those with news
        # What each partition was last read as, without records. It is read again if it changes.
        self._answers: dict[SessionPartition, FetchedPartition] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_first_attempt = True
        self._parsed_at_ms = handler.replicas.loop.now_ms
        self._is_wait_over = request.max_wait_ms <= 0
        self._has_waited = False
        self._is_answered = False
        self._reads_under_way = 0
        # Telemetry of partitions that the follower has all of: records how long the fetch waits.
        self._caught_up_records: list[PartitionRecord] = []

    def try_to_answer(self) -> None:
        """Read what there is, and answer if it is enough."""
        if self._is_answered:
            return
        if not self._reply.connection.is_open:
            self._finish()
            return
        draft = self._fill_response()
        self._is_first_attempt = False
        is_enough = draft.must_be_sent or draft.size_bytes >= self._request.min_bytes
        if (is_enough or self._is_wait_over) and not self._needs_pool_reads():
            counts = self._handler.replicas.counters
            if self._session.follower is None:
                counts.bytes_out += draft.size_bytes
            else:
                counts.replication_bytes_out += draft.size_bytes
            draft.admission.on_sent()
            self._answer(
                {**self._answers, **dict(draft.answers)}.items() if self._answers else draft.answers
            )
            return
        for partition, answer in draft.answers:
            self._answers[partition] = answer._replace(records=None) if answer.records else answer
        if not self._is_wait_over and self._timer is None:
            self._wait()

    def _needs_pool_reads(self) -> bool:
        """Without a session there is no later response for what the pool still reads."""
        return self._reads_under_way > 0 and self._session.session_id == NO_SESSION

    def answer_empty(self) -> None:
        self._answer([])

    def _answer(self, answers: Iterable[tuple[SessionPartition, FetchedPartition]]) -> None:
        topics: dict[str | UUID, list[FetchedPartition]] = {}
        for partition, answer in answers:
            if self._is_full or partition.has_news(answer):
                topics.setdefault(partition.topic, []).append(answer)
            partition.on_sent(answer)
        self._finish()
        response = FetchResponse(session_id=self._session.session_id, topics=list(topics.items()))
        self._reply.send(write_fetch_response(self._reply.header.api_version, response))

    def _wait(self) -> None:
        loop = self._handler.replicas.loop
        self._timer = loop.call_later(self._request.max_wait_ms / 1_000, self._on_wait_over)
        self._has_waited = True
        self._session.waiting = self

    def _on_wait_over(self) -> None:
        self._timer = None
        self._is_wait_over = True
        self.try_to_answer()

    def _finish(self) -> None:
        self._is_answered = True
        if self._timer is not None:
            self._timer.cancel()
        if self._session.waiting is self:
            self._session.waiting = None
        follower = self._session.follower
        if follower is not None and (self._has_waited or self._caught_up_records):
            self._record_wait(follower)
        if self._session.session_id == NO_SESSION:
            self._session.close()

    def _record_wait(self, follower: BrokerId) -> None:
        wait_ms = self._handler.replicas.loop.now_ms - self._parsed_at_ms
        if self._has_waited:
            self._session.note_wait(wait_ms)
        for record in self._caught_up_records:
            record.record_wait(follower, wait_ms)

    # Reading.

    def _fill_response(self) -> ResponseDraft:
        session = self._session
        left_bytes = min(self._request.max_bytes, FETCH_BYTES_MAX)
        answers: list[tuple[SessionPartition, FetchedPartition]] = []
        size_bytes, must_be_sent = 0, False
        is_follower = session.follower is not None
        admission = self._handler.quota.response(session) if is_follower else UNTHROTTLED
        for partition in self._partitions_to_read(admission):
            is_response_full = left_bytes <= 0 < size_bytes
            if is_response_full and not self._is_first_attempt:
                break  # the others stay ready, and come first next time
            before = self._answers.get(partition)
            if before is not None and partition.is_unchanged_since(before):
                continue
            replica = self._handler.find_replica(partition)
            if isinstance(replica, ErrorCode):
                answer = FetchedPartition(partition.requested.partition, replica, -1)
            else:
                # A follower gets a batch larger than it requested if the response has room:
                # beside busy partitions, that one might never come first.
                has_room = is_follower and left_bytes >= replica.batch_bytes_max
                min_one_batch = size_bytes == 0 or has_room
                try:
                    answer = self._read_partition(
                        partition, replica, left_bytes, admission, min_one_batch=min_one_batch
                    )
                except Exception:  # the other partitions of the response go on
                    logger.exception("%s-%d: a fetch could not be read", *replica.key)
                    answer = error_answer(
                        replica, partition.requested, ErrorCode.unknown_server_error
                    )
                partition.watch(replica)
            answer_bytes = len(answer.records or b"")
            size_bytes, left_bytes = size_bytes + answer_bytes, max(0, left_bytes - answer_bytes)
            must_be_sent |= answer.error != ErrorCode.none or answer.diverging is not None
            answers.append((partition, answer))
        return ResponseDraft(answers, size_bytes, must_be_sent, admission)

    def _partitions_to_read(self, admission: ResponseAdmission) -> Iterator[SessionPartition]:
        """Those that wait for the quota come first, until it refuses one."""
        session = self._session
        if self._is_full and self._is_first_attempt:
            yield from list(session.partitions.values())
            return
        for partition in list(session.limited):
            if not admission.is_open:
                break
            yield partition
        yield from list(session.ready)

    def _read_partition(
        self,
        partition: SessionPartition,
        replica: Replica,
        left_bytes: int,
        admission: ResponseAdmission,
        *,
        min_one_batch: bool,
    ) -> FetchedPartition:
        requested, log = partition.requested, replica.log
        diverging = find_divergence(replica, requested)
        if diverging is not None:
            self._record_refusal(replica, requested, DIVERGING)
            return FetchedPartition(
                requested.partition,
                ErrorCode.none,
                replica.high_watermark,
                log_start=log.start,
                diverging=diverging,
            )
        leader_end = log.end
        if not log.start <= requested.fetch_offset <= leader_end:
            self._record_refusal(replica, requested, ERROR)
            return error_answer(replica, requested, ErrorCode.offset_out_of_range)
        is_follower = self._session.follower is not None
        up_to = leader_end if is_follower else replica.high_watermark
        partition.is_outside_isr = is_follower and self._is_outside_isr(replica)
        treatment = admission.treatment(replica.key, is_in_sync=not partition.is_outside_isr)
        partition.backlog = _backlog(treatment, is_behind=requested.fetch_offset < up_to)
        if partition.backlog is Backlog.LIMITED:
            left_bytes, min_one_batch = admission.room_bytes(left_bytes), admission.is_open
            if left_bytes == 0:
                partition.backlog = Backlog.HELD_BACK
        pool_read = partition.pool_read
        if isinstance(pool_read, PoolResult) and pool_read.epoch != replica.epoch:
            partition.pool_read = None
        is_new_read = partition.pool_read is None
        records = self._read_now(
            partition, replica, left_bytes, up_to=up_to, min_one_batch=min_one_batch
        )
        if isinstance(records, ErrorCode):
            return error_answer(replica, requested, records)
        if isinstance(records, WouldBlock):
            self._read_in_pool(
                partition, replica, left_bytes, up_to=up_to, min_one_batch=min_one_batch
            )
            return records_answer(replica, requested, None)
        if records is not None and treatment is not Treatment.FREE:
            records = _admitted(records, partition, treatment, admission)
        if self._is_first_attempt and is_new_read:
            size_bytes = 0 if records is None else len(records.data)
            self._report_fetch(partition, replica, leader_end, size_bytes)
            # The report may have expanded the ISR.
            partition.is_outside_isr = is_follower and self._is_outside_isr(replica)
        self._note_sent(partition, replica, records)
        return records_answer(replica, requested, records)

    def _note_sent(
        self, partition: SessionPartition, replica: Replica, records: ReadResult | None
    ) -> None:
        follower = self._session.follower
        if follower is not None and partition.is_outside_isr:
            end = partition.requested.fetch_offset if records is None else records.next_offset
            replica.note_sent(follower, end)

    def _read_now(
        self,
        partition: SessionPartition,
        replica: Replica,
        left_bytes: int,
        *,
        up_to: int,
        min_one_batch: bool,
    ) -> ReadResult | WouldBlock | ErrorCode | None:
        """What is in memory, or has been read in the pool; None if there is nothing to send."""
        match partition.pool_read:
            case PoolResult(_, read):
                return None if partition.backlog is Backlog.HELD_BACK else read
            case PoolReading():
                return None
            case None:
                has_no_room = left_bytes <= 0 and not min_one_batch
                if partition.backlog is Backlog.NONE or (
                    has_no_room and not self._counts_pending_read(partition, replica)
                ):
                    return None
                records = read_from_memory(
                    replica,
                    partition.requested,
                    left_bytes,
                    up_to=up_to,
                    min_one_batch=min_one_batch,
                )
                return None if has_no_room and isinstance(records, ReadResult) else records

    def _counts_pending_read(self, partition: SessionPartition, replica: Replica) -> bool:
        """Whether a read that is not in memory counts for a follower (KIP-501).

        Then it is registered although the response is full, if nothing but memory is in its way.
        """
        term = replica.term
        return (
            self._is_first_attempt
            and self._session.follower is not None
            and term is not None
            and term.policy.pending_reads
            and partition.backlog is Backlog.UNLIMITED
        )

    def _is_outside_isr(self, replica: Replica) -> bool:
        follower, term = self._session.follower, replica.term
        return term is not None and follower not in isr_rules.committed(term.isr)

    def _report_fetch(
        self, partition: SessionPartition, replica: Replica, leader_end: int, size_bytes: int
    ) -> None:
        """Report a follower's fetch to the leader's rules."""
        follower = self._session.follower
        replicas = self._handler.replicas
        now_ms = replicas.loop.now_ms
        if follower is None or replica.term is None or follower not in replica.term.followers:
            return
        requested = partition.requested
        replicas.leading.on_fetch(
            replica,
            follower,
            FollowerFetch(
                offset=Offset(requested.fetch_offset),
                leader_end=Offset(leader_end),
                at_ms=now_ms,
                served_at_ms=now_ms,
                log_start=Offset(max(0, requested.log_start)),
                incarnation=Incarnation(self._request.replica_epoch),
            ),
            size_bytes=size_bytes,
            is_held_back=partition.backlog is Backlog.HELD_BACK,
        )
        if replica.record is not None and partition.backlog is Backlog.NONE:
            self._caught_up_records.append(replica.record)
        self._session.attach((partition.topic, requested.partition), replica)

    def _record_refusal(self, replica: Replica, requested: FetchPartition, outcome: str) -> None:
        """Record a fetch in telemetry that tells the leader's rules nothing."""
        follower = self._session.follower
        if self._is_first_attempt and follower is not None and replica.record is not None:
            replica.record.fetch(
                follower,
                offset=requested.fetch_offset,
                leader_end=replica.log.end,
                high_watermark=replica.high_watermark,
                log_start=max(0, requested.log_start),
                size_bytes=0,
                at_ms=self._handler.replicas.loop.now_ms,
                outcome=outcome,
            )

    # Reading what is not in memory.

    def _read_in_pool(
        self,
        partition: SessionPartition,
        replica: Replica,
        left_bytes: int,
        *,
        up_to: int,
        min_one_batch: bool,
    ) -> None:
        """Read in the pool. The read is pending until it is done; then the fetch tries again."""
        requested, session = partition.requested, self._session
        has_session = session.session_id != NO_SESSION
        is_limited = partition.backlog is Backlog.LIMITED
        size_bytes = requested.max_bytes
        if is_limited or not has_session:  # else a later response has room for it
            size_bytes = min(size_bytes, left_bytes)
        if not has_session and not session.has_memory_for(size_bytes):
            return  # the reads fill the response already, and there is no later one
        pending = PendingRead(
            self,
            partition,
            replica,
            read_id=next(self._handler.read_ids),
            leader_end=up_to,
            incarnation=Incarnation(self._request.replica_epoch),
            size_bytes=size_bytes,
            min_one_batch=min_one_batch or (session.follower is not None and not is_limited),
        )
        partition.pool_read = PoolReading(pending.read_id)
        self._reads_under_way += 1
        # It begins when the request is parsed. Waiting for records is no part of it.
        now_ms = self._handler.replicas.loop.now_ms
        parsed_at_ms = self._parsed_at_ms if self._is_first_attempt else now_ms
        pending.begin(session.follower, parsed_at_ms=parsed_at_ms)
        session.queue_read(partition, pending)

    def submit(self, read: Callable[[], ReadResult | WouldBlock], on_done: OnReadDone) -> None:
        self._handler.pool.submit(read).add_done_callback(
            partial(self._handler.replicas.loop.run, on_done)
        )

    def on_read_done(self) -> None:
        self._reads_under_way -= 1
        self.try_to_answer()

    @property
    def connection(self) -> Connection:
        return self._reply.connection

    @property
    def replicas(self) -> Replicas:
        return self._handler.replicas

    @property
    def connection_fetches(self) -> ConnectionFetches:
        return self._handler.fetches_on(self.connection)


def _backlog(treatment: Treatment, *, is_behind: bool) -> Backlog:
    if not is_behind:
        return Backlog.NONE
    return Backlog.LIMITED if treatment is Treatment.LIMITED else Backlog.UNLIMITED


def _admitted(
    records: ReadResult,
    partition: SessionPartition,
    treatment: Treatment,
    admission: ResponseAdmission,
) -> ReadResult | None:
    """The records of a throttled replica if the quota admits them; else they are read later."""
    size_bytes = len(records.data)
    if treatment is not Treatment.LIMITED:
        admission.count_in_sync(size_bytes)
    elif size_bytes and not admission.admit(size_bytes):
        partition.backlog = Backlog.HELD_BACK
        return None
    return records
