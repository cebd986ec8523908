"""Fetch: what a consumer or a follower may read, at once or as soon as there is enough of it.

A consumer reads below the high watermark, a follower to the log's end. A fetch that finds too
little is parked: it looks again when one of its partitions grows, and answers with what there is
when its time is up.

A follower's fetch is also news of the follower. It takes effect once, when it is first read, with
the leader's end from just before that read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.broker.server import Reply
from insync.rules.epochs import divergence
from insync.rules.follower import Fetch as FollowerFetch
from insync.rules.values import BrokerId, Incarnation, LeaderEpoch, Offset
from insync.storage.errors import OffsetOutOfRange, StorageRefusal
from insync.storage.log import ReadResult
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    read_fetch,
    write_fetch_response,
)

FETCH_BYTES_MAX = 55 << 20  # fetch.max.bytes: what one answer may hold, whoever asks


class Fetch:
    def __init__(self, replicas: Replicas, view: ClusterView) -> None:
        self._replicas = replicas
        self._view = view

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = read_fetch(reply.header.api_version, frame, reply.header.body_at)
        if request.replica_id >= 0 and not self._is_proven(reply, request):
            code = ErrorCode.cluster_authorization_failed
            self._send(reply, FetchResponse(error=code))
            return
        if request.session_id:
            self._send(reply, FetchResponse(error=ErrorCode.fetch_session_id_not_found))
            return
        _Attempt(self, reply, request).look()

    def _is_proven(self, reply: Reply, request: FetchRequest) -> bool:
        """A replica id is believed only from a broker that proved itself (CVE-2018-1288)."""
        if reply.connection.broker is None:
            return False
        broker, incarnation = reply.connection.broker
        registered = self._view.incarnations.get(BrokerId(broker))
        return broker == request.replica_id and incarnation == registered

    def _send(self, reply: Reply, response: FetchResponse) -> None:
        reply.send(write_fetch_response(reply.header.api_version, response))

    def key_of(self, topic: str | UUID, partition: int) -> TopicPartition | ErrorCode:
        name = topic if isinstance(topic, str) else self._view.topic_names.get(topic)
        if name is None:
            return ErrorCode.unknown_topic_id
        if (name, partition) not in self._view.states:
            return ErrorCode.unknown_topic_or_partition
        return name, partition

    def replica_for(self, key: TopicPartition, asked: FetchPartition) -> Replica | ErrorCode:
        found = self._replicas.leader_of(key)
        if found is None:
            return ErrorCode.not_leader_or_follower
        if asked.current_leader_epoch >= 0:
            if asked.current_leader_epoch < found.epoch:
                return ErrorCode.fenced_leader_epoch
            if asked.current_leader_epoch > found.epoch:
                return ErrorCode.unknown_leader_epoch
        return found

    @property
    def replicas(self) -> Replicas:
        return self._replicas


class _Attempt:
    """One fetch until it is answered."""

    def __init__(self, fetch: Fetch, reply: Reply, request: FetchRequest) -> None:
        self._fetch = fetch
        self._reply = reply
        self._request = request
        self._follower = BrokerId(request.replica_id) if request.replica_id >= 0 else None
        self._parked_at: list[Replica] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_first = True
        self._is_done = False

    def look(self) -> None:
        """Read what there is, and answer if it is enough."""
        if self._is_done:
            return
        if not self._reply.connection.is_open:
            self._finish()
            return
        response, size_bytes, must_answer = self._read()
        is_late = self._timer is None and not self._is_first
        self._is_first = False
        if must_answer or is_late or size_bytes >= self._request.min_bytes:
            self._answer(response)
        elif self._timer is None:
            if self._request.max_wait_ms <= 0:
                self._answer(response)
            else:
                self._park()

    def _answer(self, response: FetchResponse) -> None:
        self._finish()
        version = self._reply.header.api_version
        self._reply.send(write_fetch_response(version, response))

    def _park(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._request.max_wait_ms / 1_000, self._time_is_up)
        for topic in self._request.topics:
            for asked in topic.partitions:
                found = self._find(topic, asked)
                if isinstance(found, Replica):
                    found.parked[self.look] = None
                    self._parked_at.append(found)

    def _time_is_up(self) -> None:
        self._timer = None
        self.look()

    def _finish(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        look: Callable[[], None] = self.look
        for found in self._parked_at:
            found.parked.pop(look, None)

    def _find(self, topic: FetchTopic, asked: FetchPartition) -> Replica | ErrorCode:
        key = self._fetch.key_of(topic.topic, asked.partition)
        return key if isinstance(key, ErrorCode) else self._fetch.replica_for(key, asked)

    def _read(self) -> tuple[FetchResponse, int, bool]:
        left = min(self._request.max_bytes, FETCH_BYTES_MAX)
        topics: list[tuple[str | UUID, list[FetchedPartition]]] = []
        size_bytes, must_answer = 0, False
        for topic in self._request.topics:
            fetched: list[FetchedPartition] = []
            for asked in topic.partitions:
                found = self._find(topic, asked)
                if isinstance(found, ErrorCode):
                    part = FetchedPartition(asked.partition, found, -1)
                else:
                    part = self._read_one(found, asked, left, min_one_batch=size_bytes == 0)
                size = len(part.records or b"")
                size_bytes, left = size_bytes + size, max(0, left - size)
                must_answer |= part.error != ErrorCode.none or part.diverging is not None
                fetched.append(part)
            topics.append((topic.topic, fetched))
        return FetchResponse(topics=topics), size_bytes, must_answer

    def _read_one(
        self, found: Replica, asked: FetchPartition, left: int, *, min_one_batch: bool
    ) -> FetchedPartition:
        log = found.log
        if asked.last_fetched_epoch >= 0 and found.log.epochs.latest is not None:
            parted = divergence(
                log.epochs,
                leader_log_end=Offset(log.end),
                fetch_offset=Offset(asked.fetch_offset),
                last_fetched_epoch=LeaderEpoch(
                    min(asked.last_fetched_epoch, found.log.epochs.latest)
                ),
            )
            if parted is not None:
                return FetchedPartition(
                    asked.partition,
                    ErrorCode.none,
                    found.high_watermark,
                    log_start=log.start,
                    diverging=(parted.epoch, parted.end),
                )
        up_to = log.end if self._follower is not None else found.high_watermark
        if not log.start <= asked.fetch_offset <= log.end:
            return FetchedPartition(
                asked.partition, ErrorCode.offset_out_of_range, found.high_watermark
            )
        leader_end = log.end
        watermark = found.high_watermark
        try:
            result = log.read(
                asked.fetch_offset,
                min(asked.max_bytes, left) if left else 0,
                up_to=up_to,
                min_one_batch=min_one_batch,
                nowait=False,
            )
        except OffsetOutOfRange:
            return FetchedPartition(asked.partition, ErrorCode.offset_out_of_range, watermark)
        except StorageRefusal:
            return FetchedPartition(asked.partition, ErrorCode.kafka_storage_error, watermark)
        assert isinstance(result, ReadResult), "a read that may block does not say it would"
        if self._follower is not None and self._is_first:
            self._note_fetch(found, asked, leader_end)
        return FetchedPartition(
            asked.partition,
            ErrorCode.none,
            watermark,
            last_stable_offset=watermark,
            log_start=log.start,
            records=memoryview(result.data),
        )

    def _note_fetch(self, found: Replica, asked: FetchPartition, leader_end: int) -> None:
        replicas = self._fetch.replicas
        follower = self._follower
        if follower is None or found.term is None or follower not in found.term.followers:
            return
        now_ms = replicas.clock_ms()
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
        )
