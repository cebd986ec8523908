"""Where DuckDB means something else than Spark: both engines do as Spark's documentation says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession

from insync.pipeline.local.dispatch import F, W

pytestmark = pytest.mark.spark

ROWS = pa.table(
    {
        "name": ["b", "a", "c"],
        "number": pa.array([2, None, 2], pa.int64()),
        "text": ["12", " 7 ", None],
        "odd": ["1e3", "1_000", "12.5"],
        "ints": pa.array([[3, 1, 3], [], None], pa.list_(pa.int32())),
    }
)

# Of the rows in the order of `name`.
CASES: dict[str, tuple[Callable[[], Column], list[Any]]] = {
    "whole numbers of texts": (lambda: F.col("text").cast("long"), [7, 12, None]),
    "no numbers": (lambda: F.col("odd").try_cast("long"), [None, None, None]),
    "a fraction is cut off": (lambda: (F.lit(7) / 4).cast("int"), [1, 1, 1]),
    "a division has a fraction": (lambda: F.col("number") / 4, [None, 0.5, 0.5]),
    "floor is whole": (lambda: F.floor(F.lit(-7) / 2), [-4, -4, -4]),
    "the greatest is no null": (lambda: F.greatest("number", F.lit(1)), [1, 2, 2]),
    "a text with a null is null": (
        lambda: F.concat(F.lit("n="), F.col("number")), [None, "n=2", "n=2"],
    ),
    "joined texts leave nulls out": (
        lambda: F.concat_ws("; ", F.array(F.lit("x"), F.lit("y")), "text"),
        ["x; y;  7 ", "x; y; 12", "x; y"],
    ),
    "a null in a form is a word": (
        lambda: F.format_string("%d of %s{0}", "number", "name"),
        ["null of a{0}", "2 of b{0}", "2 of c{0}"],
    ),
    "distinct in their order": (lambda: F.array_distinct("ints"), [[], [3, 1], None]),
    "a union in its order": (
        lambda: F.array_union("ints", F.array(F.lit(9), F.lit(1))), [[9, 1], [3, 1, 9], None],
    ),
    "all but some": (lambda: F.array_except("ints", F.array(F.lit(3))), [[], [1], None]),
    "the size of no list": (lambda: F.size("ints"), [0, 3, None]),
    "downwards": (lambda: F.sequence(F.lit(3), F.lit(1)), [[3, 2, 1]] * 3),
    "by position": (lambda: F.get("ints", F.lit(5)), [None, None, None]),
    "equal nulls": (lambda: F.col("number").eqNullSafe(F.lit(None)), [True, False, False]),
    "the rows before": (
        lambda: F.count("number").over(
            W.partitionBy().orderBy("number", "name").rowsBetween(W.unboundedPreceding, -1)
        ),
        [0, 0, 1],
    ),
    "the row after, nulls first": (
        lambda: F.lead("name").over(W.partitionBy().orderBy("number", "name")), ["b", "c", None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_function_of_a_row(spark: SparkSession, case: str) -> None:
    made, expected = CASES[case]
    rows = spark.createDataFrame(ROWS).select("name", made().alias("value")).orderBy("name")
    assert [row["value"] for row in rows.collect()] == expected


def test_aggregates(spark: SparkSession) -> None:
    pair = F.struct("number", "name")
    row = spark.createDataFrame(ROWS).agg(
        F.min(pair).alias("lowest"),  # a null in a struct comes first
        F.max(pair).alias("highest"),
        F.min_by("text", pair).alias("text_of_lowest"),
        F.max_by("text", "name").alias("text_of_last"),  # which is null
        F.collect_list("number").alias("numbers"),
        F.count_distinct("number", "name").alias("pairs"),
        F.sum("number").alias("total"),
        F.bool_and(F.col("number") > 1).alias("all_above"),
    ).first()  # fmt: skip
    assert row is not None
    assert row.asDict(recursive=True) == {
        "lowest": {"number": None, "name": "a"},
        "highest": {"number": 2, "name": "c"},
        "text_of_lowest": " 7 ",
        "text_of_last": None,
        "numbers": [2, 2],
        "pairs": 2,
        "total": 4,
        "all_above": True,
    }


def test_rows_of_a_list(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS)
    each = frame.select("name", F.posexplode("ints")).orderBy("pos")
    assert [tuple(row) for row in each.collect()] == [("b", 0, 3), ("b", 1, 1), ("b", 2, 3)]
    outer = frame.select("name", F.explode_outer("ints").alias("int")).orderBy("name", "int")
    assert [tuple(row) for row in outer.collect()] == [
        ("a", None), ("b", 1), ("b", 3), ("b", 3), ("c", None),
    ]  # fmt: skip
