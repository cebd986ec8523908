"""`python -m bench.pipeline`: the what-if beside DuckDB doing the same replay with windows."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from bench.pipeline_data import write

LIMIT_MS = 5_000

# KAFKA-4485's rule in SQL: caught-up times by a running maximum, membership as islands between the
# fetches at which somebody is late and those at which it is back. It keeps no watermark, so it does
# less than we do.
REPLAY_SQL = """
with fetched as (
  select topic, partition, leader_epoch, follower, seq, at_ms, "offset", leader_end_low,
    lag(at_ms) over replica as previous_at_ms,
    lag(leader_end_low) over replica as previous_end,
    lead(at_ms) over replica as next_at_ms
  from read_parquet('{folder}/fetches/*.parquet')
  window replica as (partition by topic, partition, leader_epoch, follower order by seq)
), proven as (
  select *, coalesce(max(case when "offset" >= leader_end_low then at_ms
                     when "offset" >= previous_end then previous_at_ms end) over replica,
                     first_value(at_ms) over replica) as caught_up_at_ms
  from fetched
  window replica as (partition by topic, partition, leader_epoch, follower order by seq
                     rows between unbounded preceding and current row)
), judged as (
  select *, at_ms <= caught_up_at_ms + {limit} as is_in,
    coalesce(next_at_ms, at_ms) > caught_up_at_ms + {limit} as leaves
  from proven
), changed as (
  select *, case when leaves then 0 when is_in then 1 end as verdict from judged
), runs as (
  select *, lag(case when leaves then 0 else 1 end, 1, 1) over replica as was_in from changed
  window replica as (partition by topic, partition, leader_epoch, follower order by seq)
)
select count(*) filter (where leaves and was_in = 1) as shrinks,
  count(*) filter (where not leaves and is_in and was_in = 0) as expands,
  count(*) as rows
from runs
"""


def duckdb_replay(folder: Path) -> dict[str, Any]:
    import duckdb  # noqa: PLC0415 - a peer, only here

    began = perf_counter()
    connection = duckdb.connect()
    connection.execute("set threads to 2")
    text = REPLAY_SQL.format(folder=folder, limit=LIMIT_MS)
    shrinks, expands, rows = connection.execute(text).fetchall()[0]
    return {"seconds": perf_counter() - began, "rows": rows, "shrinks": shrinks, "expands": expands}


def session() -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - its import is part of a cold start

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def run_what_if(spark: Any, folder: Path, *, many: bool) -> dict[str, Any]:
    from insync.pipeline.scenarios import Asked  # noqa: PLC0415
    from insync.pipeline.what_if_table import what_if_exported  # noqa: PLC0415

    asked = Asked() if many else Asked(policies=["caught-up"], lag_time_max_ms=[LIMIT_MS])
    began = perf_counter()
    found = what_if_exported(spark, folder, asked=asked)
    rows = found.where("level = 'all'").collect()
    one = next(row for row in rows if row.policy == "caught-up" and row.lag_time_max_ms == LIMIT_MS)
    return {"seconds": perf_counter() - began, "shrinks": one.shrinks, "expands": one.expands}


def main(
    rows: Annotated[int, typer.Option(help="fetch rows")] = 20_000_000,
    replicas: int = 1_000,
    files: int = 64,
    seed: int = 7,
    data: Annotated[Path | None, typer.Option(help="keep the made-up data here")] = None,
    *,
    peer: bool = True,
    many: Annotated[bool, typer.Option(help="also 5 policies x 8 limits")] = True,
) -> None:
    folder = (
        data or Path(tempfile.gettempdir())
    ) / f"insync-bench-{rows}-{replicas}-{files}-{seed}"
    began = perf_counter()
    write(folder, rows=rows, replicas=replicas, files=files, seed=seed)
    figures: dict[str, Any] = {"rows": rows, "replicas": replicas, "made_s": perf_counter() - began}
    began = perf_counter()
    spark = session()
    figures["session_s"] = perf_counter() - began
    figures["first"] = run_what_if(spark, folder, many=False)
    figures["warm"] = [run_what_if(spark, folder, many=False) for _ in range(3)]
    if many:
        figures["40 scenarios"] = [run_what_if(spark, folder, many=True) for _ in range(2)]
    spark.stop()
    if peer:
        figures["duckdb"] = [duckdb_replay(folder) for _ in range(2)]
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
