# %% [markdown]
# # A walk through a record
# `telemetry/` is what three brokers recorded in a little more than a minute, while they were
# stopped, slowed down and killed, and while a topic moved (`record.py` did it). Each mark begins a
# cell of a notebook; all of them together are a program, which writes its charts to a folder:
#
#     python examples/walk/walk.py [PLOTS]

# %%
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its common name

HERE = Path(__file__).parent if "__file__" in globals() else Path("examples/walk")
sys.path.insert(0, str(HERE))

from plots import line_chart, span_chart  # noqa: E402 - beside this file

from insync.pipeline import (  # noqa: E402
    WhatIfGrid,
    episodes,
    health,
    incidents,
    lag_exported,
    plans,
    recommendation,
    record_exported,
    throttle,
    what_if_exported,
)
from insync.pipeline.report.advice_words import advice_sentences  # noqa: E402
from insync.pipeline.words import duration, rate, size  # noqa: E402

SOURCE = str(HERE / "telemetry")
PLOTS = Path(sys.argv[1]) if sys.argv[0].endswith("walk.py") and len(sys.argv) > 1 else HERE
lent = SparkSession.getActiveSession()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = lent or SparkSession.builder.appName("walk").getOrCreate()
tasks_before = spark.conf.get("spark.sql.shuffle.partitions")
spark.conf.set("spark.sql.shuffle.partitions", 2)  # a record of a minute needs no more
said: list[str] = []


def say(*sentences: str) -> None:
    """Print what was found; a test reads it too."""
    for sentence in sentences:
        said.append(sentence)
        sys.stdout.write(f"{sentence}\n")


def table(name: str) -> DataFrame:
    return spark.read.parquet(f"{SOURCE}/{name}")


telemetry = {name: table(name) for name in ("fetches", "appends", "isr", "stalls", "assignments")}
settings, elections = table("configs"), table("elections")

# %% [markdown]
# ## What was recorded
# The leaders record every fetch of their followers, every append and every change of an ISR.

# %%
recorded = record_exported(spark, SOURCE, telemetry["isr"]).cache()
summary = recorded.first()
assert summary is not None
first_ms, last_ms = summary["first_at_ms"], summary["last_at_ms"]
counts = {name: rows.count() for name, rows in telemetry.items()}
say(
    f"{duration(summary['covered_ms'])} were recorded: {counts['appends']:,} appends, "
    f"{counts['fetches']:,} rows of fetches and {counts['isr']} changes of ISRs.",
    f"A healthy follower was silent for {duration(summary['silence_ms_max'])} at most.",
)

# %% [markdown]
# ## Incidents
# An episode is a time of one replica out of the ISR; simultaneous ones with one cause are one
# incident.

# %%
out_of_sync = episodes(
    **telemetry, elections=elections, configs=settings, throttle=table("throttle")
).cache()
grouped = incidents(out_of_sync).cache()
together = grouped.orderBy("began_at_ms").collect()
say(*(f"{duration(each['began_at_ms'] - first_ms)} in: {each['summary']}." for each in together))
bars: dict[str, list[tuple[int, int, str]]] = {}
for each in sorted(together, key=lambda row: row["broker"]):
    span = each["began_at_ms"], each["began_at_ms"] + each["duration_ms"], each["cause"]
    bars.setdefault(f"broker {each['broker']}", []).append(span)
(PLOTS / "incidents.svg").write_text(span_chart("Incidents", bars, first_ms, last_ms))

# %% [markdown]
# ## Health
# One line per topic and broker, the worst first: what a daily check shows.

# %%
lags = lag_exported(spark, SOURCE, bucket_ms=500).cache()
facts = {"elections": elections, "configs": settings, "lag": lags, "incidents": grouped}
statuses = health(out_of_sync, **telemetry, **facts)
worst_first = statuses.orderBy(F.expr("status = 'ok'"), F.expr("status = 'warning'"), "name")
for each in worst_first.collect():
    say(f"{each['status']}: {each['level']} {each['name']}: {each['reason']}".rstrip(": "))

# %% [markdown]
# ## One episode explained
# The first replica that left the ISR of orders-0. Its lag grows by a second per second from the
# moment at which it stopped, passes the limit, and falls when it fetches again.

