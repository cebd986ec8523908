"""The settings that make a throttle: a rate on brokers, throttled replicas on topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from insync.rules.move_plan import Move, TopicPartition, follower_throttles, leader_throttles
from insync.rules.throttled_replicas import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
    NO_REPLICAS,
    SomeReplicas,
)
from insync.rules.values import BrokerId

RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
LISTS: Final = (LEADER_LIST, FOLLOWER_LIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """What is to be set: rates by (broker, setting), lists by (topic, setting)."""

    rates: Mapping[tuple[BrokerId, str], int]
    lists: Mapping[tuple[str, str], SomeReplicas]

    @property
    def brokers(self) -> tuple[BrokerId, ...]:
        return tuple(sorted({broker for broker, _ in self.rates}))

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({topic for topic, _ in self.lists}))


def of_moves(
    moving: Mapping[TopicPartition, Move], *, bytes_per_s: int, brokers: Iterable[BrokerId]
) -> Throttle:
    """KIP-73's throttle of these moves: both rates on every broker, as Kafka's tool sets them."""
    return Throttle(
        rates={(broker, name): bytes_per_s for broker in sorted(brokers) for name in RATES},
        lists=_lists(moving),
    )


def is_rebuilt_from_leader(
    broker: BrokerId, *, replicas: Collection[BrokerId], leader: BrokerId | None
) -> bool:
    """Whether a broker with an empty disk gets this partition from another."""
    return broker in replicas and leader != broker and len(replicas) > 1


def of_bootstrap(
    leaders: Mapping[TopicPartition, BrokerId | None],
    broker: BrokerId,
    *,
    bytes_per_s: int,
    set_on: BrokerId,
) -> Throttle:
    """For a broker that rebuilds its replicas: what it follows, and the leaders it fetches from.

    `set_on` gets the rate: the broker itself, if its settings can be changed now.
    """
    copies = {
        partition: Move(
            sources=frozenset(() if leader is None else (leader,)),
            destinations=frozenset((broker,)),
        )
        for partition, leader in leaders.items()
    }
    rates = {(set_on, FOLLOWER_RATE): bytes_per_s}
    for leader in sorted({each for each in leaders.values() if each is not None}):
        rates[leader, LEADER_RATE] = bytes_per_s
    return Throttle(rates=rates, lists=_lists(copies))


def beyond(
    throttle: Throttle,
    *,
    rates: Collection[tuple[BrokerId, str]],
    lists: Mapping[tuple[str, str], SomeReplicas],
) -> Throttle:
    """What of the throttle is neither in these rates nor in these lists."""
    new = {
        name: SomeReplicas(each.replicas - lists.get(name, NO_REPLICAS).replicas)
        for name, each in throttle.lists.items()
    }
    return Throttle(
        rates={key: rate for key, rate in throttle.rates.items() if key not in rates},
        lists={name: each for name, each in new.items() if each.replicas},
    )


def union(throttle: Throttle, more: Throttle) -> Throttle:
    lists = dict(throttle.lists)
    for name, each in more.lists.items():
        lists[name] = SomeReplicas(lists.get(name, NO_REPLICAS).replicas | each.replicas)
    return Throttle(rates={**throttle.rates, **more.rates}, lists=lists)


def _lists(moving: Mapping[TopicPartition, Move]) -> dict[tuple[str, str], SomeReplicas]:
    lists = {(topic, LEADER_LIST): each for topic, each in leader_throttles(moving).items()}
    lists |= {(topic, FOLLOWER_LIST): each for topic, each in follower_throttles(moving).items()}
    return {name: each for name, each in lists.items() if each.replicas}
