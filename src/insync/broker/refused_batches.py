"""Which batch a producer was told to send again, so that those right behind it are told the same.

An idempotent producer has up to five batches under way. When a full disk refuses the first, say,
the others cannot be taken either: they would leave a gap in the producer's numbers. Apache Kafka
answers them OUT_OF_ORDER_SEQUENCE_NUMBER, or takes them if it has never heard of the producer,
and then it is the first that comes too late. But nothing is lost, and the answer does harm:
librdkafka begins a new producer epoch (its issue 4953) and sends again, under new numbers,
whatever timed out on any other partition, where it may lie already. So they get the first one's
answer: send it again. All of them then come in order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from insync.metadata.paths import TOPIC_NAME_CHARACTERS_MAX
from insync.storage.producers import BATCHES_KEPT
from insync.wire.batches import BatchHeader
from insync.wire.primitives import Topic

BEHIND_MAX: Final = BATCHES_KEPT - 1
"""Clients keep so many under way behind a batch. One that comes later than that was sent by
somebody who gave the refused batch up, and needs to hear of the gap."""

REFUSALS_MAX: Final = 10_000  # of all producers and partitions; about a kilobyte each at most

FOR_NOW: Final = frozenset(
    {
        ErrorCode.kafka_storage_error,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""What a client tries again by itself, and what says that nothing was appended."""

Partition = tuple[Topic, int]  # as the client calls it


class _Refusal(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    behind_left: int = BEHIND_MAX


class RefusedBatches:
    """The earliest batch that each producer has to send again, per partition; the oldest first."""

    def __init__(self) -> None:
        self._refusals: dict[tuple[Partition, int], _Refusal] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def note(self, partition: Partition, header: BatchHeader, code: ErrorCode) -> None:
        """A batch was refused; of one that came behind another, the other is remembered."""
        if header.producer_id < 0 or code not in FOR_NOW or not _can_be_a_topic(partition[0]):
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
        """What the refused batch was told that this one was sent behind, if there is one."""
        first = self._refusals.get((partition, header.producer_id))
        return first.code if first is not None and _is_behind(first, header) else None

    def forget(self, partition: Partition, producer_id: int) -> None:
        """A batch of this producer was taken: there is no gap."""
        self._refusals.pop((partition, producer_id), None)


def _can_be_a_topic(name: Topic) -> bool:
    """What nobody would keep as a topic's name is not kept here either: it may be a megabyte."""
    return not isinstance(name, str) or len(name) <= TOPIC_NAME_CHARACTERS_MAX


def _is_behind(first: _Refusal, header: BatchHeader) -> bool:
    return (
        first.epoch == header.producer_epoch
        and first.sequence != header.base_sequence
        and first.behind_left > 0
    )
