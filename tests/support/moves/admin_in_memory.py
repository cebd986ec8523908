"""A cluster's settings and moves in memory, for what `insync.moves` does to them.

It keeps settings as Kafka does, and refuses what a test wants refused: a broker that is down does
not answer for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from kio.schema.errors import ErrorCode

from insync.client.admin import Admin, ConfigValue, Move, Partition
from insync.client.admin_connections import NoSuchBroker, Refused
from insync.moves.cluster import ClusterNow
from insync.rules.move_plan import TopicPartition
from insync.rules.throttled_replicas import FOLLOWER_LIST, LEADER_LIST
from insync.rules.values import BrokerId, PartitionId
from insync.wire.configs import ConfigSource, Resource

Settings = dict[str, str]


@dataclass
class OneCluster:
    """Stands in for `Admin`, for throttles."""

    alive: set[int] = field(default_factory=lambda: {1, 2, 3})
    brokers_set: dict[str, Settings] = field(default_factory=dict)  # "" is the default of all
    topics_set: dict[str, Settings] = field(default_factory=dict)
    refuses_topic: str | None = None
    log: list[str] = field(default_factory=list)

    @property
    def admin(self) -> Admin:
        return cast("Admin", self)

    def throttles(self) -> dict[str, Settings]:
        """All that is set, by broker or topic."""
        brokers = {f"broker {name}": each for name, each in self.brokers_set.items() if each}
        topics = {f"topic {name}": each for name, each in self.topics_set.items() if each}
        return {**brokers, **topics}

    async def configs(self, kind: Resource, name: str) -> list[ConfigValue]:
        assert kind is Resource.BROKER
        self._check_alive(name)
        own = self.brokers_set.get(name, {})
        defaults = self.brokers_set.get("", {})
        source = ConfigSource.DYNAMIC_BROKER if name else ConfigSource.DYNAMIC_DEFAULT_BROKER
        sourced = {
            **{key: (defaults[key], ConfigSource.DYNAMIC_DEFAULT_BROKER) for key in defaults},
            **{key: (own[key], source) for key in own},
        }
        return [
            ConfigValue(name=key, value=value, source=each, is_read_only=False)
            for key, (value, each) in sourced.items()
        ]

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        return {
            name: {
                key: ConfigValue(
                    name=key,
                    value=self.topics_set[name].get(key, ""),
                    source=ConfigSource.TOPIC,
                    is_read_only=False,
                )
                for key in (LEADER_LIST, FOLLOWER_LIST)
            }
            for name in names
            if name in self.topics_set
        }

    async def alter_configs(
        self,
        kind: Resource,
        name: str,
        *,
        set_values: Mapping[str, str],
        deleted: Sequence[str] = (),
    ) -> str:
        if kind is Resource.BROKER:
            self._check_alive(name)
            settings = self.brokers_set.setdefault(name, {})
        elif name == self.refuses_topic or name not in self.topics_set:
            code = ErrorCode.unknown_topic_or_partition
            raise Refused(ErrorCode.policy_violation if name in self.topics_set else code, name)
        else:
            settings = self.topics_set[name]
        settings.update(set_values)
        for key in deleted:
            settings.pop(key, None)
        self.log.append(f"{kind.name.lower()} {name}")
        return ""

    def _check_alive(self, name: str) -> None:
        if name and int(name) not in self.alive:
            raise NoSuchBroker(f"there is no live broker {name}")


def partition(number: int, topic: str = "t") -> TopicPartition:
    return topic, PartitionId(number)


def ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(each) for each in numbers)


def cluster_now(
    replicas: Mapping[TopicPartition, Iterable[int]],
    *,
    alive: Iterable[int] = (1, 2, 3),
    moving: Mapping[TopicPartition, tuple[Iterable[int], Iterable[int]]] | None = None,
    isr: Mapping[TopicPartition, Iterable[int]] | None = None,
) -> ClusterNow:
    """Each partition led by its first replica; `moving` has what is added and removed."""
    partitions = {}
    for key, brokers in replicas.items():
        members = ids(brokers)
        adding, removing = (moving or {}).get(key, ((), ()))
        move = None
        if moving is not None and key in moving:
            move = Move(replicas=members, adding=ids(adding), removing=ids(removing))
        partitions[key] = Partition(
            number=key[1],
            leader=members[0],
            replicas=members,
            isr=ids((isr or {}).get(key, members)),
            move=move,
        )
    return ClusterNow(cluster_id="one", racks=dict.fromkeys(ids(alive)), partitions=partitions)