# %%
episode = out_of_sync.where("topic = 'orders' AND partition = 0").orderBy("left_at_ms").first()
assert episode is not None
limit_row = settings.where("name = 'replica.lag.time.max.ms'").first()
assert limit_row is not None
limit_ms = int(limit_row["value"])
say(
    f"Broker {episode['follower']} left the ISR of orders-0 because it was {episode['cause']}; it "
    f"was out for {duration(episode['out_ms'])}, and the limit was {duration(limit_ms)}.",
    f"The leader said: {episode['reason']}.",
)
points: dict[str, list[tuple[int, float]]] = {}
for each in lags.where("topic = 'orders' AND partition = 0").orderBy("bucket_at_ms").collect():
    series = points.setdefault(f"follower {each['follower']}", [])
    series.append((each["bucket_at_ms"], each["lag_ms_max"] / 1_000))
bands = [
    (
        each["began_at_ms"],
        each["began_at_ms"] + each["duration_ms"],
        f"{each['broker']}: {each['cause']}",
    )
    for each in together
]
(PLOTS / "lag.svg").write_text(
    line_chart(
        "How far the followers of orders-0 were behind", "s", dict(sorted(points.items())), bands,
        ("replica.lag.time.max.ms", limit_ms / 1_000),
    )
)  # fmt: skip

# %% [markdown]
# ## What would other limits and policies have done?
# The same fetches and appends, replayed.

# %%
grid = WhatIfGrid(policies=("caught-up", "pending-reads"), lag_time_max_ms=(1_500, 3_000, 10_000))
replayed = what_if_exported(spark, SOURCE, grid=grid).cache()
overall = replayed.where("level = 'all'").orderBy("policy", "lag_time_max_ms").collect()
for each in overall:
    say(
        f"{each['policy']} at {duration(each['lag_time_max_ms'])}: {each['shrinks']} evictions, "
        f"{each['false_evictions']} of them false; acks=all waited "
        f"{duration(each['acks_all_stall_ms_max'])} at most."
    )

# %% [markdown]
# ## The throttle, and the move that it limited
# KIP-73: a throttle is safe above what comes in. The leader's side knows what is left to copy.

# %%
seconds = table("throttle")
spans = throttle(seconds).where("side = 'leader'").orderBy("began_at_ms").collect()
moved = next(each for each in spans if each["lag_bytes_first"])
say(
    f"Broker {moved['broker']} sent with a limit of {rate(moved['limit_bytes_per_s'])}: "
    f"{size(moved['lag_bytes_first'])} were left in the first second. They took "
    f"{duration(moved['real_ms'])}; KIP-73's formula gives {duration(moved['estimated_ms'])}.",
    f"The difference: {moved['difference']}.",
)
of_leader = seconds.where((F.col("side") == "leader") & (F.col("broker") == moved["broker"]))
rows = [
    each for each in of_leader.orderBy("at_ms").collect() if each["replica_lag_bytes"] is not None
]
left = [(each["at_ms"], each["replica_lag_bytes"] / 1_000_000) for each in rows]
begins_ms, to_copy = next((at_ms, megabytes) for at_ms, megabytes in left if megabytes)
estimated = [(begins_ms, to_copy), (begins_ms + moved["estimated_ms"], 0.0)]
(PLOTS / "throttle.svg").write_text(
    line_chart(
        "What was left to copy of payments", "MB", {"estimated": estimated, "recorded": left}
    )
)

# %% [markdown]
# ## Advice
# A minute is not a day: the pipeline shows what limits would have done, and advises none of them.
# A plan for the replicas says the same of its hours.

# %%
advice = recommendation(replayed, recorded, settings).first()
assert advice is not None
say(*advice_sentences(advice.asDict(recursive=True))[:2])
inputs = {name: telemetry[name] for name in ("fetches", "appends", "assignments", "isr")}
proposal = plans(**inputs, configs=settings).first()
assert proposal is not None
say(f"Plan: {proposal['verdict']}, {proposal['reason']}.", proposal["statements"][0])

# %% [markdown]
# ## Leave the session as it was

# %%
for frame in (recorded, out_of_sync, grouped, lags, replayed):
    frame.unpersist()
spark.conf.set("spark.sql.shuffle.partitions", tasks_before)
if lent is None:
    spark.stop()
