"""Spans of time that meet others, without comparing each with each.

Askers travel along as one struct, `e`, and are never joined with themselves: a plan that did so for
every question would double with each.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame

from insync.pipeline.local.dispatch import F

BUCKET_MS: Final = 60_000


def packed(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    others = [name for name in frame.columns if name not in key]
    return frame.select(*key, F.struct(*others).alias("e"))


def unpacked(met: DataFrame, key: tuple[str, ...], facts: dict[str, Column]) -> DataFrame:
    """One row per key, with the computed columns."""
    named = [fact.alias(name) for name, fact in facts.items()]
    grouped = met.groupBy(*key).agg(F.first("e").alias("e"), *named)
    return grouped.select(*key, "e.*", *facts)


def meet(
    asking: DataFrame, rows: DataFrame, key: tuple[str, ...], *, from_ms: Column, to_ms: Column
) -> DataFrame:
    """Every asker with every row whose closed interval overlaps its own; alone if there is none.

    Rows bring `row_from_ms` and `row_to_ms`. Both are cut into buckets of time; two intervals may
    share several, and meet in the first that both have.
    """
    first_of_rows = _bucket(F.col("row_from_ms"))
    in_buckets = asking.withColumn(
        "bucket", F.explode_outer(F.sequence(_bucket(from_ms), _bucket(to_ms)))
    )
    also = rows.select(
        *(F.col(name).alias(f"row_{name}") for name in key),
        *(name for name in rows.columns if name not in key),
        F.explode(F.sequence(first_of_rows, _bucket(F.col("row_to_ms")))).alias("row_bucket"),
    )
    same = [F.col(name) == F.col(f"row_{name}") for name in (*key, "bucket")]
    here = F.col("bucket") == F.greatest(_bucket(from_ms), first_of_rows)
    overlap = (F.col("row_from_ms") <= to_ms) & (F.col("row_to_ms") >= from_ms)
    matches = reduce(and_, [*same, here, overlap])
    return in_buckets.join(also, matches, "left")


def _bucket(at_ms: Column) -> Column:
    return F.floor(at_ms / BUCKET_MS)
