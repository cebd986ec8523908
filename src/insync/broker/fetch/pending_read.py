"""A read that was not in memory, done in the pool: while it is pending it counts for its follower.

KIP-501: a follower stays in the ISR while the leader is still reading for its fetch. So a read
is reported to the leader's rules when it begins, when it ends and when its connection is closed. It
begins when it is needed: also while it waits for a reader, or for memory that a response may use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kio.schema.errors import ErrorCode

from insync.broker.fetch.fetch_sessions import PoolResult, SessionPartition
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.server.server import Connection
from insync.rules.leader_machine import ConnectionClosed, ReadFailed, ReadServed, ReadStarted
from insync.rules.values import BrokerId, Incarnation, Offset
from insync.storage.errors import OffsetOutOfRange, StorageRefusal
from insync.storage.log import ReadResult, WouldBlock
from insync.telemetry.schemas import CANCELLED, ERROR, OK
from insync.wire.fetch_session_epochs import NO_SESSION

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ConnectionFetches:
    """What the fetches of one connection have open. It ends with the connection."""

    session_id: int = NO_SESSION
    pending_reads: dict[PendingRead, None] = field(default_factory=dict)


OnReadDone = Callable[[asyncio.Future[ReadResult | WouldBlock]], None]


class RequestingFetch(Protocol):
    """The fetch that a read is for."""

    @property
    def connection(self) -> Connection: ...
    @property
    def replicas(self) -> Replicas: ...
    @property
    def connection_fetches(self) -> ConnectionFetches: ...
    def on_read_done(self) -> None: ...
    def submit(self, read: Callable[[], ReadResult | WouldBlock], on_done: OnReadDone) -> None:
        """Read in the pool."""


class PendingRead:
    """One read in the pool."""

    def __init__(
        self,
        fetch: RequestingFetch,
        partition: SessionPartition,
        replica: Replica,
        *,
        read_id: int,
        leader_end: int,
        incarnation: Incarnation,
        size_bytes: int,
        min_one_batch: bool,
    ) -> None:
        self._fetch = fetch
        self._partition = partition
        self._replica = replica
        self._epoch = replica.epoch
        self.read_id = read_id
        self._leader_end = leader_end
        self._incarnation = incarnation
        self.size_bytes = size_bytes
        self._min_one_batch = min_one_batch
        self._follower: BrokerId | None = None  # None: the read counts for no follower
        self._parsed_at_ms = 0

    def begin(self, follower: BrokerId | None, *, parsed_at_ms: int) -> None:
        term = self._replica.term
        if follower is None or term is None or follower not in term.followers:
            return
        self._follower = follower
        self._parsed_at_ms = parsed_at_ms
        connection = self._fetch.connection
        self._fetch.connection_fetches.pending_reads[self] = None
        started = ReadStarted(
            follower=follower,
            read_id=self.read_id,
            connection=id(connection),
            offset=Offset(self._partition.requested.fetch_offset),
            parsed_at_ms=parsed_at_ms,
        )
        self._fetch.replicas.leading.report(self._replica, started)

    def start(self) -> None:
        """The session has memory for it."""
        read = partial(
            self._replica.log.read,
            self._partition.requested.fetch_offset,
            self.size_bytes,
            up_to=self._leader_end,
            min_one_batch=self._min_one_batch,
            nowait=False,
        )
        self._fetch.submit(read, self.on_done)

    def cancel(self) -> None:
        """It is not needed any more, and had not been started."""
        self._end(None, outcome=CANCELLED)
        self._fetch.on_read_done()

    def on_done(self, future: asyncio.Future[ReadResult | WouldBlock]) -> None:
        partition = self._partition
        is_awaited = partition.awaits_read(self.read_id)
        records = self._result_of(future)
        size_bytes = len(records.data) if isinstance(records, ReadResult) else None
        self._end(size_bytes if is_awaited else None)
        if is_awaited:
            partition.pool_read = PoolResult(self._epoch, records)
            partition.session.ready[partition] = None
        self._fetch.on_read_done()
        partition.session.wake()

    def _result_of(self, future: asyncio.Future[ReadResult | WouldBlock]) -> ReadResult | ErrorCode:
        try:
            result = future.result()
        except OffsetOutOfRange:
            return ErrorCode.offset_out_of_range
        except (StorageRefusal, asyncio.CancelledError):
            return ErrorCode.kafka_storage_error
        except Exception:
            logger.exception(
                "%s-%d: read at offset %d for %s failed",
                *self._replica.key,
                self._partition.requested.fetch_offset,
                "a consumer" if self._follower is None else f"follower {self._follower}",
            )
            return ErrorCode.unknown_server_error
        assert isinstance(result, ReadResult), "a read that may block does not say it would"
        return result

    def _end(self, served_bytes: int | None, *, outcome: str = ERROR) -> None:
        """Report the read's end; `served_bytes` is None if it failed or is not awaited any more."""
        follower = self._follower
        if follower is None:
            return
        replicas = self._fetch.replicas
        if self._fetch.connection.is_open:
            self._fetch.connection_fetches.pending_reads.pop(self, None)
        now_ms = replicas.loop.now_ms
        term = self._replica.term
        if term is None or term.epoch != self._epoch or follower not in term.followers:
            return
        is_pending = term.followers[follower].reads.find(self.read_id) is not None
        replicas.leading.report(
            self._replica, self._end_event(follower, served_bytes), now_ms=now_ms
        )
        if is_pending:  # else its end is recorded already
            outcome = outcome if served_bytes is None else OK
            self._record(follower, now_ms, served_bytes or 0, outcome)

    def _end_event(self, follower: BrokerId, served_bytes: int | None) -> ReadServed | ReadFailed:
        if served_bytes is None:
            return ReadFailed(follower, self.read_id)
        return ReadServed(
            follower=follower,
            read_id=self.read_id,
            leader_end=Offset(self._leader_end),
            log_start=Offset(max(0, self._partition.requested.log_start)),
            incarnation=self._incarnation,
        )

    def _record(self, follower: BrokerId, now_ms: int, size_bytes: int, outcome: str) -> None:
        requested = self._partition.requested
        if self._replica.record is not None:
            self._replica.record.fetch(
                follower,
                offset=requested.fetch_offset,
                leader_end=self._leader_end,
                high_watermark=self._replica.high_watermark,
                log_start=max(0, requested.log_start),
                size_bytes=size_bytes,
                at_ms=self._parsed_at_ms,
                read_ms=now_ms - self._parsed_at_ms,
                outcome=outcome,
            )

    def on_connection_closed(self) -> None:
        """A read without a connection to answer on keeps no follower in the ISR."""
        replicas = self._fetch.replicas
        follower, term = self._follower, self._replica.term
        if follower is not None and term is not None and follower in term.followers:
            if term.followers[follower].reads.find(self.read_id) is not None:
                self._record(follower, replicas.loop.now_ms, 0, CANCELLED)
            closed = ConnectionClosed(follower, id(self._fetch.connection))
            replicas.leading.report(self._replica, closed)
