"""The Spark data source `insync`: telemetry tables straight from brokers, in batches and streams.

    spark.read.format("insync").option("kafka.bootstrap.servers", B).option("table", "fetches")

| option | meaning |
|---|---|
| `kafka.bootstrap.servers` | brokers to ask; one is enough |
| `table` | one of the telemetry tables, or `blocks`: a row per block of the topic, with its bytes |
| `mode` | `PERMISSIVE` (default): blocks that cannot be read are skipped, and each task that met \
some says so in its log; `FAILFAST`: they end the read. `blocks` always has a row for each |
| `maxBlocksPerTrigger` | of a stream, over all partitions (default: 1000) |
| `readTimeoutMs` | how long to wait for a partition's leader (default: 30000) |
| `endingOffsets` | of a batch: {"partition": offset}, where to stop (default: the current end) |

A module named `pyspark_insync` lets every session with Insync installed find it by itself. Blocks
published twice are taken once where one task sees both; `each_once` in `tables` settles the rest.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from insync.pipeline.io.blocks import (
    Block,
    Cluster,
    Contents,
    Span,
    another_topic,
    blocks,
    contents,
    topic_id,
    went_back,
)
from insync.pipeline.io.telemetry_schemas import SOURCE_TABLES
from insync.rules.refusals import Refusal
from insync.telemetry.blocks import BadBlock
from insync.telemetry.collection import read_rows
from insync.telemetry.schemas import TELEMETRY_TOPIC

BOOTSTRAP: Final = "kafka.bootstrap.servers"
BLOCKS_TABLE: Final = "blocks"
MODES: Final = ("PERMISSIVE", "FAILFAST")
BLOCKS_PER_TRIGGER: Final = 1_000  # some 4 million rows at most
READ_TIMEOUT_MS: Final = 30_000
BLOCKS_PER_BATCH: Final = 16  # of Arrow, in the table `blocks`: each may have megabytes

logger = logging.getLogger(__name__)

Placed = tuple[int, Block]  # with the partition of the topic it lies in
Offsets = dict[str, int]  # by partition of the topic; keys are strings, as Spark keeps them in JSON
Position = dict[str, Any]  # the topic's id, and offsets in it: what Spark keeps of a stream


class BadOption(Refusal):
    """An option of the source that is missing, unknown or means nothing."""


class BadBlocks(Refusal):
    """Blocks that cannot be read, in mode FAILFAST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, checked."""

    cluster: Cluster
    table: str
    is_strict: bool
    blocks_per_trigger: int
    ending_offsets: Mapping[str, int] | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        bootstrap = options.get(BOOTSTRAP)
        if not bootstrap:
            raise BadOption(f"say which brokers: .option({BOOTSTRAP!r}, 'HOST:PORT,...')")
        return cls(
            cluster=Cluster(
                bootstrap=bootstrap,
                patience_ms=_number(options, "readTimeoutMs", READ_TIMEOUT_MS),
            ),
            table=checked_table(options.get("table")),
            is_strict=fails_fast(options.get("mode", MODES[0])),
            blocks_per_trigger=_number(options, "maxBlocksPerTrigger", BLOCKS_PER_TRIGGER),
            ending_offsets=_offsets(options.get("endingOffsets")),
        )


def checked_table(name: str | None) -> str:
    if name not in SOURCE_TABLES:
        known = ", ".join(SOURCE_TABLES)
        raise BadOption(f"there is no table {name!r}; option 'table' is one of {known}")
    return name


def fails_fast(mode: str) -> bool:
    if mode.upper() not in MODES:
        raise BadOption(f"mode is {mode.upper()!r}; it is one of {', '.join(MODES)}")
    return mode.upper() == "FAILFAST"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise BadOption(f"{name} is {text!r}; write a whole number above 0")
    return int(text)


def _offsets(text: str | None) -> Mapping[str, int] | None:
    if text is None:
        return None
    try:
        offsets = json.loads(text)
    except ValueError:
        offsets = None
    if not isinstance(offsets, dict) or not all(type(each) is int for each in offsets.values()):
        raise BadOption(f"endingOffsets is {text!r}; write a JSON object of partition and offset")
    return offsets


class TelemetrySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "insync"

    def schema(self) -> StructType:
        return SOURCE_TABLES[SourceOptions.read(self.options).table]

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(SourceOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        return StreamReader(SourceOptions.read(self.options), schema)


class SpanPartition(InputPartition):
    """One task's work."""

    def __init__(self, span: Span) -> None:
        super().__init__((span.partition, span.start, span.end))
        self.span = span


class Rows:
    """What reads a span, in whichever process: batches and streams differ only in the spans."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        known = SOURCE_TABLES[options.table].names
        unknown = [name for name in schema.names if name not in known]
        if unknown:
            raise BadOption(f"table {options.table} has no column {', '.join(unknown)}")
        self.options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition), "one of ours"
        span, wanted = partition.span, to_arrow_schema(self._schema)
        placed = ((span.partition, block) for block in blocks(self.options.cluster, span))
        for table in tables_of(self.options.table, placed, is_strict=self.options.is_strict):
            yield from table.select(wanted.names).cast(wanted).to_batches()


def tables_of(table: str, blocks: Iterable[Placed], *, is_strict: bool) -> Iterator[pa.Table]:
    """One table's rows, or those of `blocks`; an unreadable block is reported, or raises."""
    if table == BLOCKS_TABLE:
        yield from _inventory(blocks)
        return
    seen: set[tuple[int, int, int]] = set()
    bad = repeated = 0
    for partition, block in blocks:
        if block.label is not None and block.label.table != table:
            continue
        try:
            rows = _rows(block)
        except BadBlock as refusal:
            text = f"{TELEMETRY_TOPIC}-{partition} offset {block.offset}: {refusal}"
            if is_strict:
                raise BadBlocks(text) from None
            bad += 1
            logger.warning("%s; the block is skipped", text)
            continue
        assert block.label is not None, "rows have a label"
        if block.label.name in seen:
            repeated += 1
            continue
        seen.add(block.label.name)
        yield rows
    if bad or repeated:
        logger.warning(
            "%s: skipped %d blocks that cannot be read and %d duplicates",
            TELEMETRY_TOPIC,
            bad,
            repeated,
        )


