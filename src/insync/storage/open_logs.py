"""The open logs of a data directory, and which of its replicas are damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from uuid import UUID

from insync.storage.checkpoints import Partition
from insync.storage.config import NEVER, LogConfig
from insync.storage.disk import Disk
from insync.storage.errors import DiskError
from insync.storage.files import FilePool
from insync.storage.inventory import Damage
from insync.storage.log import Log
from insync.storage.log_names import log_name
from insync.storage.offset_checkpoints import OffsetCheckpoints
from insync.storage.partition_metadata import TOPIC_ID
from insync.storage.replica_checkpoint import CheckpointedReplica, ReplicaCheckpoint
from insync.storage.unopened_logs import UnopenedLogs

logger = logging.getLogger(__name__)


class OpenLogs:
    """Opens single logs, and finds, marks and ends damage.

    - `logs` and `topic_ids` have the same keys: the logs that are open.
    - `damaged` has the replicas that may lack records they had, and why: they must not lead. It
      outlives a restart: the damage is in the log's inventory, or the replica checkpoint still
      shows what the log lacks.
    - `strays`: logs that were not opened, because their topic id cannot be read.
    - `replica_checkpoint` shows what a log lost. What it has of a damaged log, or of one that was
      not opened, stays until the damage ends.
    - `has_new_logs`: a log is not in the replica checkpoint yet. It should be before anything in it
      is committed.
    - Logs are opened and removed in one thread. Other threads write checkpoints and mark damage.
    """

    def __init__(
        self, disk: Disk, path: str, config_of: Callable[[str], LogConfig], files_max: int
    ) -> None:
        self._disk = disk
        self._config_of = config_of
        self._files = FilePool(disk, files_max=files_max)
        self._unopened = UnopenedLogs()
        self._checkpoints = OffsetCheckpoints(disk, path)
        self.path = path
        self.logs: dict[Partition, Log] = {}
        self.topic_ids: dict[Partition, UUID] = {}
        self.strays: list[str] = []
        self.damaged: dict[Partition, str] = {}
        self.replica_checkpoint = ReplicaCheckpoint(
            disk, path, is_kept=lambda key: key in self.damaged or key in self.unopened
        )
        self.on_failure: Callable[[Partition], None] = lambda _: None
        """Called when a log has failed, in the thread that noticed it."""
        self.has_new_logs = False

    @property
    def unopened(self) -> Mapping[Partition, str]:
        """Replicas whose log the disk refused to open, and why.

        `create` tries again: what they lack, if anything, is known then.
        """
        return self._unopened.reasons

    def topic_id_of(self, key: Partition) -> UUID | None:
        """Of the log in the partition's place, also of one that could not be opened."""
        unopened = self._unopened.get(key)
        return self.topic_ids.get(key) if unopened is None else unopened.topic_id

    def apply_configs(self, topics: AbstractSet[str] | None) -> None:
        """Apply the current settings to the open logs of these topics, or (None) of all."""
        configs: dict[str, LogConfig] = {}
        for (topic, _), log in self.logs.items():
            if topics is None or topic in topics:
                if topic not in configs:
                    configs[topic] = self._config_of(topic)
                before = log.config
                log.apply_config(configs[topic])
                if before.flush_messages == NEVER != log.config.flush_messages:
                    try:
                        self._flush_topic_id(log.path)
                    except DiskError as error:
                        log.fail(str(error))
                        logger.warning(
                            "%s: failed, cannot flush as log.flush.interval.messages requires: %s",
                            log.path,
                            error,
                        )

    def _add(self, key: Partition, log: Log, topic_id: UUID) -> None:
        log.attach(
            on_failure=lambda: self._on_failure(key, log),
            around_truncation=partial(self.replica_checkpoint.lowered_before_truncation, key),
        )
        self.logs[key], self.topic_ids[key] = log, topic_id
        self.has_new_logs = True

    def _on_failure(self, key: Partition, log: Log) -> None:
        if self.logs.get(key) is log:  # else it was deleted
            self.on_failure(key)

    def _open_log(
        self,
        key: Partition,
        topic_id: UUID,
        *,
        now_ms: int,
        recovery_point: int,
        clean: bool = False,
    ) -> Log:
        path, config = f"{self.path}/{log_name(*key)}", self._config_of(key[0])
        if config.flush_messages != NEVER:
            self._flush_topic_id(path)
        log = Log.open(
            self._disk,
            path,
            config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            high_watermark=self.replica_checkpoint.high_watermark_of(
                key, topic_id, default=self._checkpoints.watermark_at_start(key)
            ),
            files=self._files,
            identity=f"{log_name(*key)} {topic_id}",
        )
        self._add(key, log, topic_id)
        return log

    def _detach(self, key: Partition) -> Log:
        log = self.logs.pop(key)
        del self.topic_ids[key]
        log.detach()
        return log

    def _flush_topic_id(self, path: str) -> None:
        """A log that loses it is set aside at the next start, with what was acknowledged."""
        self._disk.open(f"{path}/{TOPIC_ID}").flush()

    # Damage.

    def mark(self, key: Partition, damage: Damage) -> None:
        """Let the replica count as damaged, and write that to the log if it is open.

        The log itself goes on, unlike after `mark_damaged`.
        """
        self.damaged[key] = damage.reason
        if key in self.logs:
            try:
                self.logs[key].mark_damaged(damage)
            except DiskError as error:
                logger.warning("%s-%d: damage is not written: %s", *key, error)

    def count_as_damaged(self, key: Partition, reason: str) -> None:
        """Let a replica whose log is not open count as damaged."""
        self.damaged[key] = reason

    def mark_damaged(self, key: Partition, reason: str) -> None:
        """A log that is open has lost records: it fails, and the next start decides again.

        May run in another thread.
        """
        log = self.logs.get(key)
        if key not in self.damaged:
            self.mark(key, Damage(reason=reason, up_to=0 if log is None else log.end))
        if log is not None and not log.has_failed:
            log.fail(reason)

    def end_damage(self, key: Partition) -> None:
        """The log counts as whole from here on: its leader, or an operator, has accepted it."""
        log = self.logs[key]
        log.mark_damaged(None)
        self.replica_checkpoint.lower(key, log.end)
        self.damaged.pop(key, None)

    def forget_damage(self, key: Partition) -> None:
        """This broker has no replica of that partition any more."""
        self.damaged.pop(key, None)

    def write_replica_checkpoint(
        self,
        high_watermark_of: Callable[[Partition], int | None] = lambda _: None,
        *,
        flush: bool = True,
    ) -> None:
        """Write which replicas there are and how far they are committed. May run in a thread."""
        logs = [
            (key, topic_id, log)
            for key, log in list(self.logs.items())
            if (topic_id := self.topic_ids.get(key)) is not None
        ]
        self.replica_checkpoint.write(logs, high_watermark_of, flush=flush)
        self.has_new_logs = False

    def _find_damage(self) -> None:
        """Compare the logs with the replica checkpoint."""
        for key, replica in self.replica_checkpoint.replicas.items():
            self._check_against_checkpoint(key, replica)

    def _check_against_checkpoint(self, key: Partition, replica: CheckpointedReplica) -> None:
        log = self.logs.get(key)
        if key in self.unopened and self.topic_id_of(key) in (None, replica.topic_id):
            return
        if log is None:
            is_aside = log_name(*key) in self.strays
            self.damaged.setdefault(key, "it was set aside" if is_aside else "it is missing")
        elif self.topic_ids[key] != replica.topic_id:
            self.damaged[key] = "its folder is of another topic id"
        elif log.end < replica.high_watermark:
            self.damaged[key] = (
                f"it ends at offset {log.end}, below its high watermark {replica.high_watermark}"
            )

    def _check_watermark(self, key: Partition, log: Log) -> None:
        watermark = self._checkpoints.watermark_at_start(key)
        if log.damage is not None:
            self.damaged[key] = log.damage.reason
        elif self.replica_checkpoint.get(key) is None and log.end < watermark:
            # A directory of an earlier version.
            logger.error(
                "%s: damaged: it ends at offset %d, below its high watermark %d",
                log_name(*key),
                log.end,
                watermark,
            )
            reason = f"it ends at {log.end}, below its high watermark {watermark}"
            self.mark(key, Damage(reason=reason, up_to=watermark))
