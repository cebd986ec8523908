"""Which incarnation of each broker a controller has dealt with.

Of one that is back and not dealt with yet, an ISR still means the former life.
"""

from __future__ import annotations

from collections.abc import Mapping

from insync.metadata import paths
from insync.metadata.store import MetadataStore
from insync.rules.values import BrokerId, Incarnation


def brokers_seen(store: MetadataStore) -> dict[BrokerId, Incarnation]:
    """Of every broker that ever was one."""
    return {
        BrokerId(int(name)): Incarnation(int(entry.value))
        for name in store.children(paths.BROKERS_SEEN)
        if (entry := store.get(f"{paths.BROKERS_SEEN}/{name}")) is not None
    }


def dealt_with(
    live: Mapping[BrokerId, Incarnation], seen: Mapping[BrokerId, Incarnation]
) -> frozenset[BrokerId]:
    """Those that live in the incarnation that was dealt with: who may be elected."""
    return frozenset(broker for broker in live if live[broker] == seen.get(broker))
