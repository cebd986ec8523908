"""Whether a broker may start with this data directory and this metadata store.

A data directory and a metadata store belong together. The store says that a replica is in sync, and
means the log in one directory. A log was written by states that one store had. Either may be
replaced by another one, by mistake or after a loss. Then what one says is not true of the other:

- The store remembers the directory of each broker. Another directory is refused unless the operator
  accepts it, and is always refused while a broker with the first one is registered. In an
  accepted directory every replica is damaged (`LogDirectory.mark_untrusted`): it does not lead.
- The directory remembers the newest step that the broker had read from the store. A store that is
  older, or that came to that revision by other steps, is refused unless the operator accepts it.

Either is accepted for one start, by a flag: a setting in a file would accept the next loss too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from insync.broker.accepted import NEW_DIRECTORY, OLDER_METADATA, Accepted
from insync.metadata import paths
from insync.metadata.records import BrokerRecord, decode_directory
from insync.metadata.store import MetadataStore
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId
from insync.storage.disk import Disk
from insync.storage.metadata_checkpoint import (
    FILE,
    MetadataCheckpoint,
    read_metadata_checkpoint,
    write_metadata_checkpoint,
)
from insync.wire.uuid_text import write_uuid

logger = logging.getLogger(__name__)


class DirectoryRefused(Refusal):
    """The store knows this broker with another data directory."""


class OlderMetadata(Refusal):
    """The metadata store is older than what this broker had read from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHistory:
    """What the store has where this broker's checkpoint is."""

    checkpoint: MetadataCheckpoint | None
    revision: int  # the store's newest
    fingerprint: str | None  # of the store's step at the checkpoint's revision, if it still has it

    @property
    def is_older(self) -> bool:
        if self.checkpoint is None:
            return False
        if self.revision < self.checkpoint.revision:
            return True
        is_known = self.fingerprint is not None and self.checkpoint.fingerprint != ""
        return is_known and self.fingerprint != self.checkpoint.fingerprint


async def read_history(store: MetadataStore, disk: Disk, path: str) -> StoreHistory:
    checkpoint = read_metadata_checkpoint(disk, path)
    fingerprint = None
    if checkpoint is not None:
        fingerprint = await store.fingerprint_of(checkpoint.revision)
    return StoreHistory(checkpoint=checkpoint, revision=store.revision, fingerprint=fingerprint)


class Admission:
    """Called with the directory's id before anything in the directory is changed."""

    def __init__(
        self,
        *,
        broker: BrokerId,
        store: MetadataStore,
        metadata_dir: str,
        log_dir: str,
        history: StoreHistory,
        accepted: Accepted,
    ) -> None:
        self._broker = broker
        self._store = store
        self._metadata_dir = metadata_dir
        self._log_dir = log_dir
        self._history = history
        self._accepted = accepted
        self.is_another_directory = False
        """Accepted, and not the one whose logs made this broker's replicas in sync."""

    def __call__(self, directory_id: UUID | None, /, *, is_new: bool) -> None:
        self._check_directory(directory_id, is_new=is_new)
        self._check_store()

    def _check_directory(self, directory_id: UUID | None, *, is_new: bool) -> None:
        known = known_directory(self._store, self._broker)
        if known is None:
            # Without a record the store is of an Insync that kept none, or the broker is new.
            is_another = is_new and self._store.get(paths.broker_seen(self._broker)) is not None
        else:
            is_another = directory_id != known
        if is_another and not self._accepted.new_directory:
            raise DirectoryRefused(
                f"{self._log_dir} is {_describe(directory_id)}, and the metadata store knows "
                f"broker {self._broker} with {_describe_known(known)}{self._registered()}; give "
                "the broker its own log.dirs or node.id, or, if its directory is lost, start it "
                f"once with {NEW_DIRECTORY}: its replicas are then copied from other brokers"
            )
        if is_another:
            logger.warning(
                "%s: accepted instead of the directory that broker %d had; its replicas count"
                " as damaged until they are copied from the leaders",
                self._log_dir,
                self._broker,
            )
        self.is_another_directory = is_another

    def _registered(self) -> str:
        entry = self._store.get(paths.broker_id(self._broker))
        if entry is None:
            return ""
        record = BrokerRecord.decode(self._broker, entry.value)
        return f", registered now at {record.host}:{record.port}"

    def _check_store(self) -> None:
        history = self._history
        if not history.is_older:
            return
        assert history.checkpoint is not None, "without one nothing is older"
        reached = history.checkpoint.revision
        if history.revision < reached:
            difference = f"it is at revision {history.revision}"
        else:
            difference = f"it has another step at revision {reached} and is at {history.revision}"
        problem = (
            f"the metadata store in {self._metadata_dir} is older than this broker: {difference},"
            f" and the broker had read revision {reached} ({self._log_dir}/{FILE})"
        )
        if not self._accepted.older_metadata:
            raise OlderMetadata(
                f"{problem}; it was restored from an older backup, or a power failure took its "
                "newest steps (metadata.synchronous=NORMAL); restore a newer one, or start every "
                f"broker once with {OLDER_METADATA}: logs of topics that it does not know are then "
                "kept as strays"
            )
        logger.warning("%s; accepted", problem)


def known_directory(store: MetadataStore, broker: BrokerId) -> UUID | None:
    """The id of the data directory that holds the broker's replicas, if the store knows one."""
    entry = store.get(paths.broker_directory(broker))
    return None if entry is None else decode_directory(entry.value)


def _describe(directory_id: UUID | None) -> str:
    return (
        "a directory without id"
        if directory_id is None
        else f"directory {write_uuid(directory_id)}"
    )


def _describe_known(known: UUID | None) -> str:
    return "another directory" if known is None else f"directory {write_uuid(known)}"


class MetadataCheckpoints:
    """Keeps the directory's checkpoint of the newest step that this broker has read."""

    def __init__(self, store: MetadataStore, disk: Disk, path: str) -> None:
        self._store = store
        self._disk = disk
        self._path = path
        self._written: MetadataCheckpoint | None = None

    def write(self) -> None:
        """Write it if it changed. Blocks; may run in another thread."""
        revision, fingerprint = self._store.latest_step
        checkpoint = MetadataCheckpoint(revision=revision, fingerprint=fingerprint)
        if checkpoint != self._written:
            write_metadata_checkpoint(self._disk, self._path, checkpoint)
            self._written = checkpoint
