"""What the tree's values mean: brokers, topics and partition states as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from insync.metadata.errors import StoreCorrupt
from insync.rules.partition_state import PartitionState
from insync.rules.throttle_lease import Listed, RateSet, ThrottleLease
from insync.rules.throttled_replicas import SomeReplicas, parse
from insync.rules.values import BrokerId, Incarnation, LeaderEpoch, PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRecord:
    """A broker that lives: where it serves, and which life of it this is."""

    broker: BrokerId
    incarnation: Incarnation
    host: str
    port: int
    rack: str | None = None

    def encode(self) -> bytes:
        return _json(
            {
                "version": 1,
                "incarnation": self.incarnation,
                "host": self.host,
                "port": self.port,
                "rack": self.rack,
            }
        )

    @classmethod
    def decode(cls, broker: int, value: bytes) -> BrokerRecord:
        fields = _fields(value)
        return cls(
            broker=BrokerId(broker),
            incarnation=Incarnation(fields["incarnation"]),
            host=fields["host"],
            port=fields["port"],
            rack=fields["rack"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic's identity: a name may come back, an id never does."""

    topic_id: UUID
    partitions: int
    replication_factor: int

    def encode(self) -> bytes:
        return _json(
            {
                "version": 1,
                "topic_id": str(self.topic_id),
                "partitions": self.partitions,
                "replication_factor": self.replication_factor,
            }
        )

    @classmethod
    def decode(cls, value: bytes) -> TopicRecord:
        fields = _fields(value)
        return cls(
            topic_id=UUID(fields["topic_id"]),
            partitions=fields["partitions"],
            replication_factor=fields["replication_factor"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resignation:
    """A leader's wish to hand over, good for the one term it was made in."""

    topic_id: UUID
    leader: BrokerId
    leader_epoch: LeaderEpoch
    why: str

    def encode(self) -> bytes:
        return _json(
            {
                "version": 1,
                "topic_id": str(self.topic_id),
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "why": self.why,
            }
        )

    @classmethod
    def decode(cls, value: bytes) -> Resignation:
        fields = _fields(value)
        return cls(
            topic_id=UUID(fields["topic_id"]),
            leader=BrokerId(fields["leader"]),
            leader_epoch=LeaderEpoch(fields["leader_epoch"]),
            why=fields["why"],
        )


def encode_state(state: PartitionState) -> bytes:
    return _json(
        {
            "version": 1,
            "replicas": state.replicas,
            "isr": state.isr,
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "adding": state.adding,
            "removing": state.removing,
        }
    )


def decode_state(value: bytes) -> PartitionState:
    fields = _fields(value)
    leader = fields["leader"]
    return PartitionState(
        replicas=_brokers(fields["replicas"]),
        isr=_brokers(fields["isr"]),
        leader=None if leader is None else BrokerId(leader),
        leader_epoch=LeaderEpoch(fields["leader_epoch"]),
        adding=_brokers(fields["adding"]),
        removing=_brokers(fields["removing"]),
    )


def may_be_moving(value: bytes) -> bool:
    """Whether a stored state may be under way to other replicas, without reading all of it."""
    return not value.endswith(_SETTLED)


def encode_lease(lease: ThrottleLease) -> bytes:
    return _json(
        {
            "version": 1,
            "partitions": sorted(lease.partitions),
            "lists": [
                [topic, name, str(listed.added), listed.before]
                for (topic, name), listed in sorted(lease.lists.items())
            ],
            "rates": [
                [broker, name, rate.value, rate.before]
                for (broker, name), rate in sorted(lease.rates.items())
            ],
        }
    )


def decode_lease(value: bytes) -> ThrottleLease:
    fields = _fields(value)
    return ThrottleLease(
        partitions=frozenset(
            (topic, PartitionId(number)) for topic, number in fields["partitions"]
        ),
        lists={
            (topic, name): Listed(added=_entries(added), before=before)
            for topic, name, added, before in fields["lists"]
        },
        rates={
            (BrokerId(broker), name): RateSet(value=text, before=before)
            for broker, name, text, before in fields["rates"]
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleHold:
    """Who renews the lease of this name; each renewal writes it anew, which its version counts."""

    broker: BrokerId  # that fills itself anew
    holder: str

    def encode(self) -> bytes:
        return _json({"version": 1, "broker": self.broker, "holder": self.holder})

    @classmethod
    def decode(cls, value: bytes) -> ThrottleHold:
        fields = _fields(value)
        return cls(broker=BrokerId(fields["broker"]), holder=fields["holder"])


def _entries(text: str) -> SomeReplicas:
    entries = parse(text)
    assert isinstance(entries, SomeReplicas), "a lease adds single replicas"
    return entries


def encode_config(config: Mapping[str, str]) -> bytes:
    return _json({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(value: bytes) -> dict[str, str]:
    config = _fields(value)["config"]
    assert isinstance(config, dict), "a config is a map"
    return config


def _brokers(ids: list[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in ids)


def _json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


_SETTLED = b'"adding":[],"removing":[]}'


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> object:
        raise StoreCorrupt(f"a metadata value lacks {key!r}; it was written by something else")


def _fields(value: bytes) -> _Fields:
    try:
        return _Fields(json.loads(value))
    except (ValueError, TypeError):
        raise StoreCorrupt("a metadata value is not a JSON object") from None
