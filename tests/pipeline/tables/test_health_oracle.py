"""Health on Spark is that of the oracle, column by column."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.pipeline.tables.episodes import SCHEMA as EPISODES
from insync.pipeline.tables.health import SCHEMA, health
from insync.pipeline.tables.throttle import SCHEMA as THROTTLE
from insync.pipeline.words import duration
from support.pipeline.episodes_oracle import episodes as expected_episodes
from support.pipeline.min_isr_oracle import Moments, below_min_isr, out_of_sync
from support.pipeline.random_tables import START_MS, Tables, made_up, throttled_seconds
from support.pipeline.spark_frames import as_frames
from support.pipeline.throttle_oracle import spans

pytestmark = pytest.mark.spark
Row = dict[str, Any]

LIMIT_MS = 2_000  # the lowest in the record
CALM = range(10, 20)  # brokers that lead a topic each, whose follower is ten further
TELEMETRY = ("isr", "fetches", "appends", "elections", "stalls", "configs", "assignments")


def record() -> Tables:
    """Topics with faults, and others with one minor fact each, or none."""
    tables = made_up(5, partitions=40)
    # A leader that leads again in a new epoch is no leader change.
    tables["elections"] = [
        row for row in tables["elections"] if row["leader_before"] != row["leader_after"]
    ]
    for leader in CALM:
        partition_columns = {"topic": f"calm {leader}", "partition": 1_000 + leader}
        partition_columns |= {"leader": leader, "leader_epoch": 0, "at_ms": START_MS}
        numbers = {"bytes": 0, "base_offset": 0, "end_offset": 0, "seq": 0}
        tables["appends"].append(partition_columns | numbers)
        fetch = dict.fromkeys(tables["fetches"][0]) | partition_columns
        fetch |= {"follower": leader + 10, "offset": 0, "seq": 1, "outcome": "ok", "repeats": 1}
        fetch |= {"leader_end_low": 0, "leader_end_high": 0, "read_ms": 0, "last_at_ms": START_MS}
        tables["fetches"].append(fetch)
    stalls = [(10, 0, 999), (11, 0, 1_000), (12, 0, 400), (12, 0, 400), (12, 1, 599)]
    tables["stalls"] += [
        {"broker": broker, "at_ms": START_MS + at_ms, "stall_ms": stall_ms}
        for broker, at_ms, stall_ms in stalls
    ]
    elected = {"topic": "calm 13", "partition": 1_013, "at_ms": START_MS, "leader_epoch": 1}
    elected |= {"leader_before": 13, "leader_after": 23, "cause": "a broker came or went"}
    tables["elections"] += [elected] * 2
    return tables


def lags(tables: Tables) -> list[Row]:
    """Of the calm ones: half the limit, and a millisecond more."""
    peaks = {"calm 14": LIMIT_MS // 2, "calm 15": LIMIT_MS // 2 + 1}
    topic_followers = {(row["topic"], row["follower"]) for row in tables["fetches"]}
    return [
        {"topic": topic, "follower": follower, "lag_messages_max": 10 * bucket}
        | {"lag_ms_max": peaks.get(topic, 5 * follower) - bucket}
        for topic, follower in sorted(topic_followers)
        for bucket in range(3)
        if topic != "calm 16"  # nothing is known of it
    ]


def throttles() -> list[Row]:
    """Tables of brokers with faults, and of brokers without, some of which only look bad."""
    made = spans(throttled_seconds(3, "leader", [1_000_000], brokers=3))
    calm = [
        (16, 1, "above-inbound", "moving"),  # held back for a second
        (17, 0, "cannot-finish", "done"),  # it did
        (18, 0, "cannot-finish", None),
        (19, 0, "above-inbound", "stuck"),
        (19, 0, "cannot-finish", "moving"),
        (29, 0, None, None),
    ]
    names = ("broker", "held_back_s", "verdict", "progress")
    return made + [made[0] | dict(zip(names, each, strict=True)) for each in calm]


def lines(tables: Tables, episodes: list[Row], lag: list[Row], throttle: list[Row]) -> list[Row]:
    leaders = {row["leader"] for row in tables["appends"]}
    brokers = leaders | {row["follower"] for row in tables["fetches"]}
    brokers |= {row["broker"] for row in (*tables["stalls"], *throttle)}
    topics = {row["topic"] for row in tables["appends"]}
    elections = {
        (row["topic"], row["partition"], row["leader_epoch"], row["leader_before"])
        for row in tables["elections"]
    }
    stalls = {(row["broker"], row["at_ms"], row["stall_ms"]) for row in tables["stalls"]}
    made = []
    below = below_min_isr(tables)
    for topic in topics:
        own = [row for row in episodes if row["topic"] == topic]
        facts = {
            **both_sums("under_min_isr", [each for each in below.items() if each[0][0] == topic]),
            "leader_changes": sum(election[0] == topic for election in elections),
            "stall_ms": 0,
            "held_back_s": 0,
            "bad_throttles": 0,
        }
        peaks = [row for row in lag if row["topic"] == topic]
        made.append(line("topic", topic, facts, own, peaks))
    for broker in brokers:
        own = [row for row in episodes if row["follower"] == broker]
        limits = [row for row in throttle if row["broker"] == broker]
        facts = {
            **both_sums(
                "under_min_isr",
                [
                    (replica(row), out_of_sync(row) & below.get(replica(row)[:2], set()))
                    for row in own
                ],
            ),
            "leader_changes": sum(election[3] == broker for election in elections),
            "stall_ms": sum(stall[2] for stall in stalls if stall[0] == broker),
            "held_back_s": sum(row["held_back_s"] for row in limits),
            "bad_throttles": sum(cannot_finish(row) for row in limits),
        }
        peaks = [row for row in lag if row["follower"] == broker]
        made.append(line("broker", str(broker), facts, own, peaks))
    return made


def both_sums(what: str, spans: list[tuple[Any, Moments]]) -> Row:
    """Wall time, and the sum over partitions or their replicas, each of which counts once."""
    by_part: dict[Any, Moments] = {}
    for part, moments in spans:
        by_part.setdefault(part, set()).update(moments)
    return {
        f"{what}_ms": len(set().union(*by_part.values())),
        f"{what}_partition_ms": sum(map(len, by_part.values())),
    }


def replica(episode: Row) -> tuple[str, int, int]:
    return episode["topic"], episode["partition"], episode["follower"]


def cannot_finish(span: Row) -> bool:
    progress = span["progress"]
    is_too_low = span["verdict"] == "cannot-finish" and progress != "done"
    return bool(is_too_low or progress == "stuck")


def line(level: str, name: str, facts: Row, episodes: list[Row], lag: list[Row]) -> Row:
    row = facts | {
        "level": level,
        "name": name,
        "lag_ms_max": max((row["lag_ms_max"] for row in lag), default=None),
        "lag_messages_max": max((row["lag_messages_max"] for row in lag), default=None),
        "episodes": len(episodes),
        "open_episodes": sum(row["ending"] == "open" for row in episodes),
        "flapping": sum(row["flaps"] > 1 for row in episodes),
        **both_sums("out", [(replica(row), out_of_sync(row)) for row in episodes]),
    }
    is_bad = row["open_episodes"] or row["under_min_isr_ms"] or row["bad_throttles"]
    expected = words(row)
    return row | {
        "status": "critical" if is_bad else "warning" if expected else "ok",
        "reason": expected,
    }


def words(row: Row) -> str:
    """Worst first."""

    def count(name: str, one: str, more: str) -> str:
        return one if row[name] == 1 else more.format(row[name])

    reasons = {
        f"{row['open_episodes']} still out of sync": row["open_episodes"],
        f"{duration(row['under_min_isr_ms'])} below min ISR": row["under_min_isr_ms"],
        count("bad_throttles", "a throttle", "{} throttles") + " that cannot finish": row[
            "bad_throttles"
        ],
        f"out of sync {count('episodes', 'once', '{} times')}, for {duration(row['out_ms'])}": (
            row["episodes"]
        ),
        f"{row['flapping']} of them in a row": row["flapping"],
        f"lag up to {duration(row['lag_ms_max'] or 0)}": (row["lag_ms_max"] or 0) > LIMIT_MS / 2,
        count("leader_changes", "1 leader change", "{} leader changes"): row["leader_changes"],
        f"stalled for {duration(row['stall_ms'])}": row["stall_ms"] >= 1_000,
        count("held_back_s", "held back for 1 s", "replicas held back for {} s"): (
            row["held_back_s"]
        ),
    }
    return "; ".join(each for each, holds in reasons.items() if holds)


def test_every_column_of_every_row_agrees_with_the_oracle(spark: SparkSession) -> None:
    tables = record()
    episodes, lag, throttle = expected_episodes(tables), lags(tables), throttles()
    expected = lines(tables, episodes, lag, throttle)
    assert {(row["level"], row["status"]) for row in expected} == {
        (level, status) for level in ("topic", "broker") for status in ("ok", "warning", "critical")
    }
    assert all(any(row[name] for row in expected) for name in SCHEMA.names), "not all was made up"
    made = {
        "episodes": spark.createDataFrame(
            [tuple(row[name] for name in EPISODES.names) for row in episodes], EPISODES
        ),
        "lag": spark.createDataFrame(lag),
        "throttle": spark.createDataFrame(
            [tuple(row.get(name) for name in THROTTLE.names) for row in throttle], THROTTLE
        ),
    }
    frames = as_frames(spark, tables)
    rows = health(**made, **{name: frames[name] for name in TELEMETRY}).collect()
    by_name = {(row["level"], row["name"]): row.asDict() for row in rows}
    assert len(by_name) == len(rows)
    assert by_name == {
        (row["level"], row["name"]): {name: row[name] for name in SCHEMA.names} for row in expected
    }
