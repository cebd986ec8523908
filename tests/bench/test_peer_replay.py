"""The peer's replay is SQL, written after the document alone: it counts what ours counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import pipeline_data
from bench.pipeline import COUNTED, LIMIT_MS, REPLAY_SQL, duckdb_replay
from insync.pipeline import events, footers
from insync.pipeline.replay import parameters, replay
from insync.pipeline.scenarios import Asked
from insync.pipeline.schemas import COUNTS


@pytest.mark.parametrize("seed", [1, 2])
def test_both_come_to_the_same(seed: int, tmp_path: Path) -> None:
    pipeline_data.write(tmp_path, rows=30_000, replicas=60, files=2, seed=seed)
    asked = parameters(Asked(policies=["caught-up"], lag_time_max_ms=[LIMIT_MS]))
    ours = dict.fromkeys(COUNTS, 0)
    for file in (tmp_path / "fetches").iterdir():
        tables = [
            footers.read(tmp_path / table / file.name, columns)
            for table, columns in events.COLUMNS.items()
        ]
        for verdicts in replay(events.shard(*tables), asked).verdicts:
            for name, count in zip(COUNTS, verdicts[0].tolist(), strict=False):
                ours[name] += count
    # It keeps no watermark, which can delay a return: not in what these seeds make up.
    (theirs,) = duckdb_replay(tmp_path, 1, sql=REPLAY_SQL)
    assert ours["shrinks"] >= 5
    assert {name: ours[name] for name in COUNTED} == {name: theirs[name] for name in COUNTED}
    (timed,) = duckdb_replay(tmp_path, 1)
    for name in ("shrinks", "expands", "flaps"):
        assert timed[name] <= ours[name], "it does not look past the last fetch"
