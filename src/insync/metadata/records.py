"""The values of the tree: brokers, topics, partition states and others, as JSON."""

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
from insync.rules.values import NO_BROKERS, BrokerId, Incarnation, LeaderEpoch, PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRecord:
    """The registration of a live broker: its incarnation, address and data directory."""

    broker: BrokerId
    incarnation: Incarnation
    host: str
    port: int
    rack: str | None = None
    directory_id: UUID | None = None  # None: registered by an Insync that had no such ids

    def encode(self) -> bytes:
        return _json(
            incarnation=self.incarnation,
            host=self.host,
            port=self.port,
            rack=self.rack,
            directory_id=None if self.directory_id is None else str(self.directory_id),
        )

    @classmethod
    def decode(cls, broker: int, value: bytes) -> BrokerRecord:
        fields = _fields(value)
        directory_id = fields.get("directory_id")
        return cls(
            broker=BrokerId(broker),
            incarnation=Incarnation(fields["incarnation"]),
            host=fields["host"],
            port=fields["port"],
            rack=fields["rack"],
            directory_id=None if directory_id is None else UUID(directory_id),
        )


def encode_directory(directory_id: UUID) -> bytes:
    return _json(directory_id=str(directory_id))


def decode_directory(value: bytes) -> UUID:
    return UUID(_fields(value)["directory_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic's id and size. A name may be used again, an id never is."""

    topic_id: UUID
    partitions: int
    replication_factor: int

    def encode(self) -> bytes:
        return _json(
            topic_id=str(self.topic_id),
            partitions=self.partitions,
            replication_factor=self.replication_factor,
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
    """A leader's request to hand its partition over, valid for the term it was made in."""

    topic_id: UUID
    leader: BrokerId
    leader_epoch: LeaderEpoch
    why: str
    silent: frozenset[BrokerId] = NO_BROKERS  # followers whose sessions may be about to end

    def encode(self) -> bytes:
        return _json(
            topic_id=str(self.topic_id),
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            why=self.why,
            silent=sorted(self.silent),
        )

    @classmethod
    def decode(cls, value: bytes) -> Resignation:
        fields = _fields(value)
        return cls(
            topic_id=UUID(fields["topic_id"]),
            leader=BrokerId(fields["leader"]),
            leader_epoch=LeaderEpoch(fields["leader_epoch"]),
            why=fields["why"],
            silent=frozenset(map(BrokerId, fields.get("silent", ()))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineReplica:
    """A broker's report that its replica of a partition cannot lead, and what it has of it."""

    topic_id: UUID
    broker: BrokerId
    reason: str
    end: int  # its log end offset
    high_watermark: int  # the last one it checkpointed; beyond `end` records are lost
    may_join: bool = True  # False: its log has yet to be truncated and fetched again

    def encode(self) -> bytes:
        return _json(
            topic_id=str(self.topic_id),
            broker=self.broker,
            reason=self.reason,
            end=self.end,
            high_watermark=self.high_watermark,
            may_join=self.may_join,
        )

    @classmethod
    def decode(cls, value: bytes) -> OfflineReplica:
        fields = _fields(value)
        return cls(
            topic_id=UUID(fields["topic_id"]),
            broker=BrokerId(fields["broker"]),
            reason=fields["reason"],
            end=fields["end"],
            high_watermark=fields["high_watermark"],
            may_join=fields["may_join"],
        )


def encode_state(state: PartitionState) -> bytes:
    return _json(
        replicas=state.replicas,
        isr=state.isr,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        **({"eligible": state.eligible} if state.eligible else {}),
        adding=state.adding,
        removing=state.removing,
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
        eligible=_brokers(fields.get("eligible", [])),
    )


def may_be_moving(value: bytes) -> bool:
    """Whether a stored state may be of a moving partition, without decoding it."""
    return not value.endswith(_NOT_MOVING)


def encode_lease(lease: ThrottleLease) -> bytes:
    return _json(
        partitions=sorted(lease.partitions),
        lists=[
            [topic, name, str(listed.added), listed.before]
            for (topic, name), listed in sorted(lease.lists.items())
        ],
        rates=[
            [broker, name, rate.value, rate.before]
            for (broker, name), rate in sorted(lease.rates.items())
        ],
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
    """The tool that renews the lease of this name. Each renewal writes it again: a new version."""

    broker: BrokerId  # that is rebuilding its replicas
    holder: str

    def encode(self) -> bytes:
        return _json(broker=self.broker, holder=self.holder)

    @classmethod
    def decode(cls, value: bytes) -> ThrottleHold:
        fields = _fields(value)
        return cls(broker=BrokerId(fields["broker"]), holder=fields["holder"])


def _entries(text: str) -> SomeReplicas:
    entries = parse(text)
    assert isinstance(entries, SomeReplicas), "a lease adds single replicas"
    return entries


def encode_config(config: Mapping[str, str]) -> bytes:
    return _json(config=dict(sorted(config.items())))


def decode_config(value: bytes) -> dict[str, str]:
    config = _fields(value)["config"]
    assert isinstance(config, dict), "a config is a map"
    return config


def _brokers(ids: list[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in ids)


def _json(**fields: object) -> bytes:
    return json.dumps({"version": 1, **fields}, separators=(",", ":")).encode()


_NOT_MOVING = b'"adding":[],"removing":[]}'


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> object:
        raise StoreCorrupt(f"a metadata value lacks {key!r}: Insync did not write it")


def _fields(value: bytes) -> _Fields:
    try:
        return _Fields(json.loads(value))
    except (ValueError, TypeError):
        raise StoreCorrupt("a metadata value is not a JSON object") from None
