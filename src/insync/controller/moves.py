"""Moves under way: which there are, which can complete, and throttles that end by themselves.

Who moves is known from change notice, so that nothing is searched for: the controller looks at a
moving partition when its state changes, and at all of them when brokers or settings do. Completing
one is the rule's next state, written on condition that nothing changed meanwhile; the next
controller would write the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from insync.controller.countdown import Countdown
from insync.metadata import paths
from insync.metadata.cooling import cooling_for
from insync.metadata.records import TopicRecord, decode_lease, decode_state, may_be_moving
from insync.metadata.store import Change, Entry, MetadataStore, Operation, Write
from insync.metadata.throttle_leases import end_step, hold_on
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import complete
from insync.rules.throttle_lease import HOLD_MS, ThrottleLease
from insync.rules.values import BrokerId

CONFIGS = (paths.TOPIC_CONFIGS, paths.BROKER_CONFIGS)


class Moving:
    """The partitions that move, by the paths of their states, and those to be looked at."""

    def __init__(self, store: MetadataStore) -> None:
        self._moving: dict[str, None] = {}
        self._due: dict[str, None] = {}
        for entry in store.under(paths.TOPICS):
            self._see(entry.path, entry)

    def __contains__(self, path: str) -> bool:
        return path in self._moving

    def on_changes(self, changes: Sequence[Change]) -> bool:
        """Whether there is something to look at."""
        has_news = [self._on_change(change) for change in changes]
        return any(has_news)

    def _on_change(self, change: Change) -> bool:
        if change.path.startswith(paths.TOPICS):
            return self._see(change.path, change.after)
        if change.path.startswith((paths.THROTTLE_LEASES, paths.THROTTLE_HOLDS)):
            return True
        if change.path.startswith((paths.BROKER_IDS, *CONFIGS)):
            self.look_at_all()
            return bool(self._moving)
        return False

    def _see(self, path: str, entry: Entry | None) -> bool:
        was_moving = path in self._moving
        moves = entry is not None and may_be_moving(entry.value) and paths.partition_of(path)
        if moves:
            self._moving[path] = self._due[path] = None
        elif was_moving:
            del self._moving[path]
            self._due.pop(path, None)
        return bool(moves or was_moving)

    def look_at_all(self) -> None:
        self._due = dict(self._moving)

    def take_due(self) -> list[str]:
        """What to look at now; `put_back` what was not looked at after all."""
        due, self._due = self._due, {}
        return sorted(due)

    def put_back(self, due: Iterable[str]) -> None:
        self._due |= {path: None for path in due if path in self._moving}


@dataclass
class Completions:
    """What to do about the moves that can complete."""

    changed: dict[str, tuple[PartitionState, int]] = field(default_factory=dict)
    beside: dict[str, list[Operation]] = field(default_factory=dict)  # by the state's path


def completions(
    store: MetadataStore,
    due: Iterable[str],
    *,
    live: AbstractSet[BrokerId],
    min_isr_of: Callable[[str], int],
) -> Completions:
    found = Completions()
    for path in due:
        entry, key = store.get(path), paths.partition_of(path)
        if entry is None or key is None:
            continue
        before = decode_state(entry.value)
        after = complete(
            before,
            min_insync_replicas=min_isr_of(key[0]),
            live=live,
            cooling=cooling_for(store, key),
        )
        # A leader that is not among the living is dealt with first; that changes the state.
        if after == before or (after.leader is not None and after.leader not in live):
            continue
        found.changed[path] = (after, entry.version)
        found.beside[path] = _factor_step(store, key, factor=len(after.replicas))
    return found


def _factor_step(store: MetadataStore, key: tuple[str, int], *, factor: int) -> list[Operation]:
    """A topic's factor is that of its first partition: new partitions get as many replicas."""
    entry = store.get(paths.topic(key[0]))
    if entry is None or key[1] != 0:
        return []
    topic = TopicRecord.decode(entry.value)
    if topic.replication_factor == factor:
        return []
    return [Write(entry.path, replace(topic, replication_factor=factor).encode(), entry.version)]


class Leases:
    """Throttles that end by themselves. Decoded once: one may name thousands of partitions."""

    def __init__(self, store: MetadataStore, *, wake: Callable[[], None]) -> None:
        self._store = store
        self._known: dict[str, tuple[int, ThrottleLease]] = {}  # by path: version and value
        self._holds = Countdown[tuple[str, int]](HOLD_MS, wake=wake)

    def forget(self) -> None:
        """Somebody else is the controller."""
        self._holds.forget()

    def ended(self, moving: Moving) -> list[tuple[str, list[Operation]]]:
        """Each lease that is over, and the step that undoes it."""
        entries = list(self._store.under(paths.THROTTLE_LEASES))
        self._known = {entry.path: (entry.version, self._lease(entry)) for entry in entries}
        # Each renewal is another version, which is waited for anew.
        holds = {path: hold_on(self._store, path) for path in self._known}
        versions = {path: hold.version for path, hold in holds.items() if hold is not None}
        lapsed = {path for path, _ in self._holds.over(versions.items())}
        return [
            (path, end_step(self._store, path, version, lease))
            for path, (version, lease) in self._known.items()
            if path in lapsed or (path not in versions and not _moves(lease, moving))
        ]

    def _lease(self, entry: Entry) -> ThrottleLease:
        version, lease = self._known.get(entry.path, (None, None))
        return (
            lease if lease is not None and version == entry.version else decode_lease(entry.value)
        )


def _moves(lease: ThrottleLease, moving: Moving) -> bool:
    return any(paths.partition_state(*key) in moving for key in lease.partitions)
