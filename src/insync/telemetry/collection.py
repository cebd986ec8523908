"""Everything in one partition of the telemetry topic, block by block; what is no block is counted.

For readers' side only, as `tables` is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import pyarrow as pa

from insync.telemetry.blocks import BadBlock, Label, read_label
from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import join, read_block
from insync.wire import batches
from insync.wire.batches import CorruptBatch

REPORTED_MAX = 100  # corrupt blocks by offset; all are counted


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


class Part(NamedTuple):
    """What one batch of the topic holds from an offset on."""

    offset: int
    next_offset: int
    records: Sequence[Record]
    trouble: str  # why nothing in it can be read; empty when all can


def parts(data: bytes | memoryview, *, offset: int) -> Iterator[Part]:
    headers = list(batches.whole_batches(data))
    for header, following in zip_longest(headers, headers[1:]):
        if header.next_offset <= offset:
            continue
        batch = memoryview(data)[header.position : header.end_position]
        records: list[Record] = []
        trouble = ""
        try:
            batches.check(batch, header._replace(position=0))
            for at, (key, value) in enumerate(batches.records(batch), start=header.base_offset):
                if at >= offset:
                    records.append(Record(at, key, value))
        except CorruptBatch as refusal:
            trouble = str(refusal)
        # A broken header must not lead past the good batches that follow it.
        next_offset = header.next_offset if following is None else following.base_offset
        yield Part(max(offset, header.base_offset), next_offset, records, trouble)


def read_rows(label: Label, value: bytes | None) -> pa.Table:
    rows = read_block(TABLES[label.table], value or b"")
    if rows.num_rows != label.rows:
        raise BadBlock(f"{rows.num_rows} rows where its label says {label.rows}")
    return rows


@dataclass(slots=True)
class Collection:
    blocks: int = 0
    repeated: int = 0  # published twice
    corrupt: int = 0
    reports: list[tuple[int, str]] = field(default_factory=list)  # offset, what is wrong
    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in TABLES})
    drops: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)  # by broker's life
    _seen: set[tuple[int, int, int]] = field(default_factory=set)

    def take(self, data: bytes | memoryview, *, offset: int) -> int:
        """Whole batches from `offset` on; returns where to go on."""
        for part in parts(data, offset=offset):
            if part.trouble:
                self._report(part.offset, part.trouble)
            for record in part.records:
                self._take_block(record)
            offset = part.next_offset
        return offset

    def _take_block(self, record: Record) -> None:
        try:
            label = read_label(record.key)
            rows = read_rows(label, record.value)
        except BadBlock as refusal:
            self._report(record.offset, str(refusal))
            return
        self.blocks += 1
        self._note_drops(label)
        if label.name in self._seen:
            self.repeated += 1
            return
        self._seen.add(label.name)
        self.tables[label.table].append(rows)

    def _note_drops(self, label: Label) -> None:
        life = self.drops.setdefault((label.broker, label.started_at_ms), Counter())
        for table, count in label.dropped.items():
            life[table] = max(life[table], count)

    def _report(self, offset: int, why: str) -> None:
        self.corrupt += 1
        if len(self.reports) < REPORTED_MAX:
            self.reports.append((offset, why))

    def joined(self, name: str) -> pa.Table:
        return join(TABLES[name], self.tables[name])
