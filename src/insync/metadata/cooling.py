"""Who resigned a partition lately (`rules.resignation`), as the store has it."""

from __future__ import annotations

from insync.metadata import paths
from insync.metadata.store import MetadataStore
from insync.rules.values import BrokerId


def cooling_for(store: MetadataStore, key: tuple[str, int]) -> frozenset[BrokerId]:
    """Of one partition."""
    return frozenset(BrokerId(int(name)) for name in store.children(paths.cooling_in(*key)))


def cooling_by_state(store: MetadataStore) -> dict[str, frozenset[BrokerId]]:
    """Of all, by the path of each partition's state."""
    found: dict[str, frozenset[BrokerId]] = {}
    for entry in store.under(paths.COOLING):
        name, partition, broker = paths.cooling_of(entry.path)
        path = paths.partition_state(name, partition)
        found[path] = found.get(path, frozenset()) | {BrokerId(broker)}
    return found
