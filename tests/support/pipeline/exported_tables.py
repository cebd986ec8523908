"""A small record, as `insync telemetry export` writes it: one follower is silent for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import arrow_schema, write_parquet

Row = dict[str, Any]

STEP_MS = 100
STEPS = 200
SILENT = range(50, 170)  # steps in which follower 3 does not fetch
LAG_MS = 10_000
LIMIT_BYTES_PER_S = 1_000_000
BASE: Row = {"topic": "orders", "partition": 0, "leader": 1, "leader_epoch": 4}


def record() -> dict[str, list[Row]]:
    """An append every 100 ms, and each follower fetches just after it, up to its end."""
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    seq = 0
    for step in range(STEPS):
        at_ms = 1_000_000 + step * STEP_MS
        row = BASE | {"at_ms": at_ms, "seq": seq, "base_offset": step, "end_offset": step + 1}
        tables["appends"].append(row | {"bytes": 100})
        seq += 1
        for follower in (2, 3):
            if follower == 3 and step in SILENT:
                continue
            tables["fetches"].append(fetch(at_ms + 10, seq, follower, step + 1))
            seq += 1
    left_ms = 1_000_000 + (SILENT.start - 1) * STEP_MS + 10 + LAG_MS + 1
    back_ms = 1_000_000 + SILENT.stop * STEP_MS + 11
    tables["isr"] = [
        change(left_ms, 7, "shrink", [1, 2, 3], [1, 2]),
        change(back_ms, 8, "expand", [1, 2], [1, 2, 3]),
    ]
    settings = {"replica.lag.time.max.ms": LAG_MS, "min.insync.replicas": 2}
    tables["configs"] = [
        {"at_ms": 1_000_000, "scope": "broker:1", "name": name, "value": str(value)}
        for name, value in settings.items()
    ]
    return tables


def throttled_record() -> dict[str, list[Row]]:
    """The same, and for three seconds half of a limit is used."""
    second = {
        "broker": 1, "side": "leader", "limit_bytes_per_s": LIMIT_BYTES_PER_S,
        "bytes": LIMIT_BYTES_PER_S // 2, "exempt_bytes": 0, "held_back_partitions": 0,
        "replica_lag_bytes": 0, "bytes_in": 1_000,
    }  # fmt: skip
    return record() | {
        "throttle": [second | {"at_ms": at} for at in (1_000_000, 1_001_000, 1_002_000)]
    }


def fetch(at_ms: int, seq: int, follower: int, end: int) -> Row:
    return BASE | {
        "at_ms": at_ms, "seq": seq, "follower": follower, "offset": end, "leader_end_low": end,
        "leader_end_high": end, "high_watermark": end, "log_start": 0, "bytes": 0, "read_ms": 0,
        "wait_ms": 0, "outcome": "ok", "throttled": False, "repeats": 1, "last_at_ms": at_ms,
    }  # fmt: skip


def change(at_ms: int, version: int, kind: str, before: list[int], after: list[int]) -> Row:
    return BASE | {
        "at_ms": at_ms, "decided_at_ms": at_ms, "decided_by": "leader", "version": version,
        "isr_before": before, "isr_after": after, "replica": 3, "change": kind, "reason": None,
        "replica_end": SILENT.start, "leader_end": None, "caught_up_at_ms": None, "seq": None,
        "cause": None, "late_ms": None,
    }  # fmt: skip


def write(folder: Path, tables: dict[str, list[Row]]) -> Path:
    for name, rows in tables.items():
        write_table(folder / name, pa.Table.from_pylist(rows, arrow_schema(TABLES[name])))
    return folder


def write_split(folder: Path, tables: dict[str, pa.Table], *, files: int) -> Path:
    """Partition by partition over several files, as an export has them; stalls and settings are in
    the first."""
    for name, table in tables.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            part = table
            if "partition" in table.column_names:
                part = table.filter([n % files == number for n in table["partition"].to_pylist()])
            elif number:
                part = table.slice(0, 0)
            pq.write_table(part, folder / name / f"part-{number:05d}.parquet")
    return folder


def write_table(folder: Path, rows: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(rows, folder / "part-00000.parquet")
