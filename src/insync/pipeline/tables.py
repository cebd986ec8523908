"""Telemetry tables out of blocks: one pass over the topic, all tables of the same moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from insync.pipeline.telemetry_schemas import TELEMETRY
from insync.telemetry.schemas import APPENDS, FETCHES, TABLES
from insync.telemetry.tables import read_block

ONE_ROW_EACH: Final = ("topic", "partition", "leader", "leader_epoch", "seq", "at_ms")
"""A row of `fetches` or `appends` that was published twice is the same in these."""

REPORTED_MAX: Final = 100  # bad blocks by offset; all are counted


def each_once(rows: DataFrame, table: str) -> DataFrame:
    """Rows published twice, once. Those without a number (Kafka's logs) are left alone."""
    if table not in (FETCHES.name, APPENDS.name):
        return rows
    # Spark takes one null for another.
    numbered = rows.where(F.col("seq").isNotNull()).dropDuplicates(list(ONE_ROW_EACH))
    return numbered.unionByName(rows.where(F.col("seq").isNull()))


def decoded(blocks: DataFrame, table: str) -> DataFrame:
    """The rows of one table, in the order of the topic; a block that came twice counts once."""
    is_wanted = (F.col("table") == table) & F.col("error").isNull()
    return (
        blocks.where(is_wanted)
        .select("broker", "started_at_ms", "block", "data")
        .mapInArrow(partial(_decode, table), TELEMETRY[table])
    )


def _decode(table: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    seen: set[tuple[int, int, int]] = set()
    for batch in batches:
        *names, data = batch.columns
        labels = zip(*(column.to_pylist() for column in names), strict=True)
        for name, block in zip(labels, data, strict=True):
            if name not in seen:
                seen.add(name)
                yield from read_block(TABLES[table], block.as_buffer()).to_batches()


@dataclass(slots=True)
class Findings:
    """What a pass over the topic has to say beyond its rows."""

    blocks: int = 0
    repeated_blocks: int = 0
    bad_blocks: int = 0
    bad: list[str] = field(default_factory=list)  # the first of them
    dropped_rows: dict[str, int] = field(default_factory=dict)  # that brokers could not keep

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def notes(self) -> list[str]:
        lines = [f"brokers had to drop {n} rows of {t}" for t, n in self.dropped_rows.items()]
        if self.repeated_blocks:
            lines.append(f"{self.repeated_blocks} blocks came twice and were taken once")
        if self.bad_blocks:
            lines.append(f"{self.bad_blocks} blocks could not be read and are left out:")
        return [*lines, *(f"  {line}" for line in self.bad)]


def findings(blocks: DataFrame) -> Findings:
    is_bad = F.col("error").isNotNull()
    good = blocks.where(~is_bad)
    counted = good.agg(
        F.count("*").alias("blocks"),
        F.countDistinct("broker", "started_at_ms", "block").alias("distinct"),
    ).first()
    assert counted is not None, "an aggregate has a row"
    bad = blocks.where(is_bad)
    # A label counts what its broker had lost by then in this life: the last one has them all.
    lost = (
        good.select("broker", "started_at_ms", F.explode("dropped").alias("table", "rows"))
        .groupBy("broker", "started_at_ms", "table")
        .agg(F.max("rows").alias("rows"))
        .groupBy("table")
        .agg(F.sum("rows").alias("rows"))
        .orderBy("table")
    )
    return Findings(
        blocks=counted["blocks"],
        repeated_blocks=counted["blocks"] - counted["distinct"],
        bad_blocks=bad.count(),
        bad=[
            f"partition {row['partition']}, offset {row['offset']}: {row['error']}"
            for row in bad.orderBy("partition", "offset").limit(REPORTED_MAX).collect()
        ],
        dropped_rows={row["table"]: row["rows"] for row in lost.collect()},
    )
