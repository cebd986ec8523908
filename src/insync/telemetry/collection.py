"""Everything in one partition of the telemetry topic, block by block; what is no block is counted.

For readers' side only, as `tables` is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from insync.telemetry.blocks import BadBlock, Label, read_label
from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import join, read_block
from insync.wire import batches
from insync.wire.batches import BatchHeader, CorruptBatch

REPORTED_MAX = 100  # corrupt blocks by offset; all are counted


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
        for header in batches.whole_batches(data):
            if header.next_offset <= offset:
                continue
            batch = memoryview(data)[header.position : header.end_position]
            try:
                for at, (key, value) in self._records(batch, header):
                    if at >= offset:
                        self._take_block(at, key, value)
            except CorruptBatch as refusal:
                self._report(header.base_offset, str(refusal))
            offset = header.next_offset
        return offset

    def _records(
        self, batch: memoryview, header: BatchHeader
    ) -> Iterator[tuple[int, tuple[bytes | None, bytes | None]]]:
        batches.check(batch, header._replace(position=0))
        return enumerate(batches.records(batch), start=header.base_offset)

    def _take_block(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        try:
            label = read_label(key)
            rows = read_block(TABLES[label.table], value or b"")
            if rows.num_rows != label.rows:
                raise BadBlock(f"{rows.num_rows} rows where its label says {label.rows}")
        except BadBlock as refusal:
            self._report(offset, str(refusal))
            return
        self.blocks += 1
        self._note_drops(label)
        name = (label.broker, label.started_at_ms, label.block)
        if name in self._seen:
            self.repeated += 1
            return
        self._seen.add(name)
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
