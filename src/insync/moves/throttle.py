"""Setting a throttle and removing it again, without changing what the operator set.

A rate is set on every broker involved, a list on every topic. Entries are added to lists and
removed from them one by one. A rate is restored to the value before, unless it changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from kio.schema.errors import ErrorCode

from insync.client.admin import Admin, ConfigValue
from insync.client.admin_connections import Refused
from insync.moves.journal import Journal, JournalFile, RateChange
from insync.rules import throttle_settings
from insync.rules.move_plan import Move, TopicPartition, brokers_involved
from insync.rules.refusals import Refusal
from insync.rules.throttle_settings import LISTS, RATES, Throttle
from insync.rules.throttled_replicas import EveryReplica, SomeReplicas, ThrottledReplicas, parse
from insync.rules.values import BrokerId
from insync.wire.configs import ConfigSource, Resource

UNLIMITED_BYTES_PER_S: Final = 2**63 - 1  # the value of a rate that is not set

ALL_BROKERS: Final = BrokerId(-1)
"""The default of all brokers: the only rate that can be set for a broker that is down."""


class CannotThrottle(Refusal):
    """A throttle that cannot be set everywhere it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleRemoval:
    """What was removed, and what could not be."""

    brokers: tuple[BrokerId, ...] = ()
    topics: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    kept_for: tuple[TopicPartition, ...] = ()  # running moves that need it

    @property
    def is_complete(self) -> bool:
        return not self.problems and not self.kept_for


def of_moves(
    moving: Mapping[TopicPartition, Move], *, bytes_per_s: int, alive: frozenset[BrokerId]
) -> Throttle:
    """KIP-73's throttle of these moves; only on a live broker can its rate be set."""
    brokers = brokers_involved(moving) & alive
    return throttle_settings.of_moves(moving, bytes_per_s=bytes_per_s, brokers=brokers)


def merged(
    journal: Journal,
    throttle: Throttle,
    *,
    partitions: Iterable[TopicPartition],
    rates_now: Mapping[tuple[BrokerId, str], str | None],
    lists_now: Mapping[tuple[str, str], ThrottledReplicas],
    bootstrapping: BrokerId | None = None,
) -> Journal:
    """The journal to write before `throttle` is set, with the values that are set now.

    A value that this tool set itself is not one to restore: the one before it is.
    """
    rates = dict(journal.rates)
    for key, rate in throttle.rates.items():
        now, journalled = rates_now[key], journal.rates.get(key)
        if journalled is not None and now in (*journalled.values, journalled.before):
            values = tuple(dict.fromkeys((*journalled.values, str(rate))))
            rates[key] = RateChange(before=journalled.before, values=values)
        else:
            rates[key] = RateChange(before=now, values=(str(rate),))
    lists = dict(journal.lists)
    for name, replicas in throttle.lists.items():
        added = _missing(replicas, lists_now[name])
        journalled_list = lists.get(name, SomeReplicas())
        union = SomeReplicas(journalled_list.replicas | added.replicas)
        if union.replicas:
            lists[name] = union
    return Journal(
        partitions=journal.partitions.union(partitions),
        rates=rates,
        lists=lists,
        bootstrapping=bootstrapping,
    )


def _missing(replicas: SomeReplicas, now: ThrottledReplicas) -> SomeReplicas:
    if isinstance(now, EveryReplica):
        return SomeReplicas()
    return SomeReplicas(replicas.replicas - now.replicas)


# On the cluster.


async def rates_of(admin: Admin, brokers: Iterable[BrokerId]) -> dict[tuple[BrokerId, str], str]:
    """The rates set on the brokers themselves."""
    rates = {}
    for broker in sorted(brokers):
        is_default = broker == ALL_BROKERS
        own = ConfigSource.DYNAMIC_DEFAULT_BROKER if is_default else ConfigSource.DYNAMIC_BROKER
        for each in await _settings(admin, broker):
            is_own = each.source is own
            if each.name in RATES and is_own and each.value is not None:
                rates[broker, each.name] = each.value
    return rates


async def _settings(admin: Admin, broker: BrokerId) -> list[ConfigValue]:
    try:
        return await admin.configs(Resource.BROKER, _entity(broker))
    except Refusal as refusal:
        raise CannotThrottle(f"broker {broker} does not report its rates: {refusal}") from None


