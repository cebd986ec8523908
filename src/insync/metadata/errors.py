"""What a metadata store refuses. Every message says why, in one sentence."""

from insync.rules.refusals import Refusal


class Conflict(Refusal):
    """The condition of an operation did not hold; nothing was changed."""

    def __init__(self, path: str, *, index: int, expected: str, found_version: int | None) -> None:
        actual = "nothing" if found_version is None else f"version {found_version}"
        super().__init__(f"{path}: expected {expected}, found {actual}")
        self.path = path
        self.index = index  # which operation of the step, counted from 0
        self.found_version = found_version


class SessionEnded(Refusal):
    """The session that an ephemeral node should belong to has ended, or does not exist."""


class Unavailable(Refusal):
    """The store cannot be reached or written now; the step was not made."""


class StoreWentBack(Unavailable):
    """The store's file was replaced, or has fewer steps than were read from it before."""


class StoreUnusable(Refusal):
    """The path cannot hold a store: it is a directory, not writable, or does not exist."""


class StoreCorrupt(Refusal):
    """The file is not a metadata store, or is damaged."""


class StoreTooNew(Refusal):
    """The file was written by a newer Insync."""


class BadTopicName(Refusal):
    """A topic name that Kafka does not allow."""