def _rows(block: Block) -> pa.Table:
    if block.label is None:
        raise BadBlock(block.error)
    return read_rows(block.label, block.data)


def _inventory(blocks: Iterable[Placed]) -> Iterator[pa.Table]:
    schema = to_arrow_schema(SOURCE_TABLES[BLOCKS_TABLE])
    rows: list[dict[str, Any]] = []
    for partition, block in blocks:
        rows.append(_inventory_row(partition, block))
        if len(rows) == BLOCKS_PER_BATCH:
            yield pa.Table.from_pylist(rows, schema)
            rows = []
    if rows:
        yield pa.Table.from_pylist(rows, schema)


def _inventory_row(partition: int, block: Block) -> dict[str, Any]:
    row: dict[str, Any] = {"partition": partition, "offset": block.offset}
    label = block.label
    if label is not None:
        row |= {
            "table": label.table,
            "broker": label.broker,
            "started_at_ms": label.started_at_ms,
            "block": label.block,
            "rows": label.rows,
            "dropped": list(label.dropped.items()),
        }
    try:
        _rows(block)
    except BadBlock as refusal:
        return row | {"error": str(refusal)}
    return row | {"data": block.data}


class BatchReader(Rows, DataSourceReader):
    """Everything between where the topic begins and where it ends when the read is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        ends = self.options.ending_offsets or {}
        spans = contents(self.options.cluster).spans
        ended = [
            Span(partition=each.partition, start=each.start, end=min(each.end, end))
            for each in spans
            for end in [ends.get(str(each.partition), each.end)]
        ]
        # Spark needs at least one task, also without rows.
        return [SpanPartition(each) for each in ended if each.start < each.end] or [
            SpanPartition(Span(partition=0, start=0, end=0))
        ]


class StreamReader(Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are per partition of the topic; a checkpoint holds them, so a restart goes on.

    It has the topic's id too: in a topic that was created again, offsets are of other blocks.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Contents | None = None  # where `availableNow` ends
        self._behind_since_s: float | None = None

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's
        now = self._now()
        return _position(now, {str(each.partition): each.start for each in now.spans})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        return ReadMaxRows(self.options.blocks_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        self._target = self._now()

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802 - Spark's
        now = self._target or self._now()
        _check_topic(start, now.topic_id)
        began, ends = start["offsets"], _ends(now)
        # A partition that was added since begins at its beginning; an end never lies before.
        begun = {name: began.get(name, 0) for name in {**began, **ends}}
        self._check_ends(begun, ends)
        ahead = {name: max(0, ends.get(name, 0) - at) for name, at in begun.items()}
        if isinstance(limit, ReadAllAvailable):
            return _position(now, {name: at + ahead[name] for name, at in begun.items()})
        assert isinstance(limit, ReadMaxRows), "the limit is the one that was requested"
        taken = shared(ahead, limit.max_rows)
        return _position(now, {name: at + taken[name] for name, at in begun.items()})

    def reportLatestOffset(self) -> Position:  # noqa: N802 - Spark's
        now = self._now()
        return _position(now, _ends(now))

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        # A batch that was cut off is planned again before anything else.
        _check_topic(end, topic_id(self.options.cluster))
        began = start["offsets"]
        spans = [
            Span(partition=int(name), start=began.get(name, 0), end=at)
            for name, at in end["offsets"].items()
        ]
        return [SpanPartition(each) for each in spans if each.start < each.end]

    def _check_ends(self, begun: Offsets, ends: Offsets) -> None:
        """An end may go back for a moment; for long, or where this run ends, blocks were lost."""
        behind = [name for name, at in begun.items() if at > ends.get(name, 0)]
        if not behind:
            self._behind_since_s = None
            return
        now_s = time.monotonic()
        self._behind_since_s = self._behind_since_s or now_s
        is_for_long = now_s > self._behind_since_s + self.options.cluster.patience_ms / 1_000
        if is_for_long or self._target is not None:
            raise went_back(int(behind[0]), ends.get(behind[0], 0), begun[behind[0]])

    def _now(self) -> Contents:
        return contents(self.options.cluster)


def _position(topic: Contents, offsets: Offsets) -> Position:
    return {"topic_id": topic.topic_id, "offsets": offsets}


def _ends(topic: Contents) -> Offsets:
    return {str(each.partition): each.end for each in topic.spans}


def _check_topic(former: Position, now_id: str) -> None:
    if former.get("topic_id") != now_id:
        raise another_topic(now_id, former.get("topic_id"))


def shared(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Share a limit fairly: no partition gets more than it has, and none waits for ever."""
    shares = dict.fromkeys(wanted, 0)
    left = limit
    hungry = sorted(name for name, count in wanted.items() if count)
    while left and hungry:
        each = max(1, left // len(hungry))
        for name in hungry:
            share = min(each, wanted[name] - shares[name], left)
            shares[name] += share
            left -= share
        hungry = [name for name in hungry if shares[name] < wanted[name]]
    return shares
