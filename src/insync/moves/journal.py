"""The settings that a tool changes on a cluster and must restore, on disk before they are set.

One file per cluster, in a state directory. It names the throttled replicas added to each topic's
list, each broker's rate with the value before it, and the partitions whose moves need them.
The tool that ends the throttle (this one, or another after this one was killed) reads the file.

A tool holds the lock beside it while it sets or ends a throttle: two at once would take each
other's values for the operator's.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.throttled_replicas import NO_REPLICAS, SomeReplicas, parse
from insync.rules.values import BrokerId, PartitionId

VERSION: Final = 1
STATE_VARIABLE: Final = "INSYNC_STATE_DIR"
FREE_WITHIN_S: Final = 60.0
RETRY_AFTER_S: Final = 0.2


class AnotherTool(Refusal):
    """Another tool changes throttles of the same cluster."""


class BadJournal(Refusal):
    """A journal that cannot be read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    before: str | None  # None: the broker had no value of its own
    values: tuple[str, ...]  # values that may be set: a tool can die between journal and cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Keys are (broker, setting) and (topic, setting)."""

    partitions: frozenset[TopicPartition] = frozenset()
    rates: Mapping[tuple[BrokerId, str], RateChange] = field(default_factory=dict)
    lists: Mapping[tuple[str, str], SomeReplicas] = field(default_factory=dict)
    bootstrapping: BrokerId | None = None

    @property
    def is_empty(self) -> bool:
        return not self.rates and not self.lists


def state_directory(environment: Mapping[str, str]) -> Path:
    """The directory of journals: from the environment, or XDG's default."""
    if folder := environment.get(STATE_VARIABLE):
        return Path(folder)
    if folder := environment.get("XDG_STATE_HOME"):
        return Path(folder) / "insync"
    return Path(environment.get("HOME", ".")) / ".local" / "state" / "insync"


def state_file(folder: Path, prefix: str, cluster_id: str, suffix: str) -> Path:
    """The file of one cluster in the state directory."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", cluster_id)
    return folder / f"{prefix}-{name}.{suffix}"


class JournalFile:
    """The journal of one cluster; change it only while it is locked."""

    def __init__(self, folder: Path, cluster_id: str) -> None:
        self.path = state_file(folder, "moves", cluster_id, "json")
        self._lock = state_file(folder, "moves", cluster_id, "lock")
        self._cluster_id = cluster_id

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises at once if another tool holds the lock; a dead tool holds none."""
        try:
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            file = self._lock.open("a+")
        except OSError as error:
            raise BadJournal(f"cannot use {self._lock.parent}: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                pid = file.read(20).strip()
                raise AnotherTool(
                    f"another insync (process {pid}) is changing moves or throttles of this "
                    "cluster; wait until it is done"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    @asynccontextmanager
    async def locked_when_free(self) -> AsyncIterator[None]:
        """The same, but waits: a tool that ends a throttle should not fail for another one."""
        deadline_s = asyncio.get_running_loop().time() + FREE_WITHIN_S
        with ExitStack() as lock:
            while True:
                try:
                    lock.enter_context(self.locked())
                    break
                except AnotherTool:
                    if asyncio.get_running_loop().time() > deadline_s:
                        raise
                    await asyncio.sleep(RETRY_AFTER_S)
            yield

    def read(self) -> Journal:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return Journal()
        except OSError as error:
            raise BadJournal(f"cannot read {self.path}: {error.strerror}") from None
        try:
            return _decoded(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadJournal(
                f"{self.path} is not a journal of moves; check its contents, then delete it"
            ) from None

    def write(self, journal: Journal) -> None:
        """On the disk when this returns; an empty journal deletes the file."""
        try:
            if journal.is_empty:
                self.path.unlink(missing_ok=True)
            else:
                new = self.path.with_suffix(".new")
                with new.open("w") as file:
                    json.dump(_encoded(journal, self._cluster_id), file, indent=1)
                    file.flush()
                    os.fsync(file.fileno())
                new.rename(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise BadJournal(f"cannot write {self.path}: {error.strerror}") from None


def _encoded(journal: Journal, cluster_id: str) -> dict[str, Any]:
    return {
        "version": VERSION,
        "cluster_id": cluster_id,
        "bootstrapping": journal.bootstrapping,
        "partitions": [[topic, number] for topic, number in sorted(journal.partitions)],
        "rates": [
            {
                "broker": broker,
                "setting": key,
                "before": change.before,
                "given": list(change.values),
            }
            for (broker, key), change in sorted(journal.rates.items(), key=lambda each: each[0])
        ],
        "lists": [
            {"topic": topic, "setting": key, "added": str(journal.lists[topic, key])}
            for topic, key in sorted(journal.lists)
        ],
    }


def _decoded(values: dict[str, Any]) -> Journal:
    if values["version"] != VERSION:
        raise ValueError("unknown version")
    return Journal(
        bootstrapping=values["bootstrapping"],
        partitions=frozenset(
            (str(topic), PartitionId(number)) for topic, number in values["partitions"]
        ),
        rates={
            (BrokerId(each["broker"]), each["setting"]): RateChange(
                before=each["before"], values=tuple(each["given"])
            )
            for each in values["rates"]
        },
        lists={
            (each["topic"], each["setting"]): _replicas(each["added"]) for each in values["lists"]
        },
    )


def _replicas(text: str) -> SomeReplicas:
    replicas = parse(text)
    return replicas if isinstance(replicas, SomeReplicas) else NO_REPLICAS
