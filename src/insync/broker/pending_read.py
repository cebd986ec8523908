"""A read that was not in memory: the pool does it, and until it is over it speaks for its follower.

KIP-501: a follower whose fetch the leader is still reading for does not leave. So the rules hear of
such a read when it begins, when it ends and when whoever asked is gone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from kio.schema.errors import ErrorCode

from insync.broker.fetch_sessions import NO_SESSION, Interest
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.broker.server import Connection
from insync.rules.values import BrokerId, Incarnation, Offset
from insync.storage.errors import OffsetOutOfRange, StorageRefusal
from insync.storage.log import ReadResult, WouldBlock
from insync.telemetry.schemas import CANCELLED, ERROR, OK

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Reading:
    """What a connection has under way here, and ends with it."""

    session_id: int = NO_SESSION
    pending: dict[PendingRead, None] = field(default_factory=dict)


class Asker(Protocol):
    """The fetch that something is read for."""

    @property
    def connection(self) -> Connection: ...
    @property
    def replicas(self) -> Replicas: ...
    @property
    def reading(self) -> Reading: ...
    def read_is_over(self) -> None: ...


class PendingRead:
    """One read in the pool, which speaks for its follower until it is over (KIP-501)."""

    def __init__(
        self,
        asker: Asker,
        interest: Interest,
        found: Replica,
        *,
        read_id: int,
        leader_end: int,
        incarnation: Incarnation,
    ) -> None:
        self._asker = asker
        self._interest = interest
        self._found = found
        self._epoch = found.epoch
        self.read_id = read_id
        self._leader_end = leader_end
        self._incarnation = incarnation
        self._follower: BrokerId | None = None
        self._parsed_at_ms = 0

    def begin(self, follower: BrokerId | None, *, parsed_at_ms: int) -> None:
        term = self._found.term
        if follower is None or term is None or follower not in term.followers:
            return
        self._follower = follower
        self._parsed_at_ms = parsed_at_ms
        connection = self._asker.connection
        self._asker.reading.pending[self] = None
        began = term.read_began(
            follower,
            read_id=self.read_id,
            connection=id(connection),
            offset=Offset(self._interest.asked.fetch_offset),
            parsed_at_ms=parsed_at_ms,
        )
        self._asker.replicas.took_note(self._found, began)

    def on_done(self, future: asyncio.Future[ReadResult | WouldBlock]) -> None:
        interest = self._interest
        is_wanted = interest.reading == self.read_id
        outcome = _outcome(future)
        size_bytes = len(outcome.data) if isinstance(outcome, ReadResult) else None
        self._end(size_bytes if is_wanted else None)
        if is_wanted:
            interest.reading = None
            interest.ahead = (self._epoch, outcome)
        self._asker.read_is_over()
        interest.reader.wake()

    def _end(self, served_bytes: int | None) -> None:
        """With what was read for the follower; None: it failed, or nobody wants it any more."""
        follower = self._follower
        if follower is None:
            return
        replicas = self._asker.replicas
        if self._asker.connection.is_open:
            self._asker.reading.pending.pop(self, None)
        now_ms = replicas.clock_ms()
        term = self._found.term
        if term is None or term.epoch != self._epoch or follower not in term.followers:
            return
        replicas.look_if_due(self._found, now_ms=now_ms)
        term = self._found.term
        assert term is not None, "a look ends no term"
        is_pending = term.followers[follower].reads.find(self.read_id) is not None
        if served_bytes is not None:
            ended = term.read_served(
                follower,
                read_id=self.read_id,
                leader_end=Offset(self._leader_end),
                served_at_ms=now_ms,
                log_start=Offset(max(0, self._interest.asked.log_start)),
                incarnation=self._incarnation,
            )
            replicas.took_effect(self._found, follower, ended, at_ms=now_ms)
        else:
            ended = term.read_failed(follower, read_id=self.read_id)
            replicas.took_note(self._found, ended)
        if is_pending:  # else its end is written down already
            self._note(follower, now_ms, served_bytes or 0, ERROR if served_bytes is None else OK)

    def _note(self, follower: BrokerId, now_ms: int, size_bytes: int, outcome: str) -> None:
        asked = self._interest.asked
        if self._found.record is not None:
            self._found.record.fetch(
                follower,
                offset=asked.fetch_offset,
                leader_end=self._leader_end,
                high_watermark=self._found.high_watermark,
                log_start=max(0, asked.log_start),
                size_bytes=size_bytes,
                at_ms=self._parsed_at_ms,
                read_ms=now_ms - self._parsed_at_ms,
                outcome=outcome,
            )

    def connection_closed(self) -> None:
        """Whoever asked is gone: what is still being read for it keeps nobody in sync."""
        follower, term = self._follower, self._found.term
        if follower is not None and term is not None and follower in term.followers:
            replicas = self._asker.replicas
            if term.followers[follower].reads.find(self.read_id) is not None:
                self._note(follower, replicas.clock_ms(), 0, CANCELLED)
            closed = term.connection_closed(follower, connection=id(self._asker.connection))
            replicas.took_note(self._found, closed)


def _outcome(future: asyncio.Future[ReadResult | WouldBlock]) -> ReadResult | ErrorCode:
    try:
        result = future.result()
    except OffsetOutOfRange:
        return ErrorCode.offset_out_of_range
    except (StorageRefusal, asyncio.CancelledError):
        return ErrorCode.kafka_storage_error
    except Exception:
        logger.exception("a read failed")
        return ErrorCode.unknown_server_error
    assert isinstance(result, ReadResult), "a read that may block does not say it would"
    return result
