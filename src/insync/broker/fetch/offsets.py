"""ListOffsets and OffsetForLeaderEpoch: the offset for a timestamp or for a leader epoch.

A negative timestamp is a query such as `LATEST`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.reads import ReadPool
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.server import answers
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.errors import StorageRefusal
from insync.storage.log import Log

logger = logging.getLogger(__name__)

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
EARLIEST_LOCAL = -4  # without tiered storage, the same as earliest
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6  # without tiered storage, there are none
QUERY_SINCE_VERSION: Final = {  # the first version of ListOffsets with this query
    EARLIEST: 1,
    LATEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
KIP_207_SINCE_VERSION = 5  # versions below do not have OFFSET_NOT_AVAILABLE
DEBUG_REPLICA = -2  # reads the broker's own log, whether the broker leads or not


class _Refused(Exception):
    """One partition of a request is answered with an error."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code)
        self.code = code


class Offsets:
    def __init__(self, replicas: Replicas, view: ClusterView, reads: ReadPool) -> None:
        self._replicas = replicas
        self._view = view
        self._reads = reads

    async def list_offsets(self, request: Any) -> answers.Values:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": requested.partition_index,
                            **await self._offset(request, topic.name, requested),
                        }
                        for requested in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    async def _offset(self, request: Any, name: str, requested: Any) -> answers.Values:
        version = request.__version__
        key = (name, requested.partition_index)
        try:
            self._check_exists(key)
            since_version = QUERY_SINCE_VERSION.get(requested.timestamp, version + 1)
            if requested.timestamp < 0 and version < since_version:
                raise _Refused(ErrorCode.unsupported_version)
            if request.replica_id == DEBUG_REPLICA and key in self._replicas.partitions:
                replica = self._replicas.partitions[key]
                return await self._offset_at(replica, requested.timestamp, up_to=replica.log.end)
            replica = self._leader(key, getattr(requested, "current_leader_epoch", -1))
            if requested.timestamp not in (EARLIEST, EARLIEST_LOCAL):
                _check_serves_latest(replica, version)
            # Below the watermark only: clients must not see records that may still be lost.
            return await self._offset_at(replica, requested.timestamp, up_to=replica.high_watermark)
        except _Refused as refused:
            return {"error_code": refused.code}

    async def _offset_at(self, replica: Replica, timestamp: int, *, up_to: int) -> answers.Values:
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return {"offset": replica.log.start, "leader_epoch": replica.epoch}
        if timestamp == LATEST:
            return {"offset": up_to, "leader_epoch": replica.epoch}
        epoch = replica.epoch
        try:
            record = await self._reads.submit(partial(_find_record, replica.log, timestamp))
        except StorageRefusal as refusal:
            logger.warning("%s-%d: ListOffsets failed: %s", *replica.key, refusal)
            raise _Refused(ErrorCode.kafka_storage_error) from None
        if record is None or record.offset >= up_to:
            return {"offset": -1, "timestamp": -1}
        return {"offset": record.offset, "timestamp": record.timestamp, "leader_epoch": epoch}

    def epoch_ends(self, request: Any, _version: int) -> answers.Values:
        return {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [
                        {
                            "partition": requested.partition,
                            **self._epoch_end(topic.topic, requested),
                        }
                        for requested in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    def _epoch_end(self, name: str, requested: Any) -> answers.Values:
        key = (name, requested.partition)
        try:
            self._check_exists(key)
            replica = self._leader(key, requested.current_leader_epoch)
        except _Refused as refused:
            return {"error_code": refused.code}
        epoch_end = replica.log.epochs.end_of(
            LeaderEpoch(requested.leader_epoch), log_end=Offset(replica.log.end)
        )
        if epoch_end is None:
            return {"leader_epoch": -1, "end_offset": -1}
        return {"leader_epoch": epoch_end.epoch, "end_offset": epoch_end.end}

    def _check_exists(self, key: TopicPartition) -> None:
        if key not in self._view.states:
            raise _Refused(ErrorCode.unknown_topic_or_partition)

    def _leader(self, key: TopicPartition, client_epoch: int) -> Replica:
        """The replica, if this broker leads it in the client's epoch; -1: the client names none."""
        replica = self._replicas.leader_of(key)
        if replica is None or replica.term is None:
            raise _Refused(ErrorCode.not_leader_or_follower)
        if 0 <= client_epoch < replica.epoch:
            raise _Refused(ErrorCode.fenced_leader_epoch)
        if client_epoch > replica.epoch:
            raise _Refused(ErrorCode.unknown_leader_epoch)
        return replica


def _check_serves_latest(replica: Replica, version: int) -> None:
    """KIP-207: the watermark of a new leader may be below what clients have already read."""
    assert replica.term is not None, "it leads"
    if not replica.term.serves_latest:
        if version >= KIP_207_SINCE_VERSION:
            raise _Refused(ErrorCode.offset_not_available)
        raise _Refused(ErrorCode.leader_not_available)


class _RecordPosition(NamedTuple):
    offset: int
    timestamp: int


def _find_record(log: Log, timestamp: int) -> _RecordPosition | None:
    """The first record at or after a timestamp, or with the largest one. Reads, so it may block."""
    if timestamp == MAX_TIMESTAMP:
        latest = log.max_timestamp()
        return None if latest is None else _RecordPosition(offset=latest[1], timestamp=latest[0])
    position = None if timestamp < 0 else log.offset_for_time(timestamp)
    return None if position is None else _RecordPosition(*position)
