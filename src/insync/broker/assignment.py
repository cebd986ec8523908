"""Who gets which replica of a new partition: leaders in turn, racks apart.

Brokers stand in a ring in which racks take turns. Leaders go round it. The followers of a
partition are the next brokers after a gap, passing over a rack that already has a replica as long
as another has none; with each turn of the leaders the gap widens, so that a broker's partitions do
not all have the same followers and the load of a dead one goes to many.

Without racks every broker is a rack of its own, and the rule is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from insync.rules.values import BrokerId

Racks = Mapping[BrokerId, str | None]


def assign(racks: Racks, *, count: int, factor: int, first: int) -> list[tuple[BrokerId, ...]]:
    """`count` replica lists over these brokers; `first` is where in the ring the leaders begin."""
    assert 1 <= factor <= len(racks), f"{factor} replicas on {len(racks)} brokers"
    rack_of = _rack_numbers(racks)
    ring = _alternating(rack_of)
    return [
        _replicas(
            ring, rack_of, leader=(first + number) % len(ring), turn=number // len(ring), of=factor
        )
        for number in range(count)
    ]


def _rack_numbers(racks: Racks) -> dict[BrokerId, int]:
    """Brokers without a rack, where others have one, stand in one rack together, as in Kafka 4."""
    if all(rack is None for rack in racks.values()):
        return {broker: number for number, broker in enumerate(sorted(racks))}
    names = sorted({rack or "" for rack in racks.values()})
    return {broker: names.index(racks[broker] or "") for broker in sorted(racks)}


def _alternating(rack_of: Mapping[BrokerId, int]) -> list[BrokerId]:
    by_rack: dict[int, list[BrokerId]] = {}
    for broker, rack in sorted(rack_of.items()):
        by_rack.setdefault(rack, []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for each in rounds for broker in each if broker is not None]


def _replicas(
    ring: list[BrokerId], rack_of: Mapping[BrokerId, int], *, leader: int, turn: int, of: int
) -> tuple[BrokerId, ...]:
    rack_count = len(set(rack_of.values()))
    chosen = [ring[leader]]
    used = {rack_of[ring[leader]]}
    gap = turn * rack_count  # a multiple of it: the racks' turns stay as they are
    while len(chosen) < of:
        for step in range(len(ring) - 1):
            broker = ring[(leader + 1 + (gap + step) % (len(ring) - 1)) % len(ring)]
            is_apart = rack_of[broker] not in used or len(used) == rack_count
            if broker not in chosen and is_apart:
                chosen.append(broker)
                used.add(rack_of[broker])
                break
    return tuple(chosen)
