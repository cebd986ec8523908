"""ListOffsets and OffsetForLeaderEpoch: which offset a time, a sign or an epoch stands for."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker import answers
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.reads import ReadPool
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.errors import StorageRefusal
from insync.storage.log import Log

logger = logging.getLogger(__name__)

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
EARLIEST_LOCAL = -4  # nothing is tiered here: the same as earliest
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6  # for the same reason there are none
SIGN_KNOWN_FROM: Final = {  # the version since which a negative time has a meaning
    EARLIEST: 1,
    LATEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
KIP_207_ERROR_FROM = 5  # versions below do not know OFFSET_NOT_AVAILABLE
DEBUG_REPLICA = -2  # asks a broker for its own log, whether it leads or not


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
                            "partition_index": asked.partition_index,
                            **await self._offset(request, topic.name, asked),
                        }
                        for asked in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    async def _offset(self, request: Any, name: str, asked: Any) -> answers.Values:
        version = request.__version__
        key = (name, asked.partition_index)
        try:
            self._check_known(key)
            if asked.timestamp < 0 and version < SIGN_KNOWN_FROM.get(asked.timestamp, version + 1):
                raise _Refused(ErrorCode.unsupported_version)
            if request.replica_id == DEBUG_REPLICA and key in self._replicas.held:
                held = self._replicas.held[key]
                return await self._offset_at(held, asked.timestamp, up_to=held.log.end)
            found = self._leader(key, getattr(asked, "current_leader_epoch", -1))
            if asked.timestamp not in (EARLIEST, EARLIEST_LOCAL):
                _check_serves_latest(found, version)
            # Below the watermark only: what may yet be lost has no offset for a client.
            return await self._offset_at(found, asked.timestamp, up_to=found.high_watermark)
        except _Refused as refused:
            return {"error_code": refused.code}

    async def _offset_at(self, found: Replica, timestamp: int, *, up_to: int) -> answers.Values:
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return {"offset": found.log.start, "leader_epoch": found.epoch}
        if timestamp == LATEST:
            return {"offset": up_to, "leader_epoch": found.epoch}
        epoch = found.epoch
        try:
            at = await self._reads.submit(partial(_record_at, found.log, timestamp))
        except StorageRefusal as refusal:
            logger.warning("%s-%d: %s", *found.key, refusal)
            raise _Refused(ErrorCode.kafka_storage_error) from None
        if at is None or at[0] >= up_to:
            return {"offset": -1, "timestamp": -1}
        return {"offset": at[0], "timestamp": at[1], "leader_epoch": epoch}

    def epoch_ends(self, request: Any, _version: int) -> answers.Values:
        return {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [
                        {"partition": asked.partition, **self._epoch_end(topic.topic, asked)}
                        for asked in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    def _epoch_end(self, name: str, asked: Any) -> answers.Values:
        key = (name, asked.partition)
        try:
            self._check_known(key)
            found = self._leader(key, asked.current_leader_epoch)
        except _Refused as refused:
            return {"error_code": refused.code}
        ends = found.log.epochs.end_of(
            LeaderEpoch(asked.leader_epoch), log_end=Offset(found.log.end)
        )
        if ends is None:
            return {"leader_epoch": -1, "end_offset": -1}
        return {"leader_epoch": ends.epoch, "end_offset": ends.end}

    def _check_known(self, key: TopicPartition) -> None:
        if key not in self._view.states:
            raise _Refused(ErrorCode.unknown_topic_or_partition)

    def _leader(self, key: TopicPartition, client_epoch: int) -> Replica:
        """The replica, if it leads here in the epoch that the client knows of, if it says."""
        found = self._replicas.leader_of(key)
        if found is None or found.term is None:
            raise _Refused(ErrorCode.not_leader_or_follower)
        if 0 <= client_epoch < found.epoch:
            raise _Refused(ErrorCode.fenced_leader_epoch)
        if client_epoch > found.epoch:
            raise _Refused(ErrorCode.unknown_leader_epoch)
        return found


def _check_serves_latest(found: Replica, version: int) -> None:
    """KIP-207: a new leader's watermark may lie below what its clients have seen already."""
    assert found.term is not None, "it leads"
    if not found.term.serves_latest:
        is_known = version >= KIP_207_ERROR_FROM
        not_yet = ErrorCode.offset_not_available
        raise _Refused(not_yet if is_known else ErrorCode.leader_not_available)


def _record_at(log: Log, timestamp: int) -> tuple[int, int] | None:
    """Offset and time of the record that a time or a sign stands for; reads, so may block."""
    if timestamp == MAX_TIMESTAMP:
        newest = log.max_timestamp()
        return None if newest is None else (newest[1], newest[0])
    return None if timestamp < 0 else log.offset_for_time(timestamp)
