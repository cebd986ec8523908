"""The operations by which StartMoves and HoldThrottle write a throttle lease, in their steps."""

from __future__ import annotations

import json
from typing import Final

from kio.schema.errors import ErrorCode

from insync.broker.admin.partition_steps import MoveRefused
from insync.metadata import paths
from insync.metadata.configs import configs_step
from insync.metadata.records import encode_lease
from insync.metadata.store import (
    VALUE_BYTES_MAX,
    Create,
    Entry,
    MetadataStore,
    Operation,
    Write,
)
from insync.rules.throttle_lease import Configs, ThrottleLease

LEASED_TOPICS_MAX: Final = 4_000  # each takes up to four operations of the step


def next_lease_number(store: MetadataStore) -> tuple[int, Operation]:
    """A number for a lease, and the write that makes one of two concurrent steps conflict."""
    counter = store.get(paths.REASSIGN_PARTITIONS)
    number = 0 if counter is None else counter.version + 1
    value = json.dumps({"version": 1, "requests": number + 1}).encode()
    if counter is None:
        return number, Create(paths.REASSIGN_PARTITIONS, value)
    return number, Write(counter.path, value, counter.version)


def lease_operations(
    store: MetadataStore, current: Entry | None, number: int, lease: ThrottleLease, change: Configs
) -> list[Operation]:
    """Write this lease in place of the current one, and the settings that change with it."""
    value = encode_lease(lease)
    config_operations = configs_step(store, change)
    values = [
        value,
        *(write.value for write in config_operations if isinstance(write, Create | Write)),
    ]
    is_too_large = any(len(value) > VALUE_BYTES_MAX for value in values)
    if is_too_large or len(lease.topics) > LEASED_TOPICS_MAX:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"one throttle cannot list replicas of {len(lease.topics)} topics"
            + ("; move some of them later" if lease.partitions else ""),
        )
    lease_operation: Operation = (
        Create(paths.throttle_lease(str(number)), value)
        if current is None
        else Write(current.path, value, current.version)
    )
    return [lease_operation, *config_operations]
