"""Telemetry tables out of blocks: one pass over the topic for all tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its common name

from insync.pipeline.io.telemetry_schemas import TELEMETRY
from insync.telemetry.schemas import APPENDS, FETCHES, TABLES
from insync.telemetry.tables import read_block

ONE_ROW_EACH: Final = ("topic", "partition", "leader", "leader_epoch", "seq", "at_ms")
"""Identifies a row of `fetches` or `appends`. Two rows with the same values are duplicates."""

LABEL: Final = ("broker", "started_at_ms", "block")
"""Identifies a block. Two blocks with the same values are duplicates."""

REPORTED_MAX: Final = 100  # bad blocks by offset; all are counted


def each_once(rows: DataFrame, table: str) -> DataFrame:
    """Without duplicate rows. Rows without `seq` (from Kafka's logs) are all kept."""
    if table not in (FETCHES.name, APPENDS.name):
        return rows
    # dropDuplicates treats nulls as equal.
    numbered = rows.where(F.col("seq").isNotNull()).dropDuplicates(list(ONE_ROW_EACH))
    return numbered.unionByName(rows.where(F.col("seq").isNull()))


def decoded(blocks: DataFrame, table: str) -> DataFrame:
    """The rows of one table, in the order of the topic; a duplicate block counts once."""
    is_of_table = (F.col("table") == table) & F.col("error").isNull()
    return (
        blocks.where(is_of_table)
        .select(*LABEL, "data")
        .mapInArrow(partial(_decode, table), TELEMETRY[table])
    )


def _decode(table: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    seen: set[tuple[int, int, int]] = set()
    for batch in batches:
        labels = zip(*(batch.column(name).to_pylist() for name in LABEL), strict=True)
        for name, block in zip(labels, batch.column("data"), strict=True):
            if name not in seen:
                seen.add(name)
                yield from read_block(TABLES[table], block.as_buffer()).to_batches()


@dataclass(slots=True)
class Findings:
    """What else a pass over the topic reports: duplicate and unreadable blocks, lost rows."""

    blocks: int = 0
    repeated_blocks: int = 0
    bad_blocks: int = 0
    bad: list[str] = field(default_factory=list)  # the first of them
    dropped_rows: dict[str, int] = field(default_factory=dict)  # by brokers, for lack of memory

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def notes(self) -> list[str]:
        lines = [f"brokers dropped {n} rows of {t}" for t, n in self.dropped_rows.items()]
        if self.repeated_blocks:
            lines.append(f"{self.repeated_blocks} duplicate blocks were ignored")
        if self.bad_blocks:
            lines.append(f"{self.bad_blocks} blocks could not be read and were skipped:")
        return [*lines, *(f"  {line}" for line in self.bad)]


def findings(blocks: DataFrame) -> Findings:
    is_bad = F.col("error").isNotNull()
    good = blocks.where(~is_bad)
    counted = good.agg(
        F.count("*").alias("blocks"),
        F.countDistinct(*LABEL).alias("distinct"),
    ).first()
    assert counted is not None, "an aggregate has a row"
    bad = blocks.where(is_bad)
    # A label counts the rows that its broker has dropped since it started: the last has them all.
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
