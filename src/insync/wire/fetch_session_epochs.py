"""Fetch sessions on the wire (KIP-227): ids and epochs that mean something special."""

from __future__ import annotations

from typing import Final

NO_SESSION: Final = 0
CLOSE_EPOCH: Final = -1  # a full fetch without a session, which ends the session that it names
FIRST_EPOCH: Final = 0  # a full fetch that begins a session
EPOCH_MAX: Final = 2_147_483_647


def next_epoch(epoch: int) -> int:
    """The epoch after the largest is 1: 0 would begin a session."""
    return 1 if epoch >= EPOCH_MAX else epoch + 1
