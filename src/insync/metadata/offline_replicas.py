"""Replicas that cannot lead, as their brokers report them.

A broker reports a log that failed (it takes and serves nothing until a restart) or that is damaged
(it lost records that it had checkpointed as committed). A report is an ephemeral node of the
incarnation that made it, so it outlives any controller and ends with the broker's session. Damage
that a broker knows when it starts is reported in the step that registers it: no
controller ever sees the broker without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from insync.metadata import paths
from insync.metadata.records import OfflineReplica, TopicRecord
from insync.metadata.store import Entry, MetadataStore
from insync.rules.values import NO_BROKERS, BrokerId, Incarnation

Reports = Mapping[BrokerId, OfflineReplica]
Incarnations = Mapping[BrokerId, Incarnation]
ElectableBrokers = Callable[[tuple[str, int]], frozenset[BrokerId]]  # by partition


@dataclass(frozen=True, slots=True)
class Offline:
    """The live brokers whose replica of one partition cannot lead."""

    failed: frozenset[BrokerId] = NO_BROKERS
    damaged: frozenset[BrokerId] = NO_BROKERS

    @property
    def brokers(self) -> frozenset[BrokerId]:
        return self.failed | self.damaged


ALL_ONLINE = Offline()


@dataclass
class _Reports:
    failed: set[BrokerId] = field(default_factory=set)
    damaged: set[BrokerId] = field(default_factory=set)


def offline_by_state_path(store: MetadataStore, live: Incarnations) -> dict[str, Offline]:
    """Of all partitions, by the path of their states."""
    reports_by_path: dict[str, _Reports] = {}
    for root in (paths.FAILED_REPLICAS, paths.DAMAGED_REPLICAS):
        for entry in store.under(root):
            name, partition, _ = paths.offline_of(entry.path)
            report = _current(store, entry, live)
            if report is not None:
                path = paths.partition_state(name, partition)
                of_partition = reports_by_path.setdefault(path, _Reports())
                is_failed = root == paths.FAILED_REPLICAS
                (of_partition.failed if is_failed else of_partition.damaged).add(report.broker)
    return {
        path: Offline(frozenset(each.failed), frozenset(each.damaged))
        for path, each in reports_by_path.items()
    }


def offline_in(store: MetadataStore, key: tuple[str, int], live: Incarnations) -> Offline:
    """Of one partition."""
    return Offline(
        frozenset(_reports(store, paths.FAILED_REPLICAS, key, live)),
        frozenset(damage_reports(store, key, live)),
    )


def damage_reports(store: MetadataStore, key: tuple[str, int], live: Incarnations) -> Reports:
    """The live brokers whose replica of the partition is damaged."""
    return _reports(store, paths.DAMAGED_REPLICAS, key, live)


def _reports(
    store: MetadataStore, root: str, key: tuple[str, int], live: Incarnations
) -> dict[BrokerId, OfflineReplica]:
    parent = paths.offline_in(root, *key)
    reports = {}
    for name in store.children(parent):
        entry = store.get(f"{parent}/{name}")
        report = None if entry is None else _current(store, entry, live)
        if report is not None:
            reports[report.broker] = report
    return reports


def _current(store: MetadataStore, entry: Entry, live: Incarnations) -> OfflineReplica | None:
    """The report, if it is of the broker's live incarnation and of the topic of that name."""
    name, _, incarnation = paths.offline_of(entry.path)
    report = OfflineReplica.decode(entry.value)
    topic = store.get(paths.topic(name))
    if topic is None or TopicRecord.decode(topic.value).topic_id != report.topic_id:
        return None
    return report if live.get(report.broker) == incarnation else None
