"""The file that says of which topic a log is, as Kafka writes it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from insync.storage.errors import CorruptFile
from insync.wire.uuid_text import read_uuid, write_uuid

TOPIC_ID: Final = "partition.metadata"


def write_topic_id(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {write_uuid(topic_id)}\n".encode()


def read_topic_id(data: bytes) -> UUID:
    """The topic id in a partition.metadata file, or `CorruptFile`."""
    lines = data.decode("ascii", errors="replace").splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if fields.get("version") != "0":
        raise CorruptFile("partition.metadata of another version")
    try:
        return read_uuid(fields.get("topic_id", ""))
    except ValueError as error:
        raise CorruptFile("partition.metadata without a topic id") from error
