"""What a broker corrects in the store before it registers, because its directory shows otherwise.

A log with a leader epoch, or with a producer id, that the store has not given out yet shows that
the store went back. Given out again, an epoch would have two writers, and records of a new
producer would be taken for duplicates of an earlier one's and dropped. So the store skips them.

All of it is written before the registration, so that no controller elects this broker by what the
states said before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.metadata import paths
from insync.metadata.records import decode_state, encode_state
from insync.metadata.store import (
    STATES_PER_STEP_MAX,
    CheckAbsent,
    Create,
    MetadataStore,
    Operation,
    Write,
)
from insync.metadata.topic_checks import check_topics
from insync.rules import election
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from insync.storage.directory import LogDirectory

EPOCH_LEAP_MAX: Final = 1_000_000
PRODUCER_ID_LEAP_MAX: Final = 10**12
"""A store does not go back further: no checksum covers an epoch in a log, and a client may invent a
producer id."""

PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""Ids that the lost steps may have given to producers that wrote nothing here."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnissuedIds:
    """What the logs have and the store has not given out."""

    epochs: Mapping[TopicPartition, LeaderEpoch]
    producer_ids_end: int  # above every id in the logs; 0 if the store has given them all out


NO_UNISSUED_IDS: Final = UnissuedIds(epochs={}, producer_ids_end=0)


def find_unissued_ids(
    view: ClusterView, store: MetadataStore, directory: LogDirectory
) -> UnissuedIds:
    epochs: dict[TopicPartition, LeaderEpoch] = {}
    entry = store.get(paths.PRODUCER_IDS)
    given_out = 0 if entry is None else int(entry.value)
    largest = -1
    for key, log in sorted(directory.logs.items()):
        ids = (each for each in log.producers if each < given_out + PRODUCER_ID_LEAP_MAX)
        largest = max(largest, *ids, -1)
        state, epoch = view.states.get(key), log.epochs.latest
        is_same_topic = view.topic_names.get(directory.topic_ids[key]) == key[0]
        if state is None or epoch is None or not is_same_topic or epoch <= state.leader_epoch:
            continue
        is_raised = epoch <= state.leader_epoch + EPOCH_LEAP_MAX
        if is_raised:
            epochs[key] = epoch
        logger.warning(
            "%s-%d: the log has leader epoch %d and the metadata store has %d: %s",
            *key,
            epoch,
            state.leader_epoch,
            "the store went back; its epoch is raised"
            if is_raised
            else f"ignored, because it is more than {EPOCH_LEAP_MAX} ahead",
        )
    return UnissuedIds(epochs=epochs, producer_ids_end=largest + 1 if largest >= given_out else 0)


class Corrections:
    def __init__(
        self,
        *,
        broker: BrokerId,
        store: MetadataStore,
        unissued: UnissuedIds = NO_UNISSUED_IDS,
    ) -> None:
        self._broker = broker
        self._store = store
        self._unissued = unissued

    async def write(self) -> None:
        """Raises Conflict, as every step: then repeat it."""
        if self._unissued.epochs:
            await self._change_states(self._raise_epoch)
        await self._skip_producer_ids()

    def _raise_epoch(self, key: TopicPartition, state: PartitionState) -> PartitionState:
        epoch = self._unissued.epochs.get(key)
        return state if epoch is None else election.raise_epoch(state, epoch)

    async def _change_states(
        self, change: Callable[[TopicPartition, PartitionState], PartitionState]
    ) -> None:
        writes: list[tuple[str, Operation]] = []  # with the topic of each
        for entry in self._store.under(paths.TOPICS):
            key = paths.partition_of(entry.path)
            if key is not None:
                state = decode_state(entry.value)
                after = change(key, state)
                if after != state:
                    write = Write(entry.path, encode_state(after), entry.version)
                    writes.append((key[0], write))
        unregistered = CheckAbsent(paths.broker_id(self._broker))
        topics = check_topics(self._store, (topic for topic, _ in writes))
        for start in range(0, len(writes), STATES_PER_STEP_MAX):
            now = writes[start : start + STATES_PER_STEP_MAX]
            names = sorted({topic for topic, _ in now})
            same_topics = [topics[name] for name in names if name in topics]
            await self._store.commit(unregistered, *same_topics, *(write for _, write in now))

    async def _skip_producer_ids(self) -> None:
        entry = self._store.get(paths.PRODUCER_IDS)
        if self._unissued.producer_ids_end <= (0 if entry is None else int(entry.value)):
            return
        value = str(self._unissued.producer_ids_end + PRODUCER_IDS_SKIPPED).encode()
        logger.warning(
            "the logs have producer ids that the metadata store has not given out: the store went"
            " back; the next id is %s",
            value.decode(),
        )
        await self._store.commit(
            Create(paths.PRODUCER_IDS, value)
            if entry is None
            else Write(entry.path, value, entry.version)
        )
