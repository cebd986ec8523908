"""`python -m bench.pipeline SIDE FOLDER`: one side's what-if over made-up telemetry, as JSON.

A process of its own: what a cold start costs, and how much memory all of it takes, is seen from
outside (`bench/what_if.py`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

LIMIT_MS = 5_000
MEASURED = 3

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
  count(*) filter (where not leaves and is_in and was_in = 0) as expands
from runs
"""


def duckdb_replay(folder: Path, times: int) -> list[dict[str, Any]]:
    import duckdb  # noqa: PLC0415 - a peer, only here

    connection = duckdb.connect()
    connection.execute("set threads to 2")
    text = REPLAY_SQL.format(folder=folder, limit=LIMIT_MS)
    found = []
    for _ in range(times):
        began_s = perf_counter()
        shrinks, expands = connection.execute(text).fetchall()[0]
        found.append({"seconds": perf_counter() - began_s, "shrinks": shrinks, "expands": expands})
    return found


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


def what_if(spark: Any, folder: Path, *, is_everything: bool = False) -> dict[str, Any]:
    from insync.pipeline.scenarios import Asked  # noqa: PLC0415
    from insync.pipeline.what_if_table import what_if_exported  # noqa: PLC0415

    asked = Asked() if is_everything else Asked(policies=["caught-up"], lag_time_max_ms=[LIMIT_MS])
    began_s = perf_counter()
    rows = what_if_exported(spark, folder, asked=asked).where("level = 'all'").collect()
    one = next(row for row in rows if row.policy == "caught-up" and row.lag_time_max_ms == LIMIT_MS)
    seconds = perf_counter() - began_s
    return {"seconds": seconds, "shrinks": one.shrinks, "expands": one.expands}


def main(
    side: Annotated[str, typer.Argument(help="insync or duckdb")],
    folder: Path,
    *,
    once: Annotated[bool, typer.Option(help="one policy, once, and that is all")] = False,
    other: Annotated[Path | None, typer.Option(help="the same rows, otherwise spread")] = None,
) -> None:
    if side == "duckdb":
        figures: dict[str, Any] = {"one": duckdb_replay(folder, 1 if once else 2)}
    else:
        spark = session()
        if once:
            figures = {"one": [what_if(spark, folder)]}
        else:
            what_if(spark, folder)  # compiled now, if it was not before
            figures = {"one": [what_if(spark, folder) for _ in range(MEASURED)]}
            figures["forty"] = [what_if(spark, folder, is_everything=True) for _ in range(2)]
            if other is not None:
                what_if(spark, other)
                figures["other"] = [what_if(spark, other) for _ in range(MEASURED)]
        spark.stop()
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    typer.run(main)
