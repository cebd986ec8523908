"""Throttles that were left behind: this tool's by its journal, others by reading all settings."""

from __future__ import annotations

from dataclasses import dataclass

from insync.client.admin import Admin
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.journal import Journal, JournalFile
from insync.moves.throttle import ThrottleRemoval
from insync.rules.throttled_replicas import SomeReplicas
from insync.wire.configs import Resource

DEFAULT = "<default>"  # as Kafka writes the default of all brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One throttle setting that the journal does not name."""

    kind: str  # broker or topic
    name: str
    setting: str
    value: str
    is_needed: bool  # a running move, or a tool that holds it, may need it


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    ended: ThrottleRemoval
    others: tuple[Leftover, ...]
    removed_others: bool


async def sweep(
    admin: Admin, file: JournalFile, cluster: ClusterNow, *, force: bool, is_held: bool = False
) -> SweepResult:
    """Remove what the journal names and no move needs; list the rest, or with `force` remove it.

    What running moves may need stays even then: lists of their topics, and all rates. While a tool
    holds a throttle (`is_held`), all of it stays: it ends by itself.
    """
    with file.locked():
        ended = await throttles.end(admin, file, active=cluster.active)
        journal = file.read()
        settings = await _all_throttles(admin, cluster, is_held=is_held)
        others = [each for each in settings if not _is_journalled(each, journal)]
        for each in others if force else ():
            if not each.is_needed:
                kind = Resource.TOPIC if each.kind == "topic" else Resource.BROKER
                name = "" if each.name == DEFAULT else each.name
                await admin.alter_configs(kind, name, set_values={}, deleted=[each.setting])
    return SweepResult(ended=ended, others=tuple(others), removed_others=force)


async def _all_throttles(admin: Admin, cluster: ClusterNow, *, is_held: bool) -> list[Leftover]:
    lists = await throttles.lists_of(admin, cluster.topics)
    rates = await throttles.rates_of(admin, cluster.alive | {throttles.ALL_BROKERS})
    moving_topics = {topic for topic, _ in cluster.active}
    return [
        Leftover(
            kind="topic",
            name=topic,
            setting=key,
            value=str(replicas),
            is_needed=is_held or topic in moving_topics,
        )
        for (topic, key), replicas in sorted(lists.items(), key=lambda each: each[0])
    ] + [
        Leftover(
            kind="broker",
            name=DEFAULT if broker == throttles.ALL_BROKERS else str(broker),
            setting=key,
            value=value,
            is_needed=is_held or bool(moving_topics),
        )
        for (broker, key), value in sorted(rates.items())
    ]


def _is_journalled(each: Leftover, journal: Journal) -> bool:
    if each.kind == "topic":
        journalled = journal.lists.get((each.name, each.setting), SomeReplicas())
        return each.value == str(journalled)
    return any(
        (str(broker), key) == (each.name, each.setting) and each.value in change.values
        for (broker, key), change in journal.rates.items()
    )
