"""The cluster as the store has it, decoded once per change and read without cost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final
from uuid import UUID

from insync.metadata import paths
from insync.metadata.records import BrokerRecord, TopicRecord, decode_config, decode_state
from insync.metadata.store import Change, Entry, MetadataStore
from insync.rules.partition_state import PartitionState
from insync.rules.values import UNKNOWN_INCARNATION, BrokerId, Incarnation

TopicPartition = tuple[str, int]

PROPAGATION_MAX_S: Final = 0.05
"""What the store promises every broker that is not stopped."""


class ClusterView:
    """Brokers, topics, partition states and settings; listeners are notified of changes."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.brokers: dict[BrokerId, BrokerRecord] = {}
        self.ended: dict[BrokerId, Incarnation] = {}  # of each broker, the registration before
        self.topics: dict[str, TopicRecord] = {}
        self.topic_names: dict[UUID, str] = {}
        self.states: dict[TopicPartition, PartitionState] = {}
        self.versions: dict[TopicPartition, int] = {}
        self.topic_configs: dict[str, dict[str, str]] = {}
        self.broker_configs: dict[BrokerId | None, dict[str, str]] = {}  # None: of all brokers
        self.controller: BrokerId | None = None
        self._current_from_s = float("-inf")
        self._next_change = asyncio.Event()
        # Called before `listeners`, which read settings, with the topics whose settings changed;
        # None if any may have changed.
        self.config_listeners: list[Callable[[AbstractSet[str] | None], None]] = []
        self._changed_configs: set[str | None] = set()  # topics; None: a broker's
        self.listeners: list[Callable[[set[TopicPartition], bool], None]] = []
        self._apply(Change(entry.path, None, entry) for entry in store.snapshot().values())
        self._changed_configs.clear()  # there are no listeners yet
        store.watch(self._on_changes)

    @property
    def incarnations(self) -> dict[BrokerId, Incarnation]:
        return {broker: record.incarnation for broker, record in self.brokers.items()}

    @property
    def live(self) -> frozenset[BrokerId]:
        return frozenset(self.brokers)

    @property
    def frozen(self) -> frozenset[BrokerId]:
        """The brokers whose last session ended because their heartbeats stopped."""
        ended = self.ended.items()
        return frozenset(broker for broker, last in ended if self.store.is_frozen(last))

    def expect_leader_changes(self) -> None:
        """The connection to a broker broke. If it died, the store will soon have new leaders."""
        self._current_from_s = asyncio.get_running_loop().time() + PROPAGATION_MAX_S

    async def wait_until_current(self) -> None:
        """A client that is sent to a leader that just died refreshes its metadata much later."""
        wait_s = self._current_from_s - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def wait_for_registration(self, broker: BrokerId, incarnation: Incarnation) -> None:
        """A broker that just registered may call before the store has said so; it soon will."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROPAGATION_MAX_S):
                while self.incarnations.get(broker, UNKNOWN_INCARNATION) < incarnation:
                    await self._next_change.wait()

    def _on_changes(self, changes: Sequence[Change]) -> None:
        partitions, brokers_changed = self._apply(changes)
        changed, self._next_change = self._next_change, asyncio.Event()
        changed.set()
        self._notify_config_listeners()
        for listener in self.listeners:
            listener(partitions, brokers_changed)

    def _notify_config_listeners(self) -> None:
        changed, self._changed_configs = self._changed_configs, set()
        if changed:
            topics = {name for name in changed if name is not None}
            for on_change in self.config_listeners:
                on_change(None if None in changed else topics)

    def _apply(self, changes: Iterable[Change]) -> tuple[set[TopicPartition], bool]:
        """Which partitions changed, and whether brokers, the controller or configs did."""
        partitions: set[TopicPartition] = set()
        others = False
        for change in changes:
            partition = paths.partition_of(change.path)
            if partition is not None:
                self._apply_state(partition, change.after)
                partitions.add(partition)
                continue
            others = self._apply_other(change) or others
        return partitions, others

    def _apply_state(self, partition: TopicPartition, entry: Entry | None) -> None:
        if entry is None:
            self.states.pop(partition, None)
            self.versions.pop(partition, None)
        else:
            self.states[partition] = decode_state(entry.value)
            self.versions[partition] = entry.version

    def _apply_other(self, change: Change) -> bool:
        folder, _, name = change.path.rpartition("/")
        entry = change.after
        if change.path == paths.CONTROLLER:
            self.controller = None if entry is None else BrokerId(int(entry.value))
        elif folder == paths.BROKER_IDS:
            broker = BrokerId(int(name))
            before = self.brokers.pop(broker, None)
            if before is not None:
                self.ended[broker] = before.incarnation
            if entry is not None:
                self.brokers[broker] = BrokerRecord.decode(broker, entry.value)
            self.brokers = dict(sorted(self.brokers.items()))
        elif folder == paths.TOPICS:
            self._apply_topic(name, entry)
        elif folder == paths.TOPIC_CONFIGS:
            self.topic_configs.pop(name, None)
            if entry is not None:
                self.topic_configs[name] = decode_config(entry.value)
            self._changed_configs.add(name)
        elif folder == paths.BROKER_CONFIGS:
            self._apply_broker_config(name, entry)
        else:
            return folder == paths.BROKERS_SEEN
        return True

    def _apply_broker_config(self, name: str, entry: Entry | None) -> None:
        broker = None if name == paths.BROKER_DEFAULT else BrokerId(int(name))
        self.broker_configs.pop(broker, None)
        if entry is not None:
            self.broker_configs[broker] = decode_config(entry.value)
        self._changed_configs.add(None)

    def _apply_topic(self, name: str, entry: Entry | None) -> None:
        before = self.topics.pop(name, None)
        if before is not None:
            self.topic_names.pop(before.topic_id, None)
        if entry is not None:
            self.topics[name] = TopicRecord.decode(entry.value)
            self.topic_names[self.topics[name].topic_id] = name
