"""Bugs planted in the storage."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

LOG = "storage/log.py"
LOCAL_LOG = "storage/local_log.py"
TRUNCATABLE_LOG = "storage/truncatable_log.py"
HISTORIES = "tests/storage/test_faulty_histories.py"
FLUSH_FIRST = """\
        if end - self.recovery_point >= self.config.flush_messages:
            self._flush_written(segment, end)
"""

STORAGE = (
    Mutant(
        name="follower-never-flushes",
        title="A follower never flushes, also with log.flush.interval.messages=1",
        breaks="A power cut loses acknowledged records that the setting was to keep.",
        is_protocol=True,
        finders=("tests/storage/test_flushing.py", "tests/storage/test_failed_flushes.py"),
        edits=(
            Edit(
                LOG,
                "        if headers:\n            self._append(data, headers, history,",
                "        if headers:\n            self.recovery_point = end\n"
                "            self._append(data, headers, history,",
            ),
        ),
    ),
    Mutant(
        name="flush-is-one-late",
        title="An append flushes when one more record than allowed is unflushed",
        breaks="With log.flush.interval.messages=1 a single record is claimed unflushed.",
        is_protocol=True,
        finders=("tests/storage/test_flushing.py", "tests/storage/test_failed_flushes.py"),
        edits=(
            Edit(
                LOG,
                FLUSH_FIRST,
                FLUSH_FIRST.replace(">= self", "> self"),
            ),
        ),
    ),
    Mutant(
        name="unflushed-is-claimed",
        title="The end offset moves before the flush, and a failed log is fetched for again",
        breaks="A follower's next fetch claims what it failed to fsync.",
        is_protocol=True,
        finders=(
            "tests/broker/replication/test_unflushed_records.py",
            "tests/storage/test_failed_flushes.py",
        ),
        edits=(
            Edit(LOG, FLUSH_FIRST, ""),
            Edit(
                LOG,
                "        segment.publish(end, headers[0].crc)\n        return len(data)\n",
                "        segment.publish(end, headers[0].crc)\n"
                "        if end - self.recovery_point >= self.config.flush_messages:\n"
                "            self._flush()\n"
                "        return len(data)\n",
            ),
            Edit(
                "broker/replication/leader_fetcher.py",
                "        if replica.log.has_failed:\n            self.drop(replica)\n",
                "        if replica.log.has_failed and False:\n            self.drop(replica)\n",
            ),
        ),
    ),
    Mutant(
        name="append-error-swallowed",
        title="An error of an append is swallowed",
        breaks="Records that are on no disk are acknowledged.",
        is_protocol=True,
        finders=("tests/storage/test_log_faults.py",),
        edits=(
            Edit(
                "storage/segment.py",
                "        except DiskError:\n            self.remove_written()\n            raise\n",
                "        except DiskError:\n            self.remove_written()\n",
            ),
        ),
    ),
    Mutant(
        name="failed-log-goes-on",
        title="A log whose flush or append failed goes on",
        breaks="What is on disk is unknown, and the next flush does not say so.",
        finders=("tests/storage/test_failed_flushes.py", "tests/storage/test_log_faults.py"),
        edits=(
            Edit(
                LOCAL_LOG,
                "        self._failure = reason\n",
                "        self._failure = None and reason\n",
            ),
        ),
    ),
    Mutant(
        name="no-crc-at-recovery",
        title="Recovery checks no CRC",
        breaks="Damaged records are taken for whole, served and replicated.",
        finders=("tests/storage/test_log_faults.py", "tests/storage/test_log_histories.py"),
        edits=(
            Edit(
                "storage/scan.py",
                "if check_from is not None and header.base_offset >= check_from:",
                "if check_from is not None and header.base_offset < check_from:",
            ),
        ),
    ),
    Mutant(
        name="no-crc-on-follower",
        title="A follower appends batches without checking their CRC",
        breaks="One damaged response is a damaged replica.",
        finders=("tests/storage/test_log.py", "tests/storage/test_log_faults.py"),
        edits=(Edit(LOG, "check_crc: bool = True", "check_crc: bool = False"),),
    ),
    Mutant(
        name="offset-span-unchecked",
        title="The offset span of an append is not checked against the segment's index",
        breaks="Three batches of 2^31-1 records wedge the partition, and a restart loses records.",
        finders=("tests/storage/test_offset_spans.py",),
        edits=(
            Edit(
                "storage/segment.py",
                " and end - self.base <= INT32_MAX",
                "",
            ),
            Edit(LOG, "if end - 1 - segment.base > INT32_MAX:", "if end < segment.base:"),
        ),
    ),
    Mutant(
        name="producers-forgotten-at-recovery",
        title="Recovery does not learn the producers of the last segment",
        breaks="A batch that is sent again after a restart is appended twice.",
        is_protocol=True,
        finders=("tests/storage/test_producer_state.py", "tests/storage/test_log_histories.py"),
        edits=(
            Edit(
                "storage/recovery.py",
                "        self._producers.update(header, base_offset=offset, now_ms=self._now_ms)\n"
                "        return True\n",
                "        return True\n",
            ),
        ),
    ),
    Mutant(
        name="producers-survive-truncation",
        title="A truncation keeps the producers of the records that it removes",
        breaks="A batch that was truncated is acknowledged as a duplicate when it is sent again.",
        is_protocol=True,
        finders=("tests/storage/test_producer_state.py", "tests/storage/test_log_histories.py"),
        edits=(
            Edit(
                TRUNCATABLE_LOG,
                "            if truncation.producers is not None:\n"
                "                self.producers = ",
                "            if truncation.producers is not None and not self.producers:\n"
                "                self.producers = ",
            ),
        ),
    ),
    Mutant(
        name="epochs-survive-truncation",
        title="A truncation keeps the epochs of the records that it removes",
        breaks="The follower names an epoch that its log does not have, and truncates for ever.",
        is_protocol=True,
        finders=("tests/storage/test_log.py", "tests/storage/test_log_histories.py"),
        edits=(
            Edit(
                TRUNCATABLE_LOG,
                "                self.producers = truncation.producers\n"
                "            self._store_epochs(self.epochs.truncate_end(Offset(self.end)))\n",
                "                self.producers = truncation.producers\n",
            ),
            # With the first edit alone, the next answer of the leader removes them.
            Edit(
                TRUNCATABLE_LOG,
                "            self._store_epochs(self.epochs.truncate_end(Offset(self.end)))\n"
                "            return True\n",
                "            return True\n",
            ),
        ),
    ),
    Mutant(
        name="sequence-gap-accepted",
        title="A producer's batch is accepted though the one before it is missing",
        breaks="A lost batch goes unnoticed, and records are reordered.",
        finders=("tests/storage/test_producer_state.py",),
        edits=(
            Edit(
                "storage/producers.py",
                "if header.base_sequence != expected:",
                "if header.base_sequence < expected:",
            ),
        ),
    ),
    Mutant(
        name="retention-deletes-uncommitted",
        title="Retention deletes records that are not committed",
        breaks="A follower finds the records gone that it has to fetch.",
        finders=("tests/storage/test_log_faults.py", "tests/storage/test_log_histories.py"),
        edits=(
            Edit(
                TRUNCATABLE_LOG,
                "limit = self.end if up_to is None else min(up_to, self.end)",
                "limit = self.end if up_to is None else max(up_to, self.end)",
            ),
        ),
    ),
    Mutant(
        name="refused-truncation-stays-listed",
        title="The inventory of a truncation that the disk refuses to flush is not taken back",
        breaks="The log goes on, and the next start believes the truncation: records are lost.",
        finders=("tests/storage/test_interrupted_starts.py", HISTORIES),
        edits=(
            Edit(
                TRUNCATABLE_LOG,
                "                self._restore_inventory(str(error))\n                raise\n",
                "                raise\n",
            ),
        ),
    ),
    Mutant(
        name="lowered-start-not-listed",
        title="A log start that a loss of power lowered is not written to the inventory",
        breaks="Records that are appended below the old start are gone after the next restart.",
        finders=("tests/storage/test_interrupted_starts.py", HISTORIES),
        edits=(
            Edit(LOG, "        if starts_earlier:\n", "        if starts_earlier and False:\n"),
        ),
    ),
)
