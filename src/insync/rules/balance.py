"""A balanced placement of replicas that copies the least data.

Three goals, in order of priority: no rack holds more replicas of a
partition than it must; brokers hold equally many replicas (within one where racks allow it); as few
bytes as possible are copied. Then the same for preferred leaders, which costs no data.

This is a flow of least cost. A replica may *hop* from broker a to broker b when b has none of that
partition and b's rack has room; a chain of hops from a fuller broker to an emptier one evens the
two out and leaves those between as they were. Taking the cheapest chain again and again, until none
improves anything, ends at the optimum: the cheapest chain leaves no cycle of hops that would save
something (successive shortest paths, with a convex price on a broker's load). Among equally cheap
chains the one with the fewest hops is taken; it never moves one partition in two ways that exclude
each other, because a shortcut through that partition would be shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId

Replicas = tuple[BrokerId, ...]
Racks = Mapping[BrokerId, str | None]

Price = tuple[int, int, int]  # evenness, bytes, hops: each before the next

# Emptying a broker that is not to hold anything is worth more than any evenness.
_MUST_GO: Final = 1 << 60


def balanced(
    current: Mapping[TopicPartition, Replicas],
    *,
    brokers: Sequence[BrokerId],
    racks: Racks,
    sizes: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Replicas]:
    """Where each partition should be, over these brokers; its first replica is to lead.

    Brokers without a rack are each apart from all others only if none has one.
    """
    for partition, replicas in sorted(current.items()):
        if len(replicas) > len(brokers):
            raise BadPlan(
                f"{partition[0]}-{partition[1]} has {len(replicas)} replicas, more than the "
                f"{len(brokers)} brokers named; name more brokers"
            )
    rack_of = _racks(brokers, racks)
    caps = {
        count: _rack_cap(count, Counter(rack_of.values()))
        for count in sorted({len(replicas) for replicas in current.values()})
    }
    placed = {partition: set(current[partition]) for partition in sorted(current)}

    def fits(partition: TopicPartition, leaving: BrokerId, coming: BrokerId) -> bool:
        rack = rack_of[coming]
        if rack_of.get(leaving) == rack:
            return True
        here = sum(1 for broker in placed[partition] if rack_of.get(broker) == rack)
        return here < caps[len(placed[partition])]

    _spread_over_racks(placed, brokers=brokers, rack_of=rack_of, caps=caps)
    _even_out(
        placed,
        homes={partition: frozenset(current[partition]) for partition in placed},
        weights={partition: sizes.get(partition, 0) + 1 for partition in placed},
        brokers=brokers,
        fits=fits,
    )
    leaders = _leaders(current, placed, brokers)
    return {
        partition: _ordered(current[partition], placed[partition], leaders[partition])
        for partition in placed
    }


def _racks(brokers: Sequence[BrokerId], racks: Racks) -> dict[BrokerId, str]:
    known_racks = {broker: rack for broker in brokers if (rack := racks.get(broker)) is not None}
    if not known_racks:
        return {broker: f"broker {broker}" for broker in brokers}
    without = [broker for broker in brokers if broker not in known_racks]
    if without:
        raise BadPlan(
            f"broker {without[0]} has no rack while others have; "
            "give it one (broker.rack), or use --disable-rack-aware"
        )
    return known_racks


def _rack_cap(replicas: int, rack_sizes: Mapping[str, int]) -> int:
    """The smallest limit of replicas per rack with which all of them fit."""
    cap = 1
    while sum(min(cap, size) for size in rack_sizes.values()) < replicas:
        cap += 1
    return cap


def _spread_over_racks(
    placed: Mapping[TopicPartition, set[BrokerId]],
    *,
    brokers: Sequence[BrokerId],
    rack_of: Mapping[BrokerId, str],
    caps: Mapping[int, int],
) -> None:
    """One replica leaves for each that a rack has too many: the least this can take."""
    loads = Counter(broker for replicas in placed.values() for broker in replicas)
    for replicas in placed.values():
        cap = caps[len(replicas)]
        while True:
            used = Counter(rack_of[broker] for broker in replicas if broker in rack_of)
            full = sorted(rack for rack, count in used.items() if count > cap)
            if not full:
                break
            leaving = max(
                (b for b in replicas if rack_of.get(b) == full[0]), key=lambda b: (loads[b], b)
            )
            coming = min(
                (b for b in brokers if b not in replicas and used[rack_of[b]] < cap),
                key=lambda b: (loads[b], b),
            )
            replicas.remove(leaving)
            replicas.add(coming)
            loads[leaving] -= 1
            loads[coming] += 1


def _leaders(
    current: Mapping[TopicPartition, Replicas],
    placed: Mapping[TopicPartition, set[BrokerId]],
    brokers: Sequence[BrokerId],
) -> dict[TopicPartition, BrokerId]:
    """As even as the placement allows; preferred replicas stay preferred where possible."""
    leading = {
        partition: {next((b for b in current[partition] if b in replicas), min(replicas))}
        for partition, replicas in placed.items()
    }

    def may_lead(partition: TopicPartition, _: BrokerId, coming: BrokerId) -> bool:
        return coming in placed[partition]

    _even_out(
        leading,
        homes={partition: frozenset(leading[partition]) for partition in leading},
        weights=dict.fromkeys(leading, 1),
        brokers=brokers,
        fits=may_lead,
    )
    return {partition: min(leader) for partition, leader in leading.items()}


def _ordered(before: Replicas, now: set[BrokerId], leader: BrokerId) -> Replicas:
    """The leader first; replicas that stay keep their order, new ones come last."""
    stay = [broker for broker in before if broker in now]
    new = sorted(now.difference(before))
    return (leader, *(broker for broker in (*stay, *new) if broker != leader))


Fits = Callable[[TopicPartition, BrokerId, BrokerId], bool]


@dataclass(frozen=True, slots=True)
class _Hops:
    """Every hop that may be possible, the cheapest of each pair of brokers first.

    What a hop costs never changes; whether it is possible does. So that is checked when the
    hop is chosen, and a partition's hops are put back when it has moved.
    """

    placed: Mapping[TopicPartition, set[BrokerId]]
    homes: Mapping[TopicPartition, frozenset[BrokerId]]
    weights: Mapping[TopicPartition, int]
    brokers: Sequence[BrokerId]
    fits: Fits
    heaps: dict[tuple[BrokerId, BrokerId], list[tuple[int, TopicPartition]]]

    def offer(self, partition: TopicPartition) -> None:
        home, weight = self.homes[partition], self.weights[partition]
        for leaving in sorted(self.placed[partition]):
            for coming in self.brokers:
                if coming not in self.placed[partition]:
                    cost = weight * ((coming not in home) - (leaving not in home))
                    heappush(self.heaps.setdefault((leaving, coming), []), (cost, partition))

    def cheapest(self) -> dict[tuple[BrokerId, BrokerId], tuple[int, TopicPartition]]:
        cheapest = {}
        for pair, heap in self.heaps.items():
            while heap and not self._is_possible(heap[0][1], *pair):
                heappop(heap)
            if heap:
                cheapest[pair] = heap[0]
        return cheapest

    def _is_possible(self, partition: TopicPartition, leaving: BrokerId, coming: BrokerId) -> bool:
        here = self.placed[partition]
        return leaving in here and coming not in here and self.fits(partition, leaving, coming)

    def apply(self, partition: TopicPartition, leaving: BrokerId, coming: BrokerId) -> None:
        assert self._is_possible(partition, leaving, coming), "a chain moves nothing in two ways"
        self.placed[partition].remove(leaving)
        self.placed[partition].add(coming)


def _even_out(
    placed: Mapping[TopicPartition, set[BrokerId]],
    *,
    homes: Mapping[TopicPartition, frozenset[BrokerId]],
    weights: Mapping[TopicPartition, int],
    brokers: Sequence[BrokerId],
    fits: Fits,
) -> None:
    """Change `placed` to the evenest loads there can be, by the cheapest hops."""
    hops = _Hops(placed, homes, weights, sorted(brokers), fits, {})
    for partition in placed:
        hops.offer(partition)
    loads = Counter(broker for replicas in placed.values() for broker in replicas)
    while chain := _cheapest_chain(loads, hops.cheapest(), frozenset(brokers)):
        for partition, leaving, coming in chain:
            hops.apply(partition, leaving, coming)
            loads[leaving] -= 1
            loads[coming] += 1
        for partition in dict.fromkeys(partition for partition, _, _ in chain):
            hops.offer(partition)


Chain = list[tuple[TopicPartition, BrokerId, BrokerId]]


def _cheapest_chain(
    loads: Mapping[BrokerId, int],
    hops: Mapping[tuple[BrokerId, BrokerId], tuple[int, TopicPartition]],
    wanted: frozenset[BrokerId],
) -> Chain:
    """Bellman and Ford's; empty when no chain makes anything better."""
    prices: dict[BrokerId, Price] = {
        broker: (-(2 * load - 1) if broker in wanted else -_MUST_GO, 0, 0)
        for broker, load in sorted(loads.items())
        if load > 0
    }
    came: dict[BrokerId, tuple[TopicPartition, BrokerId]] = {}
    is_settled = False
    while not is_settled:
        is_settled = True
        for (leaving, coming), (cost, partition) in hops.items():
            evenness, data, count = prices[leaving]
            price = (evenness, data + cost, count + 1)
            if coming not in prices or price < prices[coming]:
                prices[coming] = price
                came[coming] = partition, leaving
                is_settled = False
    ends = [
        ((prices[broker][0] + 2 * loads.get(broker, 0) + 1, *prices[broker][1:]), broker)
        for broker in sorted(wanted)
        if broker in came
    ]
    if not ends or min(ends)[0][:2] >= (0, 0):
        return []
    chain: Chain = []
    at = min(ends)[1]
    while at in came:
        partition, before = came[at]
        chain.append((partition, before, at))
        at = before
    return chain[::-1]
