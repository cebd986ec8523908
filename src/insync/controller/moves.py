"""Running moves: which there are, which can complete, and throttle leases that the controller ends.

Moving partitions are known from change notifications, without a search: the controller checks a
moving partition when its state changes, and all of them when brokers or settings change. It writes
the rule's next state on condition that nothing changed meanwhile; another controller would write
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from insync.controller.expiry_timers import ExpiryTimers
from insync.metadata import paths
from insync.metadata.cooldowns import brokers_in_cooldown
from insync.metadata.offline_replicas import ElectableBrokers
from insync.metadata.records import TopicRecord, decode_lease, decode_state, may_be_moving
from insync.metadata.store import Change, Entry, MetadataStore, Operation, Write
from insync.metadata.throttle_leases import end_step, hold_of_lease
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import complete
from insync.rules.throttle_lease import HOLD_MS, ThrottleLease

CONFIGS = (paths.TOPIC_CONFIGS, paths.BROKER_CONFIGS)


class MovingPartitions:
    """The partitions that move, by the paths of their states, and those that are to be checked."""

    def __init__(self, store: MetadataStore) -> None:
        self._moving: dict[str, None] = {}
        self._due: dict[str, None] = {}
        for entry in store.under(paths.TOPICS):
            self._update(entry.path, entry)

    def __contains__(self, path: str) -> bool:
        return path in self._moving

    def on_changes(self, changes: Sequence[Change]) -> bool:
        """Returns whether there is something to check."""
        has_work = [self._on_change(change) for change in changes]
        return any(has_work)

    def _on_change(self, change: Change) -> bool:
        if change.path.startswith(paths.TOPICS):
            return self._update(change.path, change.after)
        if change.path.startswith((paths.THROTTLE_LEASES, paths.THROTTLE_HOLDS)):
            return True
        if change.path.startswith((paths.BROKER_IDS, *CONFIGS)):
            self.mark_all_due()
            return bool(self._moving)
        return False

    def _update(self, path: str, entry: Entry | None) -> bool:
        was_moving = path in self._moving
        moves = entry is not None and may_be_moving(entry.value) and paths.partition_of(path)
        if moves:
            self._moving[path] = self._due[path] = None
        elif was_moving:
            del self._moving[path]
            self._due.pop(path, None)
        return bool(moves or was_moving)

    def mark_all_due(self) -> None:
        self._due = dict(self._moving)

    def remove_due(self) -> list[str]:
        """Remove and return the partitions to check now; `put_back` those that were not checked."""
        due, self._due = self._due, {}
        return sorted(due)

    def put_back(self, due: Iterable[str]) -> None:
        self._due |= {path: None for path in due if path in self._moving}


@dataclass
class Completions:
    """The states to write for the moves that can complete."""

    changed: dict[str, tuple[PartitionState, int]] = field(default_factory=dict)
    operations_by_state: dict[str, list[Operation]] = field(
        default_factory=dict
    )  # by the state's path


def find_completions(
    store: MetadataStore,
    due: Iterable[str],
    *,
    live: ElectableBrokers,
    min_isr_of: Callable[[str], int],
) -> Completions:
    completions = Completions()
    for path in due:
        entry, key = store.get(path), paths.partition_of(path)
        if entry is None or key is None:
            continue
        before = decode_state(entry.value)
        electable = live(key)
        after = complete(
            before,
            min_insync_replicas=min_isr_of(key[0]),
            live=electable,
            cooling=brokers_in_cooldown(store, key),
        )
        # A leader that is not live is replaced first, which changes the state.
        if after == before or (after.leader is not None and after.leader not in electable):
            continue
        completions.changed[path] = (after, entry.version)
        completions.operations_by_state[path] = _factor_step(store, key, factor=len(after.replicas))
    return completions


def _factor_step(store: MetadataStore, key: tuple[str, int], *, factor: int) -> list[Operation]:
    """A topic's replication factor is that of its first partition; new partitions get it."""
    entry = store.get(paths.topic(key[0]))
    if entry is None or key[1] != 0:
        return []
    topic = TopicRecord.decode(entry.value)
    if topic.replication_factor == factor:
        return []
    return [Write(entry.path, replace(topic, replication_factor=factor).encode(), entry.version)]


class Leases:
    """Throttle leases to end. Each is decoded once: one may name thousands of partitions."""

    def __init__(self, store: MetadataStore, *, wake: Callable[[], None]) -> None:
        self._store = store
        self._leases: dict[str, tuple[int, ThrottleLease]] = {}  # by path: version and value
        self._holds = ExpiryTimers[tuple[str, int]](HOLD_MS, wake=wake)

    def clear(self) -> None:
        """Another broker is the controller."""
        self._holds.clear()

    def find_ended(self, moving: MovingPartitions) -> list[tuple[ThrottleLease, list[Operation]]]:
        """Each lease to end, and the step that ends it."""
        entries = list(self._store.under(paths.THROTTLE_LEASES))
        self._leases = {entry.path: (entry.version, self._lease(entry)) for entry in entries}
        # A renewal is a new version, which starts a new timer.
        holds = {path: hold_of_lease(self._store, path) for path in self._leases}
        versions = {path: hold.version for path, hold in holds.items() if hold is not None}
        lapsed = {path for path, _ in self._holds.expired(versions.items())}
        return [
            (lease, end_step(self._store, path, version, lease))
            for path, (version, lease) in self._leases.items()
            if path in lapsed or (path not in versions and not _has_move(lease, moving))
        ]

    def _lease(self, entry: Entry) -> ThrottleLease:
        version, lease = self._leases.get(entry.path, (None, None))
        return (
            lease if lease is not None and version == entry.version else decode_lease(entry.value)
        )


def _has_move(lease: ThrottleLease, moving: MovingPartitions) -> bool:
    return any(paths.partition_state(*key) in moving for key in lease.partitions)
