"""What a throttle has to carry on each broker while replicas move, and how long that takes.

A destination receives whole logs and, meanwhile, what is appended to them. A leader sends both to
every new replica and goes on feeding the replicas it has; all of that counts as throttled, because
KIP-73 lists every existing replica. So a throttle of T leaves T - (what is appended, as often as it
is sent) for the logs themselves: the document's quota minus inbound, broker by broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from insync.rules.move_plan import Move, TopicPartition
from insync.rules.values import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """One broker's part in a plan: bytes to receive and send, and the rates that go on beside."""

    in_bytes: int = 0
    out_bytes: int = 0
    in_bytes_per_s: int = 0
    out_bytes_per_s: int = 0

    @property
    def inbound_bytes_per_s(self) -> int:
        """What a throttle must exceed here."""
        return max(self.in_bytes_per_s, self.out_bytes_per_s)

    def time_ms(self, quota_bytes_per_s: int) -> int | None:
        """Rounded up; None: never, because the quota does not exceed what comes in."""
        times = [
            _time_ms(size, quota_bytes_per_s - rate) for size, rate in self._sides() if size > 0
        ]
        return None if None in times else max((each or 0 for each in times), default=0)

    def quota_to_finish(self, within_s: int) -> int:
        """The least quota that gets this broker done in time; 0 if it has nothing to do."""
        needed = [-(-size // within_s) + rate for size, rate in self._sides() if size > 0]
        return max(needed, default=0)

    def _sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.in_bytes, self.in_bytes_per_s), (self.out_bytes, self.out_bytes_per_s)


def loads(
    moving: Mapping[TopicPartition, Move],
    *,
    leaders: Mapping[TopicPartition, BrokerId],
    sizes: Mapping[TopicPartition, int],
    rates: Mapping[TopicPartition, int],
) -> dict[BrokerId, BrokerLoad]:
    """Every broker that receives or sends; partitions of unknown size or rate count as empty."""
    loads: dict[BrokerId, BrokerLoad] = {}
    for partition, move in moving.items():
        size, rate = sizes.get(partition, 0), rates.get(partition, 0)
        for broker in sorted(move.destinations):
            _add(loads, broker, BrokerLoad(in_bytes=size, in_bytes_per_s=rate))
        leader = leaders.get(partition)
        if leader is not None:
            copies = len(move.destinations)
            followers = copies + len(move.sources - {leader})
            sent = BrokerLoad(out_bytes=size * copies, out_bytes_per_s=rate * followers)
            _add(loads, leader, sent)
    return {broker: loads[broker] for broker in sorted(loads)}


def total_time_ms(loads: Iterable[BrokerLoad], quota_bytes_per_s: int) -> int | None:
    """The slowest broker's; None: one of them never ends."""
    times = [load.time_ms(quota_bytes_per_s) for load in loads]
    return None if None in times else max((each or 0 for each in times), default=0)


def _add(loads: dict[BrokerId, BrokerLoad], broker: BrokerId, more: BrokerLoad) -> None:
    had = loads.get(broker, BrokerLoad())
    loads[broker] = BrokerLoad(
        in_bytes=had.in_bytes + more.in_bytes,
        out_bytes=had.out_bytes + more.out_bytes,
        in_bytes_per_s=had.in_bytes_per_s + more.in_bytes_per_s,
        out_bytes_per_s=had.out_bytes_per_s + more.out_bytes_per_s,
    )


def _time_ms(size_bytes: int, spare_bytes_per_s: int) -> int | None:
    return None if spare_bytes_per_s <= 0 else -(-(size_bytes * 1_000) // spare_bytes_per_s)
