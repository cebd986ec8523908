"""Batches that were refused with a retriable error, so that the batches behind them get the same.

An idempotent producer has up to five batches in flight. If the first is refused, for example by a
full disk, the others must not be appended: they would leave a gap in the sequence numbers. Apache
Kafka refuses them with OUT_OF_ORDER_SEQUENCE_NUMBER. Of a producer that is new to it, it appends
them, and then the first is out of order.

No record is lost so, but the error does harm. librdkafka begins a new producer epoch (its issue
4953). It then sends again, with new sequence numbers, what timed out on any other partition and may
have been appended there. So the batches behind a refused one get the error of the refused one. The
producer sends all of them again, in order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from insync.metadata.paths import TOPIC_NAME_CHARACTERS_MAX
from insync.storage.producers import BATCHES_KEPT
from insync.wire.batches import BatchHeader
from insync.wire.primitives import Topic

BEHIND_MAX: Final = BATCHES_KEPT - 1
"""Batches that a client has in flight behind another one. A client that sends more has given up
the refused batch, and has to be notified of the gap."""

REFUSALS_MAX: Final = 10_000  # over all producers and partitions; a kilobyte each at most

RETRIABLE: Final = frozenset(
    {
        ErrorCode.kafka_storage_error,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors that a client retries by itself, and that say that nothing was appended."""

Partition = tuple[Topic, int]  # with the topic as the client names it


class _Refusal(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    behind_left: int = BEHIND_MAX


class RefusedBatches:
    """The first batch that each producer has to send again, by partition."""

    def __init__(self) -> None:
        self._refusals: dict[tuple[Partition, int], _Refusal] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._refusals)

    def note(self, partition: Partition, header: BatchHeader, code: ErrorCode) -> None:
        """A batch was refused. If it was sent behind a refused one, that one is kept."""
        if header.producer_id < 0 or code not in RETRIABLE or not _is_topic_name(partition[0]):
            return
        key = (partition, header.producer_id)
        first = self._refusals.get(key)
        if first is not None and _is_behind(first, header):
            self._refusals[key] = first._replace(behind_left=first.behind_left - 1)
            return
        self._refusals[key] = _Refusal(header.producer_epoch, header.base_sequence, code)
        if len(self._refusals) > REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]

    def code_behind(self, partition: Partition, header: BatchHeader) -> ErrorCode | None:
        """The error of the refused batch that this one was sent behind, if there is one."""
        first = self._refusals.get((partition, header.producer_id))
        return first.code if first is not None and _is_behind(first, header) else None

    def forget(self, partition: Partition, producer_id: int) -> None:
        """A batch of this producer was appended: there is no gap."""
        self._refusals.pop((partition, producer_id), None)


def _is_topic_name(name: Topic) -> bool:
    """Whether the name may be stored. One that no topic can have may be a megabyte long."""
    return not isinstance(name, str) or len(name) <= TOPIC_NAME_CHARACTERS_MAX


def _is_behind(first: _Refusal, header: BatchHeader) -> bool:
    return (
        first.epoch == header.producer_epoch
        and first.sequence != header.base_sequence
        and first.behind_left > 0
    )
