"""What StartMoves and HoldThrottle write of a lease, each in one step with the rest of theirs."""

from __future__ import annotations

import json
from typing import Final

from kio.schema.errors import ErrorCode

from insync.broker.reassignments import MoveRefused
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

LEASED_TOPICS_MAX: Final = 4_000  # each is up to four operations of the one step


def numbered(store: MetadataStore) -> tuple[int, Operation]:
    """A number for a lease, and the write by which of two at once the later sees the earlier."""
    counter = store.get(paths.REASSIGN_PARTITIONS)
    number = 0 if counter is None else counter.version + 1
    asked = json.dumps({"version": 1, "requests": number + 1}).encode()
    if counter is None:
        return number, Create(paths.REASSIGN_PARTITIONS, asked)
    return number, Write(counter.path, asked, counter.version)


def lease_step(
    store: MetadataStore, known: Entry | None, number: int, lease: ThrottleLease, change: Configs
) -> list[Operation]:
    """This lease in place of the known one, and the settings that change with it."""
    value = encode_lease(lease)
    step = configs_step(store, change)
    written = [each.value for each in step if isinstance(each, Create | Write)]
    too_long = any(len(each) > VALUE_BYTES_MAX for each in (value, *written))
    if too_long or len(lease.topics) > LEASED_TOPICS_MAX:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"replicas of {len(lease.topics)} topics are too many for one throttle"
            + ("; move some of them later" if lease.partitions else ""),
        )
    leased: Operation = (
        Create(paths.throttle_lease(str(number)), value)
        if known is None
        else Write(known.path, value, known.version)
    )
    return [leased, *step]
