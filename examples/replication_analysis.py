# %% [markdown]
# # Who was out of sync, why, and what would another rule have done?
# Cells of a notebook (Jupyter, VS Code and Databricks read the marks), and a program:
# `python examples/replication_analysis.py DIR`, with DIR from `insync telemetry export`.

# %% The session is yours: a notebook on a cluster has one already.
import sys

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from insync.pipeline.episodes_table import episodes
from insync.pipeline.files import read_tables
from insync.pipeline.scenarios import Asked
from insync.pipeline.session import session
from insync.pipeline.what_if_table import what_if

SOURCE = sys.argv[1]

with session(master="local[2]") as spark:
    # %% Telemetry, as any DataFrames. Straight from brokers it would be
    # spark.read.format("insync").option("kafka.bootstrap.servers", B).option("table", "fetches")
    tables = read_tables(spark, SOURCE, needed=["fetches", "appends"]).frames

    # %% Every time out of sync, and its cause.
    told = episodes(
        *(tables[name] for name in ("isr", "fetches", "appends", "elections", "stalls", "configs"))
    )
    told.select("topic", "partition", "follower", "cause", "out_ms").show(truncate=False)

    # %% Three limits, under the default rule and under KIP-501's.
    asked = Asked(policies=("caught-up", "pending-reads"), lag_time_max_ms=(5_000, 10_000, 30_000))
    replayed = what_if(
        *(tables[name] for name in ("fetches", "appends", "isr", "stalls")), asked=asked
    )
    overall = replayed.where(F.col("level") == "all").orderBy("policy", "lag_time_max_ms")
    overall.select("policy", "lag_time_max_ms", "shrinks", "flaps", "false_evictions").show()
