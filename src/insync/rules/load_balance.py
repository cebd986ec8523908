"""Changes that even out what brokers take in and how many partitions they lead.

Three loads of a broker count: the bytes in of all its replicas, the bytes that clients write to the
partitions whose preferred leader it is, and the number of those partitions. A load is *balanced*
when no broker has more than a tenth above the mean; a number of leaders also when it is the mean,
rounded up, because partitions do not split.

A *change* makes another replica the preferred leader, which copies nothing, or moves a replica to
another broker, which copies its log. Among the possible changes the one that evens out the most is
made, again and again: the largest fall of the sum, over brokers and loads, of the squares of the
shares of a load. Replicas move only for bytes in, and only if no other leader helps. The search
ends when every load is balanced to half the tolerance, when no change helps, or when enough
partitions change; then the changes up to the evenest state on the way are proposed. It is a greedy
search: the result is better than before, not the best there is. (`balance` proposes the best
placement, of equally many replicas.)

Nothing moves onto a broker that is not named, or into fewer racks than before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final

from insync.rules.move_plan import TopicPartition
from insync.rules.values import BrokerId

Replicas = tuple[BrokerId, ...]
Loads = dict[str, dict[BrokerId, int]]

TOLERANCE: Final = Fraction(1, 10)
GOAL: Final = TOLERANCE / 2  # a plan goes further than the point at which the next one begins
GAIN_MIN: Final = TOLERANCE / 2
BYTES_IN: Final = "bytes in"
CLIENT_BYTES_IN: Final = "bytes in from clients"
LEADERS: Final = "leaders"
LOADS: Final = (BYTES_IN, CLIENT_BYTES_IN, LEADERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Partitions with their replicas, the preferred leader first, and the brokers to even out.

    Replicas on other brokers stay there. Partitions that are `fixed` count, and do not change.
    """

    replicas: Mapping[TopicPartition, Replicas]
    rates: Mapping[TopicPartition, int]  # bytes per second that clients write
    sizes: Mapping[TopicPartition, int]
    brokers: Collection[BrokerId]
    racks: Mapping[BrokerId, str]
    fixed: Collection[TopicPartition] = ()

    def loads(self) -> Loads:
        loads: Loads = {name: dict.fromkeys(sorted(self.brokers), 0) for name in LOADS}
        for partition, replicas in self.replicas.items():
            rate = self.rates.get(partition, 0)
            for broker in replicas:
                if broker in self.brokers:
                    loads[BYTES_IN][broker] += rate
            if replicas[0] in self.brokers:
                loads[CLIENT_BYTES_IN][replicas[0]] += rate
                loads[LEADERS][replicas[0]] += 1
        return loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """The new replicas of the partitions that change, and the loads before and after."""

    changes: Mapping[TopicPartition, Replicas]
    before: Loads
    after: Loads
    is_too_little: bool = False  # changes would help, but not by `GAIN_MIN`


def excess(load: Mapping[BrokerId, int]) -> Fraction:
    """By how much of the mean the broker that has most is above it: 1/4 is a quarter."""
    total = sum(load.values())
    return Fraction(max(load.values()) * len(load), total) - 1 if total else Fraction(0)


