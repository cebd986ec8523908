"""The throttle lease in the store, the hold that renews it, and the step that ends it."""

from __future__ import annotations

from insync.metadata import paths
from insync.metadata.configs import configs_of, configs_step
from insync.metadata.store import Delete, Entry, MetadataStore, Operation
from insync.rules import throttle_lease
from insync.rules.throttle_lease import ThrottleLease


def current_lease(store: MetadataStore) -> Entry | None:
    """There is at most one."""
    return next(iter(store.under(paths.THROTTLE_LEASES)), None)


def hold_of_lease(store: MetadataStore, lease_path: str) -> Entry | None:
    """The node that renews the lease; None: the lease ends with the moves it came with."""
    return store.get(paths.throttle_hold(lease_path))


def end_step(
    store: MetadataStore, path: str, version: int, lease: ThrottleLease
) -> list[Operation]:
    """Restore what the lease replaced, if it was neither extended nor renewed meanwhile."""
    configs = configs_of(store, topics=lease.topics, brokers=lease.brokers)
    change = throttle_lease.end(lease, configs=configs)
    hold = hold_of_lease(store, path)
    delete_hold = [] if hold is None else [Delete(hold.path, hold.version)]
    return [Delete(path, version), *delete_hold, *configs_step(store, change)]
