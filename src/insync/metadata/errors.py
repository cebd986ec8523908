"""What a metadata store refuses. Every message says what is so, in one sentence."""

from insync.rules.refusals import Refusal


class Conflict(Refusal):
    """One operation of a step met something else than it expected; nothing was changed."""

    def __init__(self, path: str, *, index: int, expected: str, found_version: int | None) -> None:
        found = "nothing" if found_version is None else f"version {found_version}"
        super().__init__(f"{path}: expected {expected}, found {found}")
        self.path = path
        self.index = index  # which operation of the step, counted from 0
        self.found_version = found_version


class SessionEnded(Refusal):
    """An ephemeral node was asked for by a session that does not live (any more)."""


class Unavailable(Refusal):
    """The store cannot be reached or written now; the step was not made."""


class StoreUnusable(Refusal):
    """The place given for a store cannot hold one: a directory, not writable, not there."""


class StoreCorrupt(Refusal):
    """The file is not a metadata store, or is damaged."""


class StoreTooNew(Refusal):
    """The file was written by a newer Insync."""


class BadTopicName(Refusal):
    """A topic name that Kafka does not allow."""
