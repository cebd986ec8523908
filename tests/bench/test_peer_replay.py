"""The peer's replay is SQL, written after the document alone: it counts what ours counts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench import pipeline_data
from bench.loads import LoadFailed
from bench.pipeline import COUNTED, LIMIT_MS, REPLAY_SQL, duckdb_replay
from bench.what_if import agree
from insync.pipeline.io import parquet_reader
from insync.pipeline.replay import events
from insync.pipeline.replay.driver import parameters, replay
from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.schemas import COUNTS
from support.search_effort import tried


@pytest.mark.slow
@pytest.mark.property
@pytest.mark.parametrize("seed", tried([1, 2]))
def test_both_sides_compute_the_same_result(seed: int, tmp_path: Path) -> None:
    pipeline_data.write(tmp_path, rows=30_000, replicas=60, files=2, seed=seed)
    grid = parameters(WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[LIMIT_MS]))
    ours = dict.fromkeys(COUNTS, 0)
    for file in (tmp_path / "fetches").iterdir():
        tables = {
            table: parquet_reader.read(tmp_path / table / file.name, columns)
            for table, columns in events.COLUMNS.items()
        }
        for verdicts in replay(events.shard(**tables), grid).verdicts:
            for name, count in zip(COUNTS, verdicts[0].tolist(), strict=False):
                ours[name] += count
    # It keeps no watermark, which can delay a return: not in what these seeds make up.
    (theirs,) = duckdb_replay(tmp_path, 1, sql=REPLAY_SQL)
    assert ours["shrinks"] >= 5
    assert {name: ours[name] for name in COUNTED} == {name: theirs[name] for name in COUNTED}
    (timed,) = duckdb_replay(tmp_path, 1)
    for name in ("shrinks", "expands", "flaps"):
        assert timed[name] == ours[name]
    # It does not look past a follower's last fetch.
    unseen_ms = ours["out_of_sync_ms"] - timed["out_of_sync_ms"]
    assert 0 <= unseen_ms <= after_last_fetches_ms(tmp_path)


def after_last_fetches_ms(folder: Path) -> int:
    """From each follower's last fetch to its partition's last row, summed."""
    last_of_replica: dict[tuple[int, int], int] = defaultdict(int)
    last_of_partition: dict[int, int] = defaultdict(int)
    for table in ("fetches", "appends"):
        for row in pq.read_table(folder / table).to_pylist():
            number, at_ms = row["partition"], row["at_ms"]
            last_of_partition[number] = max(last_of_partition[number], at_ms)
            if table == "fetches":
                replica = number, row["follower"]
                last_of_replica[replica] = max(last_of_replica[replica], at_ms)
    return sum(last_of_partition[number] - last for (number, _), last in last_of_replica.items())


def test_sides_with_different_results_are_refused(tmp_path: Path) -> None:
    run = {"shrinks": 1_000, "out_of_sync_ms": 50_000}
    ours = run | {"false_evictions": 7}
    agree("insync", tmp_path, [ours | {"seconds": 1.0}, ours | {"seconds": 2.0}])
    agree("duckdb", tmp_path, [run | {"shrinks": 991, "seconds": 3.0}])
    with pytest.raises(LoadFailed, match=r"shrinks of .*: insync has 1000, duckdb 0"):
        agree("duckdb", tmp_path, [run | {"shrinks": 0}])
    with pytest.raises(LoadFailed, match="insync has 7, insync 6"):
        agree("insync", tmp_path, [ours | {"false_evictions": 6}])
