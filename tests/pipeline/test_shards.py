"""What a task is given: lists that went through Spark as texts, and shards of nothing."""

from __future__ import annotations

import pyarrow as pa

from insync.pipeline import events
from insync.pipeline.scenarios import Asked
from insync.pipeline.shards import _with_lists, empty
from insync.pipeline.what_if_table import Replay


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


def test_a_shard_with_nothing_in_it_has_no_partitions() -> None:
    nothing = {name: empty(name, columns) for name, columns in events.COLUMNS.items()}
    rows = Replay(Asked(policies=["caught-up"]))(nothing).to_pylist()
    assert {(row["level"], row["shrinks"]) for row in rows} <= {("all", 0)}
