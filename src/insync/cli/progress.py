"""How far the work has come, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK_EVERY_S: Final = 0.2


class Progress:
    """One line on stderr, rewritten: the step, and how many of its tasks are done."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._tracker = None if spark is None else spark.sparkContext.statusTracker()
        self._what = ""
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def say(self, what: str) -> None:
        self._what = what

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        _line("")

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_EVERY_S):
            done, total = self._tasks()
            tasks = f": {done} of {total} tasks" if total else ""
            _line(f"{self._what}{tasks}" if self._what else "")

    def _tasks(self) -> tuple[int, int]:
        done = total = 0
        if self._tracker is None:
            return done, total
        for stage in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
        return done, total


def _line(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


@contextmanager
def watched(spark: SparkSession | None) -> Iterator[Callable[[str], None]]:
    """Show the work while it lasts, if stderr is a terminal; the local engine has no tasks."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    progress = Progress(spark)
    progress.start()
    try:
        yield progress.say
    finally:
        progress.stop()
