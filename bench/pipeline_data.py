"""Telemetry of a large cluster, made up from a seed, in the files that an export writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import arrow_schema, write_parquet

FOLLOWERS = 2
FETCHES_PER_APPEND = 4
TROUBLED = 0.3  # of the followers: for a while, several times
SILENT = 0.5  # of their faults; in the others they are stuck
BEGAN_MS = 1_700_000_000_000

Columns = dict[str, np.ndarray]


def write(folder: Path, *, rows: int, replicas: int, files: int, seed: int) -> None:
    """`rows` fetches of `replicas` followers, split by partition over `files` files per table."""
    partitions = max(1, replicas // FOLLOWERS)
    each = max(1, rows // (partitions * FOLLOWERS))
    for table in TABLES:
        (folder / table).mkdir(parents=True, exist_ok=True)
    for number in range(files):
        name = f"part-{number:05d}.parquet"
        if (folder / "appends" / name).exists():
            continue
        random = np.random.default_rng([seed, number])
        of_partitions = [_partition(one, each, random) for one in range(number, partitions, files)]
        for table, index in (("fetches", 0), ("appends", 1)):
            _write(folder / table / name, table, [one[index] for one in of_partitions])
        for table in TABLES.keys() - {"fetches", "appends"}:
            write_parquet(arrow_schema(TABLES[table]).empty_table(), folder / table / name)


def _partition(number: int, each: int, random: np.random.Generator) -> tuple[Columns, Columns]:
    count = max(1, each * FOLLOWERS // FETCHES_PER_APPEND)
    span_ms = each * 20
    append_at = np.sort(random.integers(0, span_ms, count))
    ends = np.cumsum(random.integers(1, 50, count))
    fetches = [_fetches(one, each, span_ms, append_at, ends, random) for one in range(FOLLOWERS)]
    at = np.concatenate([append_at, *(one["at_ms"] for one in fetches)])
    kind = np.concatenate([np.zeros(count), *(np.ones(len(one["at_ms"])) for one in fetches)])
    order = np.lexsort((-kind, at))  # a fetch saw what was there before its millisecond
    seq = np.empty(len(at), np.int64)
    seq[order] = np.arange(1, len(at) + 1)
    appends: Columns = {
        "at_ms": np.concatenate([[0], append_at]),
        "seq": np.concatenate([[0], seq[:count]]),
        "base_offset": np.concatenate([[0, 0], ends[:-1]]),
        "end_offset": np.concatenate([[0], ends]),
    }
    appends["bytes"] = (appends["end_offset"] - appends["base_offset"]) * 100
    together = {name: np.concatenate([one[name] for one in fetches]) for name in fetches[0]}
    together["seq"] = seq[count:]
    for columns in (together, appends):
        columns["at_ms"] = columns["at_ms"] + BEGAN_MS
        columns["partition"] = np.full(len(columns["at_ms"]), number, np.int32)
    together["last_at_ms"] = together["at_ms"]
    return together, appends


def _fetches(  # noqa: PLR0917
    number: int,
    each: int,
    span_ms: int,
    append_at: np.ndarray,
    ends: np.ndarray,
    random: np.random.Generator,
) -> Columns:
    at = np.sort(random.integers(1, span_ms, each))
    stuck = np.zeros(each, np.bool_)
    if random.random() < TROUBLED:
        for _ in range(random.integers(1, 5)):
            first_ms = int(random.integers(0, span_ms))
            last_ms = first_ms + int(random.integers(500, 60_000))
            if random.random() < SILENT:
                at[(at > first_ms) & (at < last_ms)] = min(last_ms, span_ms)
            else:
                stuck |= (at > first_ms) & (at < last_ms)
    known = np.concatenate([[0], ends])
    leader_end = known[np.searchsorted(append_at, at)]  # appended before this millisecond
    offset = np.concatenate([[0], leader_end[:-1]])
    offset[stuck] = 0
    offset = np.maximum.accumulate(offset)
    return {
        "at_ms": at,
        "follower": np.full(each, number + 2, np.int32),
        "offset": offset,
        "leader_end_low": leader_end,
        "leader_end_high": leader_end,
        "bytes": (leader_end - offset) * 100,
    }


def _write(path: Path, table: str, of_partitions: list[Columns]) -> None:
    schema = arrow_schema(TABLES[table])
    columns = (
        {name: np.concatenate([one[name] for one in of_partitions]) for name in of_partitions[0]}
        if of_partitions
        else {}
    )
    size = len(columns["at_ms"]) if of_partitions else 0
    order = (
        np.lexsort((columns["seq"], columns["partition"], columns["at_ms"]))
        if of_partitions
        else None
    )
    constant = {
        "topic": "bench", "leader": 1, "leader_epoch": 1, "outcome": "ok", "read_ms": 0,
        "wait_ms": 0, "log_start": 0, "repeats": 1, "throttled": False,
    }  # fmt: skip
    arrays = []
    for field in schema:
        if field.name in columns:
            arrays.append(pa.array(columns[field.name][order]).cast(field.type))
        else:
            value = pa.scalar(constant.get(field.name), field.type)
            arrays.append(pa.repeat(value, size))
    write_parquet(pa.Table.from_arrays(arrays, schema=schema), path)
