"""What a leader's replica has for one fetched partition: records, an error or a divergence."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from insync.broker.replication.replica import Replica
from insync.rules.epochs import divergence
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.errors import OffsetOutOfRange, StorageRefusal
from insync.storage.log import ReadResult, WouldBlock
from insync.wire.fetch import FetchedPartition, FetchPartition


def records_answer(
    replica: Replica, requested: FetchPartition, records: ReadResult | None
) -> FetchedPartition:
    watermark = replica.high_watermark
    return FetchedPartition(
        requested.partition,
        ErrorCode.none,
        watermark,
        last_stable_offset=watermark,
        log_start=replica.log.start,
        records=None if records is None else memoryview(records.data),
    )


def error_answer(replica: Replica, requested: FetchPartition, code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(
        requested.partition, code, replica.high_watermark, log_start=replica.log.start
    )


def read_from_memory(
    replica: Replica,
    requested: FetchPartition,
    left_bytes: int,
    *,
    up_to: int,
    min_one_batch: bool,
) -> ReadResult | WouldBlock | ErrorCode:
    try:
        return replica.log.read(
            requested.fetch_offset,
            min(requested.max_bytes, left_bytes),
            up_to=up_to,
            min_one_batch=min_one_batch,
            nowait=True,
        )
    except OffsetOutOfRange:
        return ErrorCode.offset_out_of_range
    except StorageRefusal:
        return ErrorCode.kafka_storage_error


def find_divergence(replica: Replica, requested: FetchPartition) -> tuple[int, int] | None:
    """Epoch and offset where the follower's log differs, if it names its last epoch."""
    latest = replica.log.epochs.latest
    if requested.last_fetched_epoch < 0 or latest is None:
        return None
    epoch_end = divergence(
        replica.log.epochs,
        leader_log_end=Offset(replica.log.end),
        fetch_offset=Offset(requested.fetch_offset),
        last_fetched_epoch=LeaderEpoch(min(requested.last_fetched_epoch, latest)),
    )
    return None if epoch_end is None else (epoch_end.epoch, epoch_end.end)
