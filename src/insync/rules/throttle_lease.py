"""A throttle that lasts as long as the moves it was given for: what it sets, and how that ends.

A lease remembers what it added to the throttled-replica lists, what rates it set, and what was
there before. When none of its partitions moves any more, exactly that is undone. What somebody
else set meanwhile is theirs, and stays.

One lease covers all moves under way: a later request extends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from insync.rules.move_plan import (
    Move,
    TopicPartition,
    brokers_involved,
    follower_throttles,
    leader_throttles,
)
from insync.rules.refusals import BadThrottledReplicas
from insync.rules.throttled_replicas import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
    EveryReplica,
    SomeReplicas,
    parse,
)
from insync.rules.values import BrokerId

Config = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configs:
    """Settings of topics and of brokers, as they are stored; who is not there has none."""

    topics: Mapping[str, Config] = field(default_factory=dict)
    brokers: Mapping[BrokerId, Config] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What was added to one list, and the list as it stood before."""

    added: SomeReplicas
    before: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSet:
    value: str
    before: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleLease:
    partitions: frozenset[TopicPartition] = frozenset()  # it ends when none of them moves
    lists: Mapping[tuple[str, str], Listed] = field(default_factory=dict)  # by topic and setting
    rates: Mapping[tuple[BrokerId, str], RateSet] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.lists})

    @property
    def brokers(self) -> list[BrokerId]:
        return sorted({broker for broker, _ in self.rates})


NO_LEASE: Final = ThrottleLease()


def extend(
    lease: ThrottleLease,
    moving: Mapping[TopicPartition, Move],
    *,
    bytes_per_s: int,
    configs: Configs,
) -> tuple[ThrottleLease, Configs]:
    """Throttle all these moves to this rate; returns whose settings change, and to what."""
    topics = {topic: dict(configs.topics.get(topic, {})) for topic, _ in moving}
    lists = dict(lease.lists)
    wanted = {
        LEADER_LIST: leader_throttles(moving),
        FOLLOWER_LIST: follower_throttles(moving),
    }
    for name, by_topic in wanted.items():
        for topic, entries in by_topic.items():
            text = topics[topic].get(name)
            after, added = _lengthened(text, entries)
            known = lists.get((topic, name))
            if known is not None:
                added, text = SomeReplicas(known.added.replicas | added.replicas), known.before
            topics[topic][name] = after
            lists[topic, name] = Listed(added=added, before=text)
    involved = sorted(brokers_involved(moving).union(lease.brokers))
    brokers = {broker: dict(configs.brokers.get(broker, {})) for broker in involved}
    rates = dict(lease.rates)
    for broker in involved:
        for name in (LEADER_RATE, FOLLOWER_RATE):
            before = brokers[broker].get(name)
            held = rates.get((broker, name))
            if held is not None and before == held.value:
                before = held.before
            brokers[broker][name] = str(bytes_per_s)
            rates[broker, name] = RateSet(value=str(bytes_per_s), before=before)
    extended = ThrottleLease(partitions=frozenset(moving), lists=lists, rates=rates)
    return extended, _changes(configs, Configs(topics=topics, brokers=brokers))


def end(lease: ThrottleLease, *, configs: Configs) -> Configs:
    """Whose settings change, and to what, when the lease is over."""
    topics = {topic: dict(configs.topics.get(topic, {})) for topic in lease.topics}
    for (topic, name), listed in lease.lists.items():
        if name in topics[topic]:
            _put(topics[topic], name, _shortened(topics[topic][name], listed))
    brokers = {broker: dict(configs.brokers.get(broker, {})) for broker in lease.brokers}
    for (broker, name), rate in lease.rates.items():
        if brokers[broker].get(name) == rate.value:
            _put(brokers[broker], name, rate.before)
    return _changes(configs, Configs(topics=topics, brokers=brokers))


def _lengthened(text: str | None, entries: SomeReplicas) -> tuple[str, SomeReplicas]:
    """The list with these entries in it, and which of them are new."""
    known = parse(text or "")
    if isinstance(known, EveryReplica):
        return str(known), SomeReplicas()
    new = entries.replicas - known.replicas
    return str(SomeReplicas(known.replicas | new)), SomeReplicas(new)


def _shortened(text: str, listed: Listed) -> str | None:
    """The list without what was added; None: there is no such list any more."""
    try:
        known = parse(text)
    except BadThrottledReplicas:
        return text  # somebody else's
    if isinstance(known, EveryReplica):
        return text
    left = SomeReplicas(known.replicas - listed.added.replicas)
    if listed.before is not None and parse(listed.before) == left:
        return listed.before
    return str(left) or None


def _put(config: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        del config[name]
    else:
        config[name] = value


def _changes(before: Configs, after: Configs) -> Configs:
    return Configs(
        topics={
            topic: config
            for topic, config in after.topics.items()
            if config != before.topics.get(topic, {})
        },
        brokers={
            broker: config
            for broker, config in after.brokers.items()
            if config != before.brokers.get(broker, {})
        },
    )
