"""Which replicas a data directory holds, noted outside their folders.

A folder that is gone says nothing of what was in it. So one small file per data directory names
each replica by topic, partition and topic id, with a high watermark: every record below it was
committed, and was in the log. A log that is missing, or ends below its noted watermark, has lost
committed records.

    0                                version
    3f2a9c01                         CRC-32 of the lines below, in hexadecimal
    TOPIC PARTITION TOPIC_ID HIGH_WATERMARK
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from insync.storage.checkpoints import INT64_MAX, Partition
from insync.storage.errors import CorruptFile

HELD_REPLICAS: Final = "held-replicas-checkpoint"
VERSION: Final = "0"


class HeldReplica(NamedTuple):
    topic_id: UUID
    high_watermark: int


def write_held(replicas: Mapping[Partition, HeldReplica]) -> bytes:
    body = "".join(
        f"{topic} {partition} {held.topic_id.hex} {held.high_watermark}\n"
        for (topic, partition), held in sorted(replicas.items())
    ).encode("ascii")
    return f"{VERSION}\n{crc32(body):08x}\n".encode("ascii") + body


def read_held(data: bytes) -> dict[Partition, HeldReplica]:
    version, _, rest = data.partition(b"\n")
    crc, _, body = rest.partition(b"\n")
    if version != VERSION.encode("ascii") or crc != f"{crc32(body):08x}".encode("ascii"):
        raise CorruptFile("held replicas of another version, or damaged")
    replicas = {}
    for line in body.decode("ascii").splitlines():
        topic, partition, topic_id, high_watermark = line.split(" ")
        assert int(high_watermark) <= INT64_MAX, "the CRC is right, so we wrote it"
        replicas[topic, int(partition)] = HeldReplica(UUID(hex=topic_id), int(high_watermark))
    return replicas
