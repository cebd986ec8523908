"""KIP-73's throttled-replica lists, and the rate that goes with them.

`0:101,1:102` names replicas as partition:broker. The document itself writes `0-101` in places and
blanks after the commas; Apache Kafka takes neither, Insync takes both. `*` is every replica of
the topic, and an empty list is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from insync.rules.refusals import BadSetting, BadThrottledReplicas
from insync.rules.values import BrokerId, PartitionId

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_LIST: Final = "leader.replication.throttled.replicas"
FOLLOWER_LIST: Final = "follower.replication.throttled.replicas"

ID_MAX: Final = 2**31 - 1  # partitions and brokers are 32-bit in the protocol

# Bounded, so that no text is ever turned into a number of thousands of digits.
ENTRY = re.compile(r"([0-9]{1,20})[ \t]*[:-][ \t]*([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class EveryReplica:
    """`*`: whatever partitions the topic has or will have."""

    def includes(self, _partition: PartitionId, _broker: BrokerId) -> bool:
        return True

    def __str__(self) -> str:
        return "*"


@dataclass(frozen=True, slots=True)
class SomeReplicas:
    """The replicas listed, and no others."""

    replicas: frozenset[tuple[PartitionId, BrokerId]] = frozenset()

    def includes(self, partition: PartitionId, broker: BrokerId) -> bool:
        return (partition, broker) in self.replicas

    def __str__(self) -> str:
        return ",".join(f"{partition}:{broker}" for partition, broker in sorted(self.replicas))


ThrottledReplicas = EveryReplica | SomeReplicas

NO_REPLICAS: Final = SomeReplicas()


def parse(text: str) -> ThrottledReplicas:
    """Read a list as it stands in a topic's configuration."""
    text = text.strip()
    if text == "*":
        return EveryReplica()
    if not text:
        return NO_REPLICAS
    return SomeReplicas(frozenset(_entry(entry) for entry in text.split(",")))


def listing(replicas: Iterable[tuple[PartitionId, BrokerId]]) -> SomeReplicas:
    return SomeReplicas(frozenset(replicas))


def effective_rate(*, per_broker: int | None, cluster_default: int | None) -> int | None:
    """The rate in bytes per second that holds on a broker; None is no limit.

    Its own setting wins over the cluster's default, zero included.
    """
    rate = cluster_default if per_broker is None else per_broker
    if rate is not None and rate < 0:
        raise BadSetting(
            f"a replication throttle of {rate} B/s has no meaning; use 0 or more, "
            "or delete the setting for no limit"
        )
    return rate


def _entry(entry: str) -> tuple[PartitionId, BrokerId]:
    match = ENTRY.fullmatch(entry.strip())
    if match is None:
        raise BadThrottledReplicas(
            f"cannot read {entry.strip()!r} as a throttled replica; "
            "write partition:broker, for example 0:101, or * for every replica"
        )
    partition, broker = int(match[1]), int(match[2])
    if max(partition, broker) > ID_MAX:
        raise BadThrottledReplicas(f"{entry.strip()!r} has a number above {ID_MAX}")
    return PartitionId(partition), BrokerId(broker)
