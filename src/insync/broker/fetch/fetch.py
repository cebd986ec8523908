"""Fetch: the session of each request, and the replica of each partition.

`pending_fetch` reads the partitions and answers, at once or when there is enough to send.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.fetch.fetch_sessions import FetchSession, FetchSessions, SessionPartition
from insync.broker.fetch.pending_fetch import PendingFetch
from insync.broker.fetch.pending_read import ConnectionFetches
from insync.broker.quotas.quota_admission import QuotaAdmission
from insync.broker.reads import ReadPool
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.server.server import Connection, Reply
from insync.rules.values import BrokerId
from insync.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    read_fetch,
    write_fetch_response,
)
from insync.wire.fetch_session_epochs import CLOSE_EPOCH, FIRST_EPOCH, NO_SESSION, next_epoch


class Fetch:
    def __init__(
        self,
        replicas: Replicas,
        view: ClusterView,
        sessions: FetchSessions,
        pool: ReadPool,
        quota: QuotaAdmission,
    ) -> None:
        self.replicas = replicas
        self.pool = pool
        self.quota = quota
        self.read_ids: Iterator[int] = count()
        self._view = view
        self._sessions = sessions
        self._connections: dict[Connection, ConnectionFetches] = {}

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = read_fetch(reply.header.api_version, frame, reply.header.body_at)
        if request.replica_id >= 0 and not self._is_authenticated(reply, request):
            refuse(reply, ErrorCode.cluster_authorization_failed)
            return
        session = self._session_of(reply, request)
        if isinstance(session, ErrorCode):
            refuse(reply, session)
            return
        is_full = request.session_epoch in (CLOSE_EPOCH, FIRST_EPOCH)
        PendingFetch(self, reply, request, session, is_full=is_full).try_to_answer()
        session.note_request(self.replicas.loop.now_ms, max_wait_ms=request.max_wait_ms)

    def _is_authenticated(self, reply: Reply, request: FetchRequest) -> bool:
        """Whether the connection belongs to the broker of the replica id (CVE-2018-1288)."""
        if reply.connection.broker is None:
            return False
        broker, incarnation = reply.connection.broker
        registration = self._view.brokers.get(BrokerId(broker))
        return (
            broker == request.replica_id
            and registration is not None
            and incarnation == registration.incarnation
        )

    def _session_of(self, reply: Reply, request: FetchRequest) -> FetchSession | ErrorCode:
        """The session of a request, with everything applied that the request lists and forgets."""
        follower = BrokerId(request.replica_id) if request.replica_id >= 0 else None
        named = None
        if request.session_id != NO_SESSION:
            named = self._sessions.find(request.session_id, follower)
        if request.session_epoch in (CLOSE_EPOCH, FIRST_EPOCH):
            if named is not None:
                self._sessions.end(named.session_id)
            session = FetchSession(follower, self.replicas.loop)
            if request.session_epoch == FIRST_EPOCH:
                self._begin_session(reply, session)
        elif named is None:
            return ErrorCode.fetch_session_id_not_found
        elif request.session_epoch != next_epoch(named.epoch):
            return ErrorCode.invalid_fetch_session_epoch
        else:
            session = named
            session.epoch = request.session_epoch
            if session.waiting is not None:
                session.waiting.answer_empty()
        session.apply_request(request)
        return session

    def _begin_session(self, reply: Reply, session: FetchSession) -> None:
        """A connection has one session: a new one ends the one before."""
        fetches = self.fetches_on(reply.connection)
        self._sessions.end(fetches.session_id)
        self._sessions.begin(session)
        fetches.session_id = session.session_id

    def fetches_on(self, connection: Connection) -> ConnectionFetches:
        fetches = self._connections.get(connection)
        if fetches is None:
            fetches = self._connections[connection] = ConnectionFetches()
            connection.on_close.append(partial(self._on_connection_closed, connection))
        return fetches

    def _on_connection_closed(self, connection: Connection) -> None:
        fetches = self._connections.pop(connection)
        self._sessions.end(fetches.session_id)
        for read in fetches.pending_reads:
            read.on_connection_closed()

    def find_replica(self, partition: SessionPartition) -> Replica | ErrorCode:
        """The replica to read for a partition, or the error to answer it with."""
        requested = partition.requested
        key = self._key_of(partition.topic, requested.partition)
        return key if isinstance(key, ErrorCode) else self._leader_of(key, requested)

    def _key_of(self, topic: str | UUID, partition: int) -> TopicPartition | ErrorCode:
        name = topic if isinstance(topic, str) else self._view.topic_names.get(topic)
        if name is None:
            return ErrorCode.unknown_topic_id
        if (name, partition) not in self._view.states:
            return ErrorCode.unknown_topic_or_partition
        return name, partition

    def _leader_of(self, key: TopicPartition, requested: FetchPartition) -> Replica | ErrorCode:
        replica = self.replicas.leader_of(key)
        if replica is None:
            return ErrorCode.not_leader_or_follower
        if requested.current_leader_epoch >= 0:
            if requested.current_leader_epoch < replica.epoch:
                return ErrorCode.fenced_leader_epoch
            if requested.current_leader_epoch > replica.epoch:
                return ErrorCode.unknown_leader_epoch
        return replica


def refuse(reply: Reply, code: ErrorCode) -> None:
    reply.send(write_fetch_response(reply.header.api_version, FetchResponse(error=code)))