def is_balanced(name: str, load: Mapping[BrokerId, int], *, to: Fraction = TOLERANCE) -> bool:
    is_split = name == LEADERS and max(load.values()) <= -(-sum(load.values()) // len(load))
    return is_split or excess(load) <= to


def even_out(placement: Placement, *, changes_max: int) -> Balanced:
    """The changes to make, of at most this many partitions; none if the loads are balanced."""
    assert placement.brokers, "no brokers, no loads"
    before = placement.loads()
    if all(is_balanced(name, load) for name, load in before.items()):
        return Balanced(changes={}, before=before, after=before)
    search = _Search(placement, placement.loads(), dict(placement.replicas))
    changed: dict[TopicPartition, None] = {}
    best, best_changes = _unevenness(before), dict[TopicPartition, Replicas]()
    while change := search.best(changed, may_add=len(changed) < changes_max):
        search.apply(change)
        changed[change.partition] = None
        now = _unevenness(search.loads)
        if now < best:
            best, best_changes = now, search.changes(changed)
    if not best_changes:
        return Balanced(changes={}, before=before, after=before)
    if _unevenness(before) - best < GAIN_MIN:
        return Balanced(changes={}, before=before, after=before, is_too_little=True)
    after = Placement(
        replicas={**placement.replicas, **best_changes},
        rates=placement.rates,
        sizes=placement.sizes,
        brokers=placement.brokers,
        racks=placement.racks,
    )
    return Balanced(
        changes={each: best_changes[each] for each in sorted(best_changes)},
        before=before,
        after=after.loads(),
    )


def _unevenness(loads: Loads) -> Fraction:
    uneven = (load for name, load in loads.items() if not is_balanced(name, load, to=GOAL))
    return sum(map(excess, uneven), Fraction(0))


@dataclass(frozen=True, slots=True)
class _Change:
    """The replica of `leaving` goes to `coming`, or its preference does, if that has a replica."""

    partition: TopicPartition
    leaving: BrokerId
    coming: BrokerId
    loads: tuple[str, ...]  # that go with it


@dataclass(slots=True)
class _Search:
    placement: Placement
    loads: Loads
    replicas: dict[TopicPartition, Replicas]

    def changes(self, changed: Iterable[TopicPartition]) -> dict[TopicPartition, Replicas]:
        """Without partitions that changed back."""
        before = self.placement.replicas
        return {
            each: self.replicas[each] for each in changed if self.replicas[each] != before[each]
        }

    def best(self, changed: Collection[TopicPartition], *, may_add: bool) -> _Change | None:
        """The change that gains most, None if none gains. A changed partition may change again."""
        uneven = {name for name in LOADS if not is_balanced(name, self.loads[name], to=GOAL)}
        usable = changed if not may_add else self.replicas
        kinds: list[Callable[[TopicPartition], Iterator[_Change]]] = []
        kinds += [self._handovers] if uneven & {CLIENT_BYTES_IN, LEADERS} else []
        kinds += [self._moves] if BYTES_IN in uneven else []
        for kind in kinds:
            change = self._largest_gain(
                change
                for partition in usable
                if partition not in self.placement.fixed
                for change in kind(partition)
            )
            if change is not None:
                return change
        return None

    def _largest_gain(self, changes: Iterable[_Change]) -> _Change | None:
        """Of equal gains that of the smaller log, then that of the first partition."""
        totals = {name: sum(load.values()) for name, load in self.loads.items()}
        # In proportion to 1 / total², so that loads count as shares; whole numbers stay exact.
        all_totals = prod(total**2 for total in totals.values() if total)
        weights = {name: all_totals // total**2 for name, total in totals.items() if total}
        best: tuple[int, int, _Change] | None = None
        for change in changes:
            gain = sum(
                weights[name] * amount * (self._gap(name, change) - amount)
                for name in change.loads
                if (amount := self._amount(name, change.partition))
            )
            size = -self.placement.sizes.get(change.partition, 0)
            if gain > 0 and (best is None or (gain, size) > best[:2]):
                best = gain, size, change
        return None if best is None else best[2]

    def _gap(self, name: str, change: _Change) -> int:
        return self.loads[name][change.leaving] - self.loads[name][change.coming]

    def _amount(self, name: str, partition: TopicPartition) -> int:
        return 1 if name == LEADERS else self.placement.rates.get(partition, 0)

    def _handovers(self, partition: TopicPartition) -> Iterator[_Change]:
        leader, *followers = self.replicas[partition]
        if leader in self.placement.brokers:
            for follower in followers:
                if follower in self.placement.brokers:
                    yield _Change(partition, leader, follower, (CLIENT_BYTES_IN, LEADERS))

    def _moves(self, partition: TopicPartition) -> Iterator[_Change]:
        """From brokers with more bytes in than the mean to those with less."""
        replicas, loads = self.replicas[partition], self.loads[BYTES_IN]
        total, count = sum(loads.values()), len(loads)
        for at, leaving in enumerate(replicas):
            if loads.get(leaving, 0) * count > total:
                for coming, load in loads.items():
                    is_lower = load * count < total and coming not in replicas
                    if is_lower and self._is_as_apart(replicas, leaving, coming):
                        names = LOADS if at == 0 else LOADS[:1]
                        yield _Change(partition, leaving, coming, names)

    def _is_as_apart(self, replicas: Replicas, leaving: BrokerId, coming: BrokerId) -> bool:
        racks = self.placement.racks
        if not racks:
            return True
        after = tuple(coming if each == leaving else each for each in replicas)
        return coming in racks and _racks(after, racks) >= _racks(replicas, racks)

    def apply(self, change: _Change) -> None:
        replicas = self.replicas[change.partition]
        if change.coming in replicas:
            rest = (each for each in replicas if each != change.coming)
            self.replicas[change.partition] = (change.coming, *rest)
        else:
            self.replicas[change.partition] = tuple(
                change.coming if each == change.leaving else each for each in replicas
            )
        for name in change.loads:
            amount = self._amount(name, change.partition)
            self.loads[name][change.leaving] -= amount
            self.loads[name][change.coming] += amount


def _racks(replicas: Replicas, racks: Mapping[BrokerId, str]) -> int:
    return len({racks[each] for each in replicas if each in racks})
