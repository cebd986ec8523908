"""The sizes of a cluster's logs at an earlier time, as the first of two samples.

Apache Kafka's brokers report sizes and no rates over their protocol, so that a tool must see every
log twice. `--generate` and `--plan` come before `--execute`, often by minutes: what they read is
kept, in a file per cluster in the state directory, and `--execute` need not wait.

A sample serves if it is `AGE_MS_MIN` to `AGE_MS_MAX` old. A younger one would catch some of a
producer's batches by chance. An older one would hide in its mean that the load has grown since, and
more of the logs was deleted meanwhile. The wall clock and the monotonic clock must agree on the
age: a clock that was set would give another rate, and a restart of the host ends the second one.

The file is only a shortcut: if it cannot be written or read, the tool measures as without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from insync.client.log_sizes import LogSize, LogSizes
from insync.moves.journal import state_file
from insync.rules.values import BrokerId, PartitionId

VERSION: Final = 1
AGE_MS_MIN: Final = 10_000
AGE_MS_MAX: Final = 10 * 60_000
CLOCKS_DIFFER_MS_MAX: Final = 1_000
SAMPLES_KEPT: Final = 2  # one that serves, and a later one that will


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    wall_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]

    def read(self) -> tuple[int, int]:
        return self.wall_ms(), self.monotonic_ms()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSample:
    """The log of each partition on its leader, and when it was read."""

    wall_ms: int
    monotonic_ms: int
    sizes: LogSizes

    def age_ms(self, clocks: Clocks) -> int | None:
        """None if the clocks disagree about it."""
        wall_ms, monotonic_ms = clocks.read()
        age_ms = monotonic_ms - self.monotonic_ms
        differs_ms = abs(wall_ms - self.wall_ms - age_ms)
        return age_ms if age_ms >= 0 and differs_ms <= CLOCKS_DIFFER_MS_MAX else None


class SampleFile:
    def __init__(self, folder: Path, cluster_id: str, clocks: Clocks) -> None:
        self.path = state_file(folder, "log-sizes", cluster_id, "samples")
        self.clocks = clocks

    def read(self) -> list[tuple[int, SizeSample]]:
        """The samples that are not too old, the oldest first, each with its age."""
        try:
            values = json.loads(self.path.read_text())
            if values["version"] != VERSION:
                return []
            samples = [_decoded(each) for each in values["samples"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []
        aged = [(sample.age_ms(self.clocks), sample) for sample in samples]
        return [
            (age_ms, sample)
            for age_ms, sample in aged
            if age_ms is not None and age_ms <= AGE_MS_MAX
        ]

    def add(self, sample: SizeSample) -> None:
        """A sample soon after another one is not kept: it would serve later than that one."""
        samples = [each for _, each in self.read()]
        if samples and sample.monotonic_ms - samples[-1].monotonic_ms < AGE_MS_MIN:
            return
        kept = [*samples, sample][-SAMPLES_KEPT:]
        text = json.dumps({"version": VERSION, "samples": [_encoded(each) for each in kept]})
        new = self.path.with_suffix(f".{os.getpid()}.new")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text)
            new.rename(self.path)


def _encoded(sample: SizeSample) -> dict[str, Any]:
    return {
        "wall_ms": sample.wall_ms,
        "monotonic_ms": sample.monotonic_ms,
        "logs": [
            [broker, topic, number, log.end, log.size_bytes]
            for broker, logs in sample.sizes.of.items()
            for (topic, number), log in logs.items()
        ],
    }


def _decoded(values: Mapping[str, Any]) -> SizeSample:
    logs: dict[BrokerId, dict[tuple[str, PartitionId], LogSize]] = {}
    for broker, topic, number, end, size_bytes in values["logs"]:
        log = LogSize(end=None if end is None else int(end), size_bytes=int(size_bytes))
        logs.setdefault(BrokerId(int(broker)), {})[str(topic), PartitionId(int(number))] = log
    return SizeSample(
        wall_ms=int(values["wall_ms"]),
        monotonic_ms=int(values["monotonic_ms"]),
        sizes=LogSizes(of=logs, problems={}),
    )
