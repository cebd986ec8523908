"""The incarnation of each broker that a controller handled last.

While a broker's new incarnation is not handled, it is in an ISR because of its former one.
"""

from __future__ import annotations

from collections.abc import Mapping

from insync.metadata import paths
from insync.metadata.store import MetadataStore
from insync.rules.values import BrokerId, Incarnation


def handled_incarnations(store: MetadataStore) -> dict[BrokerId, Incarnation]:
    """Of every broker that was ever registered."""
    return {
        BrokerId(int(name)): Incarnation(int(entry.value))
        for name in store.children(paths.BROKERS_SEEN)
        if (entry := store.get(f"{paths.BROKERS_SEEN}/{name}")) is not None
    }


def electable_brokers(
    live: Mapping[BrokerId, Incarnation], handled: Mapping[BrokerId, Incarnation]
) -> frozenset[BrokerId]:
    """The brokers that are live in the incarnation that was handled."""
    return frozenset(broker for broker in live if live[broker] == handled.get(broker))
