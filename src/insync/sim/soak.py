"""Runs seed after seed until it is stopped, and keeps the seeds that fail.

    python -m insync.sim.soak --hours 8 --failures FILE

A failing run is minimised first. The file gets its command and its error; the exit code is 1.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from insync.sim.faults import MIXES
from insync.sim.run import SECONDS, Replay, explain, minimise, run_once

RUNS_PER_LINE = 1_000
STOPPED_EXIT_CODE = 130
STOPS_WITHIN_S = 0.2  # after Ctrl-C
RUNS_PER_WORKER = 50  # then another process takes its place, so that nothing adds up


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    acknowledged: int
    cpu_s: float
    failure: str | None


@dataclass(slots=True)
class Totals:
    runs: int = 0
    failed: int = 0
    records: int = 0
    cpu_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.failed += outcome.failure is not None
        self.records += outcome.acknowledged
        self.cpu_s += outcome.cpu_s

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.failed} failed, {self.records} records acknowledged, "
            f"{self.cpu_s / max(1, self.runs):.2f} s of CPU per run"
        )


def run_one(replay: Replay) -> Outcome:
    began_s = time.process_time()
    result = run_once(replay)
    cpu_s = time.process_time() - began_s
    failure = None
    if result.error is not None:
        smallest, last = minimise(replay, result)
        failure = f"{type(last.error).__name__}: {last.error}\n{explain(replay, smallest, last)}"
    return Outcome(seed=replay.seed, acknowledged=result.acknowledged, cpu_s=cpu_s, failure=failure)


def soak(
    replays: Iterator[Replay], *, workers: int, end_s: float, is_stopped: Callable[[], bool]
) -> Iterator[Outcome]:
    """Results in the order in which runs end, until it is stopped, the time is over or no run is
    left."""
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, _quieten, maxtasksperchild=RUNS_PER_WORKER) as pool:
        while time.monotonic() < end_s:
            # A few at a time: the pool takes all that it is given at once.
            batch = list(islice(replays, 8 * workers))
            if not batch:
                return
            results = pool.imap_unordered(run_one, batch)
            left = len(batch)
            while left and not is_stopped():
                try:
                    outcome = results.next(timeout=STOPS_WITHIN_S)
                except multiprocessing.TimeoutError:
                    continue
                left -= 1
                yield outcome
            if left:
                return


class Stop:
    """Ctrl-C, as a flag: an exception in the middle of the pool's own work may leave it hanging."""

    def __init__(self) -> None:
        self.is_wanted = False

    def __enter__(self) -> Stop:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, *_: object) -> None:
        self.is_wanted = True


def _quieten() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the pool
    logging.getLogger("insync").setLevel(logging.ERROR)
    logging.getLogger("insync").propagate = False


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m insync.sim.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--runs", type=int, help="stop after so many runs (default: never)")
    parser.add_argument("--first", type=int, default=10_000, metavar="SEED")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual time of a run")
    parser.add_argument("--mix", choices=list(MIXES))
    parser.add_argument("--without", dest="off", default="", help="kinds to leave out")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--failures", type=Path, default=Path("soak-failures.txt"))
    options = parser.parse_args(arguments)
    off = frozenset({*options.off.split(",")} - {""})
    seeds = count(options.first)
    replays = (
        Replay(
            seed=seed,
            seconds=options.seconds,
            mix=options.mix,
            off=off,
        )
        for seed in (islice(seeds, options.runs) if options.runs else seeds)
    )
    totals = Totals()
    end_s = time.monotonic() + options.hours * 3_600
    with Stop() as stop:
        outcomes = soak(
            replays, workers=options.workers, end_s=end_s, is_stopped=lambda: stop.is_wanted
        )
        for outcome in outcomes:
            totals.add(outcome)
            if outcome.failure is not None:
                with options.failures.open("a") as file:
                    file.write(f"seed {outcome.seed}: {outcome.failure}\n\n")
                _print(f"seed {outcome.seed} failed: {outcome.failure}")
            if totals.runs % RUNS_PER_LINE == 0:
                _print(str(totals))
        if stop.is_wanted:
            _print(f"{totals}; stopped")
            return STOPPED_EXIT_CODE
    _print(str(totals))
    return 1 if totals.failed else 0


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
