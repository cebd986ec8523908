"""`python -m bench.pipeline SIDE FOLDER`: one side's what-if over made-up telemetry, as JSON.

A process of its own: what a cold start costs, and how much memory all of it takes, is seen from
outside (`bench/what_if.py`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

LIMIT_MS = 5_000
WARM_UPS = 10  # Java compiles Spark's own code as it is run: the first runs take turns with that
MEASURED = 5
FRAMES = ("fetches", "appends", "isr", "stalls", "assignments", "configs")
DUCKDB_WARM_UPS, DUCKDB_MEASURED = 1, 2  # nothing of it is compiled: from the second run on alike

# KAFKA-4485's rule in SQL: caught-up times by a running maximum, membership as islands between the
# fetches at which a follower is late and those at which it is back, the truth by the first append
# that a fetch lacks. It keeps no watermark and knows no minimum ISR, so it does less than we do.
_PROVEN = """
fetched as (
  select topic, partition, leader_epoch, follower, seq, at_ms, "offset", leader_end_low,
    lag(at_ms) over replica as previous_at_ms,
    lag(leader_end_low) over replica as previous_end,
    lead(at_ms) over replica as next_at_ms
  from read_parquet('{folder}/fetches/*.parquet')
  window replica as (partition by topic, partition, leader_epoch, follower order by seq)
), proven as (
  select *, {limit} + coalesce(max(case when "offset" >= leader_end_low then at_ms
                     when "offset" >= previous_end then previous_at_ms end) over replica,
                     first_value(at_ms) over replica) as last_ms
  from fetched
  window replica as (partition by topic, partition, leader_epoch, follower order by seq
                     rows between unbounded preceding and current row)
)"""
_COUNTED = """
counted as (
  select *, count(*) filter (where is_in and leaves) over replica as episode,
    lag(leaves, 1, false) over replica as was_out,
    max(case when is_in and leaves then last_ms + 1 end) over (
      replica rows between unbounded preceding and 1 preceding) as left_ms
  from judged
  window replica as (partition by topic, partition, leader_epoch, follower order by seq)
), totals as (
  select count(*) filter (where is_in and leaves) as shrinks,
    count(*) filter (where is_in and was_out) as expands,
    count(*) filter (where is_in and was_out and at_ms - left_ms <= {limit}) as flaps,
    coalesce(sum(until_ms - greatest(at_ms, last_ms + 1)) filter (where leaves), 0)
      as out_of_sync_ms
  from counted
)"""
REPLAY_SQL = f"""
with appended as (
  select topic, partition, leader_epoch, end_offset, at_ms as appended_at_ms
  from read_parquet('{{folder}}/appends/*.parquet') where end_offset > base_offset
), ended as (
  select topic, partition, leader_epoch, max(at_ms) as ended_ms
  from (select topic, partition, leader_epoch, at_ms
        from read_parquet('{{folder}}/fetches/*.parquet')
        union all
        select topic, partition, leader_epoch, at_ms
        from read_parquet('{{folder}}/appends/*.parquet'))
  group by all
), {_PROVEN}, lacking as (
  select proven.*, appended_at_ms
  from proven asof left join appended
    on proven.topic = appended.topic and proven.partition = appended.partition
    and proven.leader_epoch = appended.leader_epoch and proven."offset" < appended.end_offset
), judged as (
  select lacking.*, coalesce(next_at_ms, ended_ms) as until_ms, at_ms <= last_ms as is_in,
    coalesce(next_at_ms, ended_ms) > last_ms as leaves,
    coalesce(next_at_ms, ended_ms) > appended_at_ms + {{limit}} + 1 as is_over
  from lacking join ended using (topic, partition, leader_epoch)
), {_COUNTED}, episodes as (
  select topic, partition, leader_epoch, follower, episode, bool_or(is_over) as is_true
  from counted where leaves group by all
)
select *, (select count(*) from episodes where not is_true) as false_evictions from totals
"""  # noqa: S608 - all of it is ours
COUNTED = ("shrinks", "expands", "flaps", "out_of_sync_ms", "false_evictions")

# The same without the truth, by windows alone: the join with the appends takes it six times as
# long, and a user who needs only the counts above would not run it. This is what is timed.
WINDOWS_SQL = f"""
with {_PROVEN}, judged as (
  select *, coalesce(next_at_ms, at_ms) as until_ms, at_ms <= last_ms as is_in,
    coalesce(next_at_ms, at_ms) > last_ms as leaves
  from proven
), {_COUNTED}
select * from totals
"""  # noqa: S608 - all of it is ours


def duckdb_replay(folder: Path, times: int, *, sql: str = WINDOWS_SQL) -> list[dict[str, Any]]:
    import duckdb  # noqa: PLC0415 - a peer, only here

    connection = duckdb.connect()
    connection.execute("set threads to 2")
    text = sql.format(folder=folder, limit=LIMIT_MS)
    results = []
    for _ in range(times):
        began_s = perf_counter()
        counts = connection.execute(text).fetchall()[0]
        seconds = perf_counter() - began_s
        results.append({"seconds": seconds, **dict(zip(COUNTED, map(int, counts), strict=False))})
    return results


def what_if(
    spark: Any, folder: Path, *, is_everything: bool = False, from_frames: bool = False
) -> dict[str, Any]:
    """From the files themselves, or from DataFrames that Spark makes of them."""
    from insync.pipeline.scenarios import WhatIfGrid  # noqa: PLC0415
    from insync.pipeline.tables import what_if as table  # noqa: PLC0415

    grid = (
        WhatIfGrid()
        if is_everything
        else WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[LIMIT_MS])
    )
    began_s = perf_counter()
    if from_frames:
        frames = {name: spark.read.parquet(str(folder / name)) for name in FRAMES}
        results = table.what_if(**frames, grid=grid)
    else:
        results = table.what_if_exported(spark, folder, grid=grid)
    rows = results.where("level = 'all'").collect()
    one = next(row for row in rows if row.policy == "caught-up" and row.lag_time_max_ms == LIMIT_MS)
    seconds = perf_counter() - began_s
    return {"seconds": seconds, **{name: one[name] for name in COUNTED}}


def measured(
    spark: Any, folder: Path, other: Path | None, *, is_once: bool
) -> dict[str, list[dict[str, Any]]]:
    if is_once:
        return {"one": [what_if(spark, folder)]}
    for _ in range(WARM_UPS):
        what_if(spark, folder)
    figures = {
        "one": [what_if(spark, folder) for _ in range(MEASURED)],
        "forty": [what_if(spark, folder, is_everything=True) for _ in range(2)],
    }
    if other is not None:
        what_if(spark, other)
        figures["other"] = [what_if(spark, other) for _ in range(MEASURED)]
        what_if(spark, folder, from_frames=True)
        figures["frames"] = [what_if(spark, folder, from_frames=True) for _ in range(MEASURED)]
    return figures


def main(
    side: Annotated[str, typer.Argument(help="insync or duckdb")],
    folder: Path,
    *,
    once: Annotated[bool, typer.Option(help="one policy, once, and that is all")] = False,
    other: Annotated[
        Path | None, typer.Option(help="the same rows, otherwise spread; and DataFrames")
    ] = None,
) -> None:
    if side == "duckdb":
        warm_ups, measured_runs = (0, 1) if once else (DUCKDB_WARM_UPS, DUCKDB_MEASURED)
        runs = duckdb_replay(folder, warm_ups + measured_runs)
        figures: dict[str, Any] = {"one": runs[warm_ups:]}
    else:
        from insync.pipeline.io.session import session  # noqa: PLC0415 - part of a cold start

        with session(master="local[2]", settings={"spark.driver.memory": "1g"}) as spark:
            figures = measured(spark, folder, other, is_once=once)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    typer.run(main)
