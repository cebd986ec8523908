"""The lease of a throttle as the store has it: itself, who renews it, and the step that ends it."""

from __future__ import annotations

from insync.metadata import paths
from insync.metadata.configs import configs_of, configs_step
from insync.metadata.store import Delete, Entry, MetadataStore, Operation
from insync.rules import throttle_lease
from insync.rules.throttle_lease import ThrottleLease


def the_lease(store: MetadataStore) -> Entry | None:
    """The one that there is."""
    return next(iter(store.under(paths.THROTTLE_LEASES)), None)


def hold_on(store: MetadataStore, lease_path: str) -> Entry | None:
    """Where it is renewed; None: it lasts as long as the moves it came with."""
    return store.get(paths.throttle_hold(lease_path))


def end_step(
    store: MetadataStore, path: str, version: int, lease: ThrottleLease
) -> list[Operation]:
    """Undo it, on condition that it was neither extended nor renewed meanwhile."""
    configs = configs_of(store, topics=lease.topics, brokers=lease.brokers)
    change = throttle_lease.end(lease, configs=configs)
    hold = hold_on(store, path)
    renewed = [] if hold is None else [Delete(hold.path, hold.version)]
    return [Delete(path, version), *renewed, *configs_step(store, change)]
