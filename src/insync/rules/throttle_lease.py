"""A throttle that ends by itself: what it sets, and how that is undone.

A lease remembers what it added to the throttled-replica lists, what rates it set, and what was
there before. When it ends, exactly that is undone. What an operator set meanwhile stays.

One that came with moves lasts until none of its partitions moves; it covers all moves under way,
and a later request extends it. One for a broker that rebuilds its replicas is held by the tool that
watches the broker, and lasts until that tool lets go of it or has not renewed it for `HOLD_MS`.

There is one lease at a time: with two, the second could restore a rate that the first had set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from insync.rules.move_plan import Move, TopicPartition, brokers_involved
from insync.rules.refusals import BadThrottledReplicas
from insync.rules.throttle_settings import Throttle, beyond, of_moves
from insync.rules.throttled_replicas import EveryReplica, SomeReplicas, parse
from insync.rules.values import BrokerId

HOLD_MS: Final = 15_000  # a tool renews it every third of that

Config = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configs:
    """Settings of topics and of brokers, as stored; without an entry, none are set."""

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
    partitions: frozenset[TopicPartition] = frozenset()  # whose moves it came with
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
    """Throttle all these moves to this rate; returns whose settings change, and to what.

    Brokers whose moves are over get it too: they are in the lists until the lease ends.
    """
    brokers = brokers_involved(moving).union(lease.brokers)
    throttle = of_moves(moving, bytes_per_s=bytes_per_s, brokers=brokers)
    return _with(lease, throttle, partitions=frozenset(moving), configs=configs)


def begin(throttle: Throttle, *, configs: Configs) -> tuple[ThrottleLease, Configs]:
    """A lease for no moves; returns whose settings change, and to what."""
    return _with(NO_LEASE, throttle, partitions=frozenset(), configs=configs)


def follow_leaders(
    lease: ThrottleLease, throttle: Throttle, *, configs: Configs
) -> tuple[ThrottleLease, Configs] | None:
    """Add what of this throttle the lease never set; None if there is nothing.

    Other leaders lead since. What the lease did set is left alone: an operator may have changed it.
    """
    added = {name: listed.added for name, listed in lease.lists.items()}
    new = beyond(throttle, rates=lease.rates, lists=added)
    if not new.rates and not new.lists:
        return None
    extended, change = _with(lease, new, partitions=lease.partitions, configs=configs)
    return None if extended == lease else (extended, change)


def _with(
    lease: ThrottleLease,
    throttle: Throttle,
    *,
    partitions: frozenset[TopicPartition],
    configs: Configs,
) -> tuple[ThrottleLease, Configs]:
    topics = {topic: dict(configs.topics.get(topic, {})) for topic in throttle.topics}
    lists = dict(lease.lists)
    for (topic, name), entries in throttle.lists.items():
        text = topics[topic].get(name)
        after, added = _lengthened(text, entries)
        known = lists.get((topic, name))
        if known is not None:
            added, text = SomeReplicas(known.added.replicas | added.replicas), known.before
        topics[topic][name] = after
        lists[topic, name] = Listed(added=added, before=text)
    brokers = {broker: dict(configs.brokers.get(broker, {})) for broker in throttle.brokers}
    rates = dict(lease.rates)
    for (broker, name), bytes_per_s in throttle.rates.items():
        before = brokers[broker].get(name)
        rate_set = rates.get((broker, name))
        if rate_set is not None and before == rate_set.value:
            before = rate_set.before
        brokers[broker][name] = str(bytes_per_s)
        rates[broker, name] = RateSet(value=str(bytes_per_s), before=before)
    extended = ThrottleLease(partitions=partitions, lists=lists, rates=rates)
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
        return text  # set by an operator since
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