async def limits_of(admin: Admin, brokers: Iterable[BrokerId]) -> dict[tuple[BrokerId, str], int]:
    """The rates in force on brokers, their own or the default; unlimited ones are left out."""
    rates = {
        (broker, each.name): int(each.value)
        for broker in sorted(brokers)
        for each in await _settings(admin, broker)
        if each.name in RATES and each.value is not None and each.value.isdecimal()
    }
    return {key: rate for key, rate in rates.items() if rate < UNLIMITED_BYTES_PER_S}


async def lists_of(admin: Admin, topics: Iterable[str]) -> dict[tuple[str, str], ThrottledReplicas]:
    """The lists of topics; a deleted topic has none."""
    configs = await admin.topic_configs(sorted(topics))
    if configs is None:
        raise CannotThrottle("these brokers do not report settings (DescribeConfigs)")
    return {
        (topic, key): parse(setting.value)
        for topic, settings in configs.items()
        for key in LISTS
        if (setting := settings.get(key)) is not None and setting.value
    }


async def set_throttle(
    admin: Admin,
    file: JournalFile,
    throttle: Throttle,
    *,
    partitions: Iterable[TopicPartition],
    bootstrapping: BrokerId | None = None,
) -> None:
    """Write the journal, then set the throttle. If this raises, nothing of it is left set."""
    try:
        rates = await rates_of(admin, throttle.brokers)
    except CannotThrottle as refusal:
        raise CannotThrottle(
            f"{refusal}; start it, or leave out the throttle; nothing was changed"
        ) from None
    lists = await lists_of(admin, {topic for topic, _ in throttle.lists})
    before = file.read()

    def after(journal: Journal) -> Journal:
        return merged(
            journal,
            throttle,
            partitions=partitions,
            rates_now={key: rates.get(key) for key in throttle.rates},
            lists_now={key: lists.get(key, SomeReplicas()) for key in throttle.lists},
            bootstrapping=bootstrapping,
        )

    file.write(after(before))
    try:
        for broker in throttle.brokers:
            values = {
                key: str(throttle.rates[broker, key])
                for key in RATES
                if (broker, key) in throttle.rates
            }
            await _alter(admin, Resource.BROKER, _entity(broker), values)
        for topic in sorted({topic for topic, _ in throttle.lists}):
            await _alter(admin, Resource.TOPIC, topic, _extended_lists(topic, throttle, lists))
    except (Refusal, asyncio.CancelledError) as reason:
        # Restore what was set before this call, maybe by an earlier one.
        ended, left = await _remove(admin, after(Journal()), needed=frozenset())
        if left.is_empty:
            file.write(before)
        if isinstance(reason, asyncio.CancelledError):
            raise
        problems = "".join(f"; {each}" for each in ended.problems)
        raise CannotThrottle(f"{reason}; nothing was moved{problems}") from None


def _extended_lists(
    topic: str, throttle: Throttle, now: Mapping[tuple[str, str], ThrottledReplicas]
) -> dict[str, str]:
    extended = {}
    for key in LISTS:
        present = now.get((topic, key), SomeReplicas())
        needed_list = throttle.lists.get((topic, key), SomeReplicas())
        if isinstance(present, SomeReplicas) and needed_list.replicas - present.replicas:
            extended[key] = str(SomeReplicas(present.replicas | needed_list.replicas))
    return extended


async def end(
    admin: Admin, file: JournalFile, *, active: Iterable[TopicPartition]
) -> ThrottleRemoval:
    """Remove what the journal names and no active move needs."""
    journal = file.read()
    needed = journal.partitions.intersection(active)
    ended, left = await _remove(admin, journal, needed=needed)
    if left != journal:
        file.write(left)
    return ended


async def clear_of_plan(
    admin: Admin,
    topics: Iterable[str],
    alive: Iterable[BrokerId],
    partitions: AbstractSet[TopicPartition],
) -> ThrottleRemoval:
    """Remove the plan's partitions from the lists, and the rates too if the lists are empty then.

    Rates without a list entry of the plan may be the operator's, and stay.
    """
    lists = await lists_of(admin, topics)
    of_plan = {
        name: SomeReplicas(
            frozenset(each for each in now.replicas if (name[0], each[0]) in partitions)
        )
        for name, now in lists.items()
        if isinstance(now, SomeReplicas)
    }
    of_plan = {name: each for name, each in of_plan.items() if each.replicas}
    rates: dict[tuple[BrokerId, str], RateChange] = {}
    if of_plan and all(lists[name] == of_plan.get(name) for name in lists):
        now = await rates_of(admin, alive)
        rates = {key: RateChange(before=None, values=(value,)) for key, value in now.items()}
    journal = Journal(lists=of_plan, rates=rates)
    ended, _ = await _remove(admin, journal, needed=frozenset())
    return ended


