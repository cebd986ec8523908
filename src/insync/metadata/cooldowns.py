"""Brokers in their cool-down after a resignation (`rules.resignation`), as the store has them."""

from __future__ import annotations

from insync.metadata import paths
from insync.metadata.store import MetadataStore
from insync.rules.values import BrokerId


def brokers_in_cooldown(store: MetadataStore, key: tuple[str, int]) -> frozenset[BrokerId]:
    """Of one partition."""
    return frozenset(BrokerId(int(name)) for name in store.children(paths.cooling_in(*key)))


def cooldowns_by_state_path(store: MetadataStore) -> dict[str, frozenset[BrokerId]]:
    """Of all partitions, by the path of their states."""
    brokers: dict[str, frozenset[BrokerId]] = {}
    for entry in store.under(paths.COOLING):
        name, partition, broker = paths.cooling_of(entry.path)
        path = paths.partition_state(name, partition)
        brokers[path] = brokers.get(path, frozenset()) | {BrokerId(broker)}
    return brokers
