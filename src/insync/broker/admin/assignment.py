"""Replicas of new partitions: leaders in turn over all brokers, replicas in different racks.

Brokers form a ring in which racks alternate. Leaders go round the ring. The followers of a
partition are the next brokers after a gap, skipping racks that already have a replica while another
rack has none. The gap grows with each round of the leaders, so that a broker's partitions have
different followers, and the load of a dead broker goes to many others.

Without racks, every broker counts as a rack of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from insync.rules.values import BrokerId

Racks = Mapping[BrokerId, str | None]


def assign(racks: Racks, *, count: int, factor: int, first: int) -> list[tuple[BrokerId, ...]]:
    """Replica lists for `count` partitions; `first` is the ring position of the first leader."""
    assert 1 <= factor <= len(racks), f"{factor} replicas on {len(racks)} brokers"
    rack_of = _rack_numbers(racks)
    ring = _alternating(rack_of)
    return [
        _replicas(
            ring,
            rack_of,
            leader=(first + number) % len(ring),
            round_number=number // len(ring),
            factor=factor,
        )
        for number in range(count)
    ]


def _rack_numbers(racks: Racks) -> dict[BrokerId, int]:
    """If only some brokers have a rack, the others form one rack together, as in Kafka 4."""
    if all(rack is None for rack in racks.values()):
        return {broker: number for number, broker in enumerate(sorted(racks))}
    names = sorted({rack or "" for rack in racks.values()})
    return {broker: names.index(racks[broker] or "") for broker in sorted(racks)}


def _alternating(rack_of: Mapping[BrokerId, int]) -> list[BrokerId]:
    by_rack: dict[int, list[BrokerId]] = {}
    for broker, rack in sorted(rack_of.items()):
        by_rack.setdefault(rack, []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for brokers in rounds for broker in brokers if broker is not None]


def _replicas(
    ring: list[BrokerId],
    rack_of: Mapping[BrokerId, int],
    *,
    leader: int,
    round_number: int,
    factor: int,
) -> tuple[BrokerId, ...]:
    rack_count = len(set(rack_of.values()))
    chosen = [ring[leader]]
    used = {rack_of[ring[leader]]}
    gap = round_number * rack_count  # a multiple, so that racks alternate as before
    while len(chosen) < factor:
        for step in range(len(ring) - 1):
            broker = ring[(leader + 1 + (gap + step) % (len(ring) - 1)) % len(ring)]
            is_new_rack = rack_of[broker] not in used or len(used) == rack_count
            if broker not in chosen and is_new_rack:
                chosen.append(broker)
                used.add(rack_of[broker])
                break
    return tuple(chosen)