async def _remove(
    admin: Admin, journal: Journal, *, needed: frozenset[TopicPartition]
) -> tuple[ThrottleRemoval, Journal]:
    """What was removed, and what of the journal is left to remove."""
    lists, topics, problems = await _end_lists(admin, journal, needed)
    rates = journal.rates
    brokers: tuple[BrokerId, ...] = ()
    if not needed:
        rates, brokers, more = await _end_rates(admin, journal)
        problems = (*problems, *more)
    ended = ThrottleRemoval(
        brokers=brokers, topics=topics, problems=problems, kept_for=tuple(sorted(needed))
    )
    return ended, replace(journal, lists=lists, rates=rates)


async def _end_lists(
    admin: Admin, journal: Journal, needed: frozenset[TopicPartition]
) -> tuple[Mapping[tuple[str, str], SomeReplicas], tuple[str, ...], tuple[str, ...]]:
    """The lists that are left to remove, the topics changed, and the problems."""
    topics = sorted({topic for topic, _ in journal.lists})
    now = await lists_of(admin, topics)
    changed, problems = [], []
    left: dict[tuple[str, str], SomeReplicas] = {}
    for topic in topics:
        journalled = {key: each for (name, key), each in journal.lists.items() if name == topic}
        kept = {key: _needed(topic, each, needed) for key, each in journalled.items()}
        rest = {
            key: SomeReplicas(present.replicas - (each.replicas - kept[key].replicas))
            for key, each in journalled.items()
            if isinstance(present := now.get((topic, key)), SomeReplicas)
        }
        rest = {key: each for key, each in rest.items() if each != now[topic, key]}
        try:
            await _alter(
                admin,
                Resource.TOPIC,
                topic,
                {key: str(each) for key, each in rest.items() if each.replicas},
                [key for key, each in rest.items() if not each.replicas],
            )
            changed += [topic] if rest else []
        except Refusal as refusal:
            problems.append(f"the throttled replicas of topic {topic} stay: {refusal}")
            kept = journalled
        left |= {(topic, key): each for key, each in kept.items() if each.replicas}
    return left, tuple(changed), tuple(problems)


def _needed(topic: str, added: SomeReplicas, needed: frozenset[TopicPartition]) -> SomeReplicas:
    return SomeReplicas(frozenset(each for each in added.replicas if (topic, each[0]) in needed))


async def _end_rates(
    admin: Admin, journal: Journal
) -> tuple[Mapping[tuple[BrokerId, str], RateChange], tuple[BrokerId, ...], tuple[str, ...]]:
    """The rates that are left to restore, the brokers changed, and the problems."""
    changed, problems = [], []
    left: dict[tuple[BrokerId, str], RateChange] = {}
    for broker in sorted({broker for broker, _ in journal.rates}):
        journalled = {
            key: each for (number, key), each in journal.rates.items() if number == broker
        }
        try:
            now = await rates_of(admin, [broker])
            unchanged = {
                key: each
                for key, each in journalled.items()
                if now.get((broker, key)) in each.values
            }
            values = {
                key: each.before for key, each in unchanged.items() if each.before is not None
            }
            deleted = [key for key, each in unchanged.items() if each.before is None]
            await _alter(admin, Resource.BROKER, _entity(broker), values, deleted)
            changed += [broker] if unchanged else []
        except Refusal as refusal:
            rates = " and ".join(sorted({each.values[-1] for each in journalled.values()}))
            where = "all brokers" if broker == ALL_BROKERS else f"broker {broker}"
            problems.append(f"the rate of {rates} B/s on {where} stays: {refusal}")
            left |= {(broker, key): each for key, each in journalled.items()}
    return left, tuple(changed), tuple(problems)


def _entity(broker: BrokerId) -> str:
    return "" if broker == ALL_BROKERS else str(broker)


async def _alter(
    admin: Admin,
    kind: Resource,
    name: str,
    values: Mapping[str, str],
    deleted: Iterable[str] = (),
) -> None:
    if not values and not deleted:
        return
    try:
        await admin.alter_configs(kind, name, set_values=values, deleted=list(deleted))
    except Refused as refused:
        if kind is Resource.TOPIC and refused.code is ErrorCode.unknown_topic_or_partition:
            if values:
                raise Refused(refused.code, f"topic {name!r} does not exist any more") from None
            return  # its settings were deleted with it
        raise
