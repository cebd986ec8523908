"""What was recorded, from a record of 20 s in which one follower is silent for 12 s of them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.pipeline.tables.record import GAP_MS, RECORD, record, record_exported
from support.pipeline.exported_tables import BASE, SILENT, STEP_MS, STEPS, change, write
from support.pipeline.exported_tables import record as silent_follower
from support.pipeline.spark_frames import as_frames

pytestmark = pytest.mark.spark
Row = dict[str, Any]
Tables = dict[str, list[Row]]

SILENCE_MS = (SILENT.stop - SILENT.start + 1) * STEP_MS
BEGAN_MS = 1_000_000 + (SILENT.start - 1) * STEP_MS + 10
COVERED_MS = (STEPS - 1) * STEP_MS + 10


def made(spark: SparkSession, tables: Tables) -> Row:
    frames = as_frames(spark, tables)
    names = ("fetches", "appends", "isr", "stalls", "assignments")
    table = record(**{name: frames[name] for name in names})
    assert table.schema.names == RECORD.names
    (row,) = table.collect()
    return dict(row.asDict())


def test_the_longest_silence_of_a_healthy_follower_has_its_place(
    spark: SparkSession, tmp_path: Any
) -> None:
    row = made(spark, silent_follower())
    assert row == {
        "first_at_ms": 1_000_000,
        "last_at_ms": 1_000_000 + COVERED_MS,
        "covered_ms": COVERED_MS,
        "recorded_ms": COVERED_MS,
        "gaps": 0,
        # Each follower fetched in every step but the silent ones, and a silence is between two.
        "silences": 2 * (STEPS - 1) - len(SILENT),
        "silence_ms_p9999": SILENCE_MS,
        "silence_ms_max": SILENCE_MS,
        "silence_topic": "orders",
        "silence_partition": 0,
        "silence_follower": 3,
        "silence_began_at_ms": BEGAN_MS,
    }
    folder = write(tmp_path, silent_follower())
    isr = as_frames(spark, silent_follower())["isr"]
    assert [dict(each.asDict()) for each in record_exported(spark, folder, isr).collect()] == [row]


def idle(tables: Tables) -> None:
    """Nothing is appended: no limit runs."""
    tables["appends"] = tables["appends"][:1]
    for row in tables["fetches"]:
        row |= {"offset": 1, "leader_end_low": 1, "leader_end_high": 1}


def lost_session(tables: Tables) -> None:
    """Its broker restarted; another partition's ISR says so."""
    gone = change(BEGAN_MS + 3_000, 9, "shrink", [1, 3], [1])
    tables["isr"].append(gone | {"decided_by": "controller", "topic": "another"})


def created_again(tables: Tables) -> None:
    """The topic was deleted and created while nothing fetched it."""
    row = BASE | {"version": 1, "replicas": [1, 2, 3], "adding": [], "removing": []}
    tables["assignments"] = [
        row | {"at_ms": at_ms, "topic_id": topic_id}
        for topic_id, at_ms in (("first", 1_000_000), ("second", BEGAN_MS + 1_000))
    ]


def dropped_rows(tables: Tables) -> None:
    """Rows of that time were not published."""
    tables["fetches"] = [row for row in tables["fetches"] if row["at_ms"] != BEGAN_MS + STEP_MS]


def behind_before(tables: Tables) -> None:
    for row in tables["fetches"]:
        if row["follower"] == 3 and row["at_ms"] <= BEGAN_MS:
            row["offset"] = 0


def never_back(tables: Tables) -> None:
    for row in tables["fetches"]:
        if row["follower"] == 3 and row["at_ms"] > BEGAN_MS:
            row["offset"] = SILENT.start


@pytest.mark.long_on_spark
@pytest.mark.parametrize(
    "change_tables", [idle, lost_session, created_again, dropped_rows, behind_before, never_back]
)
def test_other_silences_do_not_count(spark: SparkSession, change_tables: Any) -> None:
    tables = silent_follower()
    change_tables(tables)
    assert (made(spark, tables)["silence_ms_max"] or 0) <= 2 * STEP_MS


@pytest.mark.long_on_spark
def test_a_stall_of_the_leader_is_no_silence_of_its_follower(spark: SparkSession) -> None:
    tables = silent_follower()
    stall = {"broker": 1, "stall_ms": 5_000, "drained_at_ms": None}
    own = stall | {"at_ms": BEGAN_MS + 1_000}
    tables["stalls"] = [own, own, stall | {"broker": 2, "at_ms": BEGAN_MS + 1_000}]
    tables["stalls"] += [own | {"at_ms": BEGAN_MS - 4_500}]  # half a second of it is in the silence
    assert made(spark, tables)["silence_ms_max"] == SILENCE_MS - 5_500


def test_gaps_are_not_covered(spark: SparkSession) -> None:
    tables = silent_follower()
    for name in ("appends", "fetches", "isr"):
        for row in list(tables[name]):
            later = {key: row[key] + 3_600_000 for key in ("at_ms", "last_at_ms") if key in row}
            tables[name].append(row | later | {"leader_epoch": 5})
    row = made(spark, tables)
    assert (row["covered_ms"], row["gaps"]) == (2 * COVERED_MS, 1)
    assert row["last_at_ms"] - row["first_at_ms"] == 3_600_000 + COVERED_MS
    # Merged fetches of an idle partition are a record of the time in between, and cover none of it.
    idle = tables["fetches"][0] | {"at_ms": 1_000_000 + COVERED_MS, "seq": 10_000}
    tables["fetches"].append(idle | {"last_at_ms": 4_600_000 - GAP_MS, "repeats": 7_000})
    row = made(spark, tables)
    assert (row["recorded_ms"], row["gaps"]) == (3_600_000 + COVERED_MS, 0)
    # An append in 1_000_000..1_020_000 and 3_600_000 later: in the minutes 16 and 76.
    assert row["covered_ms"] == 2 * 60_000


@pytest.mark.long_on_spark
def test_idle_time_is_not_covered(spark: SparkSession) -> None:
    """25 h of idle fetches and 20 s of appends gave advice that needs a day."""
    tables = silent_follower()
    idle = tables["fetches"][0] | {"at_ms": 1_000_000 - 25 * 3_600_000, "seq": None}
    tables["fetches"].append(idle | {"last_at_ms": 1_000_000, "repeats": 180_000})
    began = tables["appends"][0] | {"at_ms": 500_000, "seq": None, "leader_epoch": 3}
    tables["appends"].append(began | {"end_offset": began["base_offset"]})  # of nothing
    row = made(spark, tables)
    assert (row["covered_ms"], row["recorded_ms"]) == (60_000, 25 * 3_600_000 + COVERED_MS)


@pytest.mark.long_on_spark
def test_nothing_recorded_is_nothing_covered(spark: SparkSession) -> None:
    row = made(spark, {})
    assert (row["covered_ms"], row["silences"], row["silence_ms_max"]) == (0, 0, None)
