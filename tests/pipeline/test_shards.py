"""Lists on their way through Spark, which counts the bytes of them all again for each row."""

from __future__ import annotations

import pyarrow as pa

from insync.pipeline.shards import _with_lists, empty


def test_lists_come_back_as_they_were() -> None:
    columns = ("topic", "isr_before")
    texts = {"topic": ["a", "b", "c", "d"], "isr_before": ["1,2,30", "7", "", None]}
    found = _with_lists(pa.table(texts), "isr")
    assert found.schema == empty("isr", columns).schema
    assert found["isr_before"].to_pylist() == [[1, 2, 30], [7], [], None]
    assert found["topic"].to_pylist() == ["a", "b", "c", "d"]


def test_tables_without_lists_stay_as_they_are() -> None:
    rows = pa.table({"topic": ["a"], "seq": [5]})
    assert _with_lists(rows, "appends") is rows
