"""The pipeline's trials: its what-if beside DuckDB doing the same replay with windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from bench import pipeline_data
from bench.loads import LoadFailed
from bench.processes import GIGABYTE, resident_bytes

MADE_UP = Path(__file__).parent.parent / ".peers" / "telemetry-3"  # kept for the next run
FILES = 64
SEED = 7
FEW_ROWS = 20_000
FEW_REPLICAS, MANY_REPLICAS = 1_000, 100_000
SAMPLE_EVERY_S = 0.1
# DuckDB keeps no watermark, which now and then delays a return by a fetch, and does not look past
# a follower's last fetch. In two million rows that made one return, and 0.02 % of the time out.
MAY_DIFFER, MAY_DIFFER_PART = 2, 0.01

Seen = dict[str, float]
Counts = dict[str, int]
_counted: dict[Path, tuple[str, Counts]] = {}  # of each folder, by the side that ran first


def made_up(rows: int, replicas: int) -> Path:
    folder = MADE_UP / f"{rows}-{replicas}"
    pipeline_data.write(folder, rows=rows, replicas=replicas, files=FILES, seed=SEED)
    return folder


def half_of(folder: Path) -> Path:
    """Every second file of each table: half of the rows and half of the partitions."""
    half = folder.with_name(f"{folder.name}-half")
    for table in folder.iterdir():
        (half / table.name).mkdir(parents=True, exist_ok=True)
        for file in sorted(table.glob("*.parquet"))[::2]:
            link = half / table.name / file.name
            if not link.exists():
                os.link(file, link)
    return half


def twenty_million(side: str, rows: int) -> Seen:
    """One policy cold and warm, 40 scenarios, the same rows over 100 times as many replicas, and
    as DataFrames."""
    folder = made_up(rows, FEW_REPLICAS)
    crowd = made_up(rows, MANY_REPLICAS)
    run(side, made_up(FEW_ROWS, FEW_REPLICAS), "--once")  # compiled, once per installation
    cold, cold_s, _ = run(side, folder, "--once")
    others = ["--other", str(crowd)] if side == "insync" else []
    figures, _, _ = run(side, folder, *others)
    agree(side, folder, cold["one"] + figures["one"])
    one_s = seconds(figures["one"])
    seen = {"what-if": rows / one_s / 1e6, "what-if-cold": rows / cold_s / 1e6}
    if side == "insync":
        seen["what-if-40"] = seconds(figures["forty"]) / one_s
        seen["what-if-crowd"] = seconds(figures["other"]) / one_s
        agree(side, folder, figures["frames"])
        seen["what-if-frames"] = seconds(figures["frames"])
    return seen


def hundred_million(side: str, rows: int) -> Seen:
    """The same with more rows: also the memory of all processes, and what doubling costs."""
    folder = made_up(rows, FEW_REPLICAS)
    cold, cold_s, peak_bytes = run(side, folder, "--once")
    figures, _, _ = run(side, folder)
    agree(side, folder, cold["one"] + figures["one"])
    one_s = seconds(figures["one"])
    seen = {
        "what-if-large": rows / one_s / 1e6,
        "what-if-large-cold": rows / cold_s / 1e6,
        "what-if-large-memory": peak_bytes / GIGABYTE,
    }
    if side == "insync":
        half, _, _ = run(side, half_of(folder))
        seen["what-if-double"] = one_s / seconds(half["one"])
    return seen


def seconds(runs: list[dict[str, Any]]) -> float:
    return float(median(each["seconds"] for each in runs))


def agree(side: str, folder: Path, runs: list[dict[str, Any]]) -> None:
    """Both sides must compute the same: each run is compared with the first one's counts."""
    for each in runs:
        counts = {name: value for name, value in each.items() if name != "seconds"}
        first, expected = _counted.setdefault(folder, (side, counts))
        for name in counts.keys() & expected.keys():
            one, other = expected[name], counts[name]
            may_differ = max(MAY_DIFFER, MAY_DIFFER_PART * max(one, other)) if side != first else 0
            if abs(one - other) > may_differ:
                raise LoadFailed(f"{name} of {folder.name}: {first} has {one}, {side} {other}")


def run(side: str, folder: Path, *flags: str) -> tuple[dict[str, Any], float, int]:
    """What it printed, how long it took in all, and the most memory that all of it held at once."""
    command = [sys.executable, "-m", "bench.pipeline", side, str(folder), *flags]
    began_s = monotonic()
    with subprocess.Popen(  # noqa: S603 - ours
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        peak, done = [0], threading.Event()

        def watch() -> None:
            while not done.wait(SAMPLE_EVERY_S):
                peak[0] = max(peak[0], memory_of_all(process.pid))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            out, err = process.communicate()
        finally:
            process.kill()
            done.set()
            thread.join()
    if process.returncode:
        raise LoadFailed(f"{' '.join(command[1:])} failed: {err.strip()[-300:]}")
    return json.loads(out.splitlines()[-1]), monotonic() - began_s, peak[0]


def memory_of_all(pid: int) -> int:
    """Of a process and all that came from it: the driver's, Java's and the workers'."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            total += resident_bytes(Path(f"/proc/{one}/status").read_text())
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += [int(each) for each in (task / "children").read_text().split()]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return total
