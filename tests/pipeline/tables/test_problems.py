"""What is wrong with tables is counted, and what is missing is refused by name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from insync.pipeline.io.columns import BadTables
from insync.pipeline.replay import events
from insync.pipeline.replay.events import shard
from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.problems import COLUMNS, count_problems
from insync.rules.refusals import BadSetting
from support.pipeline.table_strategies import Tables, arrow


def row(at_ms: int, seq: int | None, **other: object) -> dict[str, object]:
    named = {"topic": "t", "partition": 0, "leader": 1, "leader_epoch": 3}
    return named | {"at_ms": at_ms, "seq": seq} | other


def append(at_ms: int, seq: int | None, end: int, **other: object) -> dict[str, object]:
    return row(at_ms, seq, base_offset=end - 1, end_offset=end, bytes=1, **other)


def fetch(at_ms: int, seq: int | None, **other: object) -> dict[str, object]:
    usual: dict[str, object] = {"follower": 2, "offset": 0, "leader_end_low": 0}
    return row(at_ms, seq, **(usual | other))


def counted(fetches: list[dict[str, object]], appends: list[dict[str, object]]) -> dict[str, int]:
    tables: Tables = {"fetches": fetches, "appends": appends}
    tables_of_arrow = arrow(tables)
    problems = count_problems(
        {name: tables_of_arrow[name].select(list(COLUMNS[name])) for name in COLUMNS}
    )
    assert {(one["topic"], one["partition"]) for one in problems.to_pylist()} <= {("t", 0)}
    return {one["problem"]: one["rows"] for one in problems.to_pylist()}


def test_valid_tables_have_no_problems() -> None:
    assert (
        counted([fetch(11, 1), fetch(12, 3, read_ms=4)], [append(10, 0, 1), append(11, 2, 2)]) == {}
    )
    assert counted([], []) == {}


def test_a_second_leader_in_an_epoch() -> None:
    appends = [append(10, 0, 1), append(30, 1, 2), append(20, 0, 2, leader=4)]
    assert counted([], appends) == {"two leaders in one epoch": 1}


def test_a_leader_that_records_rows_after_its_successor() -> None:
    """A leader that learns of its successor soon is not counted."""
    ended = [append(10, 0, 1), append(2_900, 1, 2), append(3_050, 2, 3), append(4_001, 3, 4)]
    followed = [append(3_000, 0, 3, leader=4, leader_epoch=4), append(9_000, 1, 4, leader_epoch=5)]
    assert counted([], [*ended, *followed]) == {"two leaders at once": 1}
    assert counted([fetch(4_500, 4)], [*followed, *ended]) == {"two leaders at once": 2}
    assert counted([], [*ended, followed[1]]) == {}


@pytest.mark.parametrize(("behind_ms", "rows"), [(3_600_000, 2), (1_001, 2), (1_000, 0)])
def test_a_leader_whose_clock_is_behind(behind_ms: int, rows: int) -> None:
    """A second is what leaders may differ by."""
    began_ms = 4_000_000 - behind_ms
    later = [append(began_ms + at, at, 3 + at, leader=4, leader_epoch=4) for at in (0, 1)]
    problems = counted(
        [], [append(4_000_000, 0, 1), *later, append(4_000_500, 0, 5, leader_epoch=5)]
    )
    assert problems.get("a leader's clock is behind", 0) == rows


def test_sequence_numbers_of_a_recreated_topic() -> None:
    appends = [append(10, 0, 1), append(20, 1, 2), append(9_000, 0, 1), append(9_010, 1, 2)]
    assert counted([], appends)["a number given twice"] == 2
    assert "seen twice" not in counted([], appends)


def test_rows_seen_twice_and_gaps() -> None:
    appends = [append(10, 0, 1), append(10, 0, 1), append(20, 5, 2)]
    assert counted([], appends) == {"seen twice": 1, "numbers are missing": 1}


def test_time_that_runs_backwards() -> None:
    assert counted([fetch(10, 0), fetch(5, 1)], []) == {"time runs backwards": 1}
    assert counted([], [append(10, 0, 1), append(9, 1, 2)]) == {"time runs backwards": 1}


def test_idle_fetches_of_one_follower_may_be_recorded_after_those_of_others() -> None:
    """They are recorded when the next append makes them count."""
    assert counted([fetch(8, 1, follower=3), fetch(5, 2)], [append(4, 0, 1)]) == {}


def test_leader_end_offsets_that_no_append_reaches() -> None:
    """As of a leader whose append rows were lost; a stalled one may have had them long ago."""
    fetches = [
        fetch(at_ms, at_ms, leader_end_low=end) for at_ms, end in ((1, 10), (2, 10), (3, 3_000))
    ]
    assert counted(fetches, []) == {"appends are missing": 1}
    assert counted(fetches, [append(0, 0, 2_999)]) == {"appends are missing": 1}
    assert counted(fetches, [append(0, 0, 3_000)]) == {}
    earlier = append(0, 0, 3_000, leader_epoch=2)
    assert counted(fetches, [earlier]) == {"appends are missing": 1}
    assert counted(fetches[:2], []) == {}


def test_fetches_that_cannot_be_judged() -> None:
    fetches = [fetch(1, None, leader_end_low=None), fetch(2, None, follower=1)]
    assert counted(fetches, []) == {"leader's end unknown": 1, "a leader's own fetch": 1}


def test_missing_columns_are_refused_by_name() -> None:
    tables_of_arrow = arrow({})
    with pytest.raises(BadTables, match="fetches has no column offset, repeats"):
        shard(
            tables_of_arrow["fetches"].drop(["offset", "repeats"]),
            tables_of_arrow["appends"],
            None,
            None,
        )
    with pytest.raises(BadTables, match="appends has no column end_offset"):
        shard(
            tables_of_arrow["fetches"], tables_of_arrow["appends"].drop(["end_offset"]), None, None
        )


def test_invalid_values_are_refused() -> None:
    with pytest.raises(BadSetting, match="fastest"):
        WhatIfGrid(policies=["fastest"])
    with pytest.raises(BadSetting, match="at least 1"):
        WhatIfGrid(lag_time_max_ms=[0])
    with pytest.raises(BadSetting, match="never reached"):
        WhatIfGrid(lag_time_max_ms=[2**63])
    with pytest.raises(BadSetting, match="0 scenarios"):
        WhatIfGrid(policies=[])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"partition": -5}, "partition is negative"),
        ({"partition": None}, "is null"),
        ({"topic": None}, "a topic is null"),
        ({"seq": -1}, "seq is negative"),
        ({"seq": 2**61}, "larger than any"),
        ({"seq": 2**62}, "larger than any"),
        ({"follower": None}, "is null"),
        ({"repeats": 10**12, "last_at_ms": 10**15}, "some `repeats` are wrong"),
    ],
)
def test_rows_that_no_leader_can_have_recorded(change: dict[str, Any], reason: str) -> None:
    tables_of_arrow = arrow({"fetches": [fetch(1, 1), fetch(2, 2) | change]})
    with pytest.raises(BadTables, match=reason):
        shard(tables_of_arrow["fetches"], tables_of_arrow["appends"], None, None)


def test_numbers_of_other_widths_are_numbers() -> None:
    tables_of_arrow = arrow({"fetches": [fetch(1, None), fetch(2, 2)]})
    narrow = tables_of_arrow["fetches"]
    for name in ("seq", "leader_end_low", "last_at_ms"):
        at = narrow.schema.get_field_index(name)
        narrow = narrow.set_column(at, name, narrow[name].cast(pa.int32()))
    assert shard(narrow, tables_of_arrow["appends"], None, None).partitions.tolist() == [0]
    at = narrow.schema.get_field_index("follower")
    wide = narrow.set_column(at, "follower", narrow["follower"].cast(pa.int64()))
    assert shard(wide, tables_of_arrow["appends"], None, None).partitions.tolist() == [0]
    for kind in (pa.int64(), pa.uint32()):
        with pytest.raises(BadTables, match="a broker or an epoch needs more"):
            shard(
                narrow.set_column(at, "follower", pa.array([2, 2**31], kind)),
                tables_of_arrow["appends"], None, None,
            )  # fmt: skip
    at = narrow.schema.get_field_index("offset")
    broken = narrow.set_column(at, "offset", pa.array([0.5, 1.0]))
    with pytest.raises(BadTables, match="whole numbers"):
        shard(broken, tables_of_arrow["appends"], None, None)


def test_large_partition_numbers_use_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tables_of_arrow = arrow({"fetches": [fetch(1, 1) | {"partition": 2_000_000_000}, fetch(2, 1)]})
    assert shard(
        tables_of_arrow["fetches"], tables_of_arrow["appends"], None, None
    ).partitions.tolist() == [
        0,
        2_000_000_000,
    ]
    monkeypatch.setattr(events, "DENSE_MAX", 0)
    few = arrow({"fetches": [fetch(1, 1) | {"topic": "b", "partition": 3}, fetch(2, 1)]})
    result = shard(few["fetches"], few["appends"], None, None)
    assert dict(zip(result.topics, result.partitions.tolist(), strict=True)) == {
        few["fetches"]["topic"][1].as_py(): 0,
        "b": 3,
    }
