# %% [markdown]
# # Which replicas were out of sync, why, and what would another policy have done?
# Each mark begins a cell of a notebook (Jupyter by jupytext, VS Code, Databricks); all of them
# together are a program. SOURCE is HOST:PORT of a broker, or what `insync telemetry export` wrote:
#
#     python examples/replication_analysis.py SOURCE
#     spark-submit --master spark://HOST:7077 examples/replication_analysis.py SOURCE

# %%
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from insync.pipeline import (
    WhatIfGrid,
    episodes,
    health,
    incidents,
    lag,
    recommendation,
    record,
    throttle,
    what_if,
)

SOURCE = "127.0.0.1:9092"
if sys.argv[0].endswith("replication_analysis.py") and len(sys.argv) > 1:
    SOURCE = sys.argv[1]  # of a program; what a notebook was started with is not ours

# %% [markdown]
# ## The session is yours
# A notebook on a cluster has one already. Workers on this machine are to be the same Python, and
# two tasks for each core are enough: Spark's usual 200 for every shuffle take minutes on a laptop.

# %%
lent = SparkSession.getActiveSession()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = lent or SparkSession.builder.appName("replication analysis").getOrCreate()
tasks_before = spark.conf.get("spark.sql.shuffle.partitions")
spark.conf.set("spark.sql.shuffle.partitions", 2 * spark.sparkContext.defaultParallelism)

# %% [markdown]
# ## Telemetry, as any DataFrames
# The format `insync` reads from brokers; every session finds it where Insync is installed.


# %%
def recorded(table: str) -> DataFrame:
    if Path(SOURCE).is_dir():
        return spark.read.parquet(f"{SOURCE}/{table}")
    brokers = spark.read.format("insync").option("kafka.bootstrap.servers", SOURCE)
    return brokers.option("table", table).load()


seen = {table: recorded(table).cache() for table in ("fetches", "appends", "isr", "stalls")}
noted = {table: recorded(table).cache() for table in ("elections", "configs", "throttle")}
replicas = recorded("assignments").cache()  # which brokers had replicas; older brokers lack it

# %% [markdown]
# ## Every time out of sync, and its cause

# %%
out_of_sync = episodes(**seen, **noted, assignments=replicas).cache()
out_of_sync.select("topic", "partition", "follower", "cause", "ending", "out_ms").show(
    truncate=False
)
incidents(out_of_sync).select("summary", "began_at_ms", "ended_at_ms").show(truncate=False)

# %% [markdown]
# ## Every rule at three limits
# What it would have done with the same fetches; and advice, if a day was recorded.

# %%
grid = WhatIfGrid(lag_time_max_ms=(5_000, 10_000, 30_000))
replayed = what_if(**seen, assignments=replicas, configs=noted["configs"], grid=grid).cache()
overall = replayed.where("level = 'all'").orderBy("policy", "lag_time_max_ms")
overall.select("policy", "lag_time_max_ms", "shrinks", "flaps", "false_evictions").show()

advice = recommendation(replayed, record(**seen), noted["configs"])
advice.select("verdict", "policy", "lag_time_max_ms", "reason").show(truncate=False)

# %% [markdown]
# ## Lag by the minute, throttles, and a line for each topic and broker

# %%
kept = {table: seen[table] for table in ("fetches", "appends", "isr")}
behind = lag(**kept, assignments=replicas, bucket_ms=60_000).cache()
limits = throttle(noted["throttle"]).cache()
limits.select("broker", "side", "limit_bytes_per_s", "use", "held_back_s", "verdict").show()

facts = {table: noted[table] for table in ("elections", "configs")}
seen_together = {"lag": behind, "throttle": limits, "incidents": incidents(out_of_sync, behind)}
daily = health(out_of_sync, **seen, **facts, **seen_together, assignments=replicas)
daily.select("level", "name", "status", "reason").show(truncate=False)

# %% [markdown]
# ## Results are tables: join them as you like
# For each episode how far behind the follower came to be, and which policies would have kept it.

# %%
views = {"episodes": out_of_sync, "what_if": replayed, "lag": behind}
for name, frame in views.items():
    frame.createOrReplaceTempView(name)

kept_by = spark.sql("""
    WITH worst AS (
        SELECT topic, partition, follower, max(lag_ms_max) AS lag_ms_max
        FROM lag GROUP BY topic, partition, follower
    ), calm AS (
        SELECT topic, partition, collect_set(policy || ' ' || lag_time_max_ms) AS without_shrinks
        FROM what_if WHERE level = 'partition' AND shrinks = 0 GROUP BY topic, partition
    )
    SELECT topic, partition, follower, cause, out_ms, lag_ms_max, array_sort(without_shrinks) AS
        without_shrinks
    FROM episodes
        JOIN worst USING (topic, partition, follower)
        LEFT JOIN calm USING (topic, partition)
    ORDER BY topic, partition, left_at_ms
""")
kept_by.show(truncate=False)

# %% [markdown]
# ## Leave everything as it was

# %%
for name in views:
    spark.catalog.dropTempView(name)
for frame in (*seen.values(), *noted.values(), out_of_sync, replayed, behind, limits):
    frame.unpersist()
spark.conf.set("spark.sql.shuffle.partitions", tasks_before)
if lent is None:
    spark.stop()
