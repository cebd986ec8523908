"""Counters of ISR changes and elections, from the partition states that the store commits."""

from __future__ import annotations

from collections.abc import Sequence

from insync.metadata import paths
from insync.metadata.records import decode_state
from insync.metadata.store import Change, MetadataStore
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId


class IsrCounters:
    """ISR changes of partitions that this broker leads, and elections while it is controller."""

    def __init__(self, broker: BrokerId, store: MetadataStore) -> None:
        self._broker = broker
        self._store = store
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.resignations = 0
        self.elections = 0
        self.unclean_elections = 0
        self.stop = store.watch(self._on_changes)

    @property
    def is_controller(self) -> bool:
        entry = self._store.get(paths.CONTROLLER)
        return entry is not None and entry.session == self._store.session is not None

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.before is None or change.after is None:
                continue
            if paths.partition_of(change.path) is not None:
                self._count(decode_state(change.before.value), decode_state(change.after.value))

    def _count(self, before: PartitionState, after: PartitionState) -> None:
        if after.leader_epoch == before.leader_epoch:
            if after.leader == self._broker:
                self.isr_shrinks += not set(before.isr) <= set(after.isr)
                self.isr_expands += not set(after.isr) <= set(before.isr)
            return
        if after.leader is not None and self.is_controller:
            self.elections += 1
            self.unclean_elections += after.leader not in before.isr
        self.resignations += before.leader == self._broker and _has_resigned(before, after)


def _has_resigned(before: PartitionState, after: PartitionState) -> bool:
    """Whether the old leader resigned: it then goes last in the ISR.

    A preferred leader election may leave the old leader last too, but it does not reorder the ISR.
    """
    if after.leader in (None, before.leader) or set(after.isr) != set(before.isr):
        return False
    went_last = after.isr[-1] == before.leader
    return went_last and (after.isr != before.isr or after.leader != after.replicas[0])
