"""Compiles the pipeline's kernels once, into the cache that every later process reads.

    PYTHONPATH=.:tests python -m support.pipeline.compile_kernels

Else each worker of a lane that starts with an empty cache compiles them for half a minute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import pipeline_data
from insync.pipeline.io import parquet_reader
from insync.pipeline.replay import events
from insync.pipeline.replay.driver import parameters, replay
from insync.pipeline.scenarios import WhatIfGrid


def main() -> None:
    grid = parameters(WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[1_000]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipeline_data.write(folder, rows=1_000, replicas=4, files=1, seed=1)
        (file,) = (folder / "fetches").iterdir()
        tables = {
            table: parquet_reader.read(folder / table / file.name, columns)
            for table, columns in events.COLUMNS.items()
        }
        replay(events.shard(**tables), grid)


if __name__ == "__main__":
    main()
