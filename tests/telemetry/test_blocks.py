"""Rows become blocks that pyarrow reads, with the types of the design and every value kept."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pytest

from insync.rules.leadership import Leadership, Rule
from insync.rules.policy import CaughtUp
from insync.rules.stalls import Stall
from insync.rules.values import BrokerId, LeaderEpoch, Offset
from insync.telemetry.blocks import BadBlock, Label, read_label, write_block, write_label
from insync.telemetry.collection import Collection
from insync.telemetry.recorder import Recorder
from insync.telemetry.rows import PublishKey, StallRow
from insync.telemetry.schemas import APPENDS, FETCHES, ISR, TABLES, TELEMETRY_TOPIC
from insync.telemetry.tables import arrow_schema, join, read_block
from insync.wire import batches

ANCHOR_MS = 1_700_000_000_000
LABEL = Label(table="stalls", broker=1, started_at_ms=5, block=0, rows=1, dropped={})

# Copied from the design, not from the code.
DESIGN = {
    "fetches": "at_ms seq topic partition leader leader_epoch follower offset leader_end_low "
    "leader_end_high high_watermark log_start bytes read_ms wait_ms outcome throttled repeats "
    "last_at_ms",
    "appends": "at_ms seq topic partition leader leader_epoch base_offset end_offset bytes",
    "isr": "at_ms decided_at_ms decided_by topic partition leader leader_epoch version isr_before "
    "isr_after replica change reason replica_end leader_end caught_up_at_ms seq cause late_ms",
    "isr_events": "at_ms topic partition leader leader_epoch number event version isr_before "
    "isr_after late_ms seq",
    "assignments": "at_ms topic partition leader leader_epoch version topic_id replicas adding "
    "removing",
    "elections": "at_ms topic partition leader_before leader_after leader_epoch cause",
    "stalls": "at_ms broker stall_ms drained_at_ms",
    "throttle": "at_ms broker side limit_bytes_per_s bytes exempt_bytes held_back_partitions "
    "replica_lag_bytes bytes_in",
    "configs": "at_ms scope name value",
}
IDS = {"partition", "leader", "leader_epoch", "follower", "replica", "broker"}
IDS |= {"leader_before", "leader_after"}
NAMES = {"topic", "outcome", "decided_by", "change", "reason", "cause", "scope", "name", "value"}
NAMES |= {"side", "event", "topic_id"}
LISTS = {"isr_before", "isr_after", "replicas", "adding", "removing"}


def designed_type(column: str) -> pa.DataType:
    if column in IDS:
        return pa.int32()
    if column in NAMES:
        return pa.string()
    if column in LISTS:
        return pa.list_(pa.int32())
    return pa.bool_() if column == "throttled" else pa.int64()


@pytest.mark.parametrize("name", DESIGN)
def test_the_tables_are_those_of_the_design(name: str) -> None:
    schema = arrow_schema(TABLES[name])
    wanted = DESIGN[name].split()
    assert schema.names[: len(wanted)] == wanted  # more may follow: readers ignore them
    for column in wanted:
        assert schema.field(column).type == designed_type(column), column
    assert set(TABLES) == set(DESIGN)


def new_recorder(buffer_bytes: int = 1 << 20) -> Recorder:
    return Recorder(broker=BrokerId(1), anchor_ms=ANCHOR_MS, buffer_bytes=buffer_bytes)


def rows_of(recorder: Recorder, name: str) -> list[dict[str, Any]]:
    rows = recorder.take()[name]
    block = write_block(TABLES[name], rows, anchor_ms=recorder.anchor_ms)
    return read_block(TABLES[name], block).to_pylist()  # type: ignore[no-any-return]


def test_a_fetch_and_an_append_are_read_back_as_recorded() -> None:
    recorder = new_recorder()
    record = recorder.lead(("größe", 7), LeaderEpoch(3))
    assert record is not None
    record.append(base=10, end=12, size_bytes=144, now_ms=50)
    record.fetch(
        2, offset=2**40, leader_end=2**40 + 5, high_watermark=2**40, log_start=4, size_bytes=99,
        at_ms=51, read_ms=7,
    )  # fmt: skip
    taken = recorder.take()
    own = {"topic": "größe", "partition": 7, "leader": 1, "leader_epoch": 3}
    (append,) = read_block(
        APPENDS, write_block(APPENDS, taken["appends"], anchor_ms=ANCHOR_MS)
    ).to_pylist()
    assert append == own | {
        "at_ms": ANCHOR_MS + 50, "seq": 0, "base_offset": 10, "end_offset": 12, "bytes": 144,
    }  # fmt: skip
    (fetch,) = read_block(
        FETCHES, write_block(FETCHES, taken["fetches"], anchor_ms=ANCHOR_MS)
    ).to_pylist()
    assert fetch == own | {
        "at_ms": ANCHOR_MS + 51, "seq": 1, "follower": 2, "offset": 2**40,
        "leader_end_low": 2**40 + 5, "leader_end_high": 2**40 + 5, "high_watermark": 2**40,
        "log_start": 4, "bytes": 99, "read_ms": 7, "wait_ms": 0, "outcome": "ok",
        "throttled": False, "repeats": 1, "last_at_ms": ANCHOR_MS + 51,
    }  # fmt: skip


def test_lists_and_unknown_values_are_read_back() -> None:
    recorder = new_recorder()
    record = recorder.lead(("t", 0), LeaderEpoch(0))
    assert record is not None
    three = frozenset(map(BrokerId, (3, 1, 2)))
    two = three - {BrokerId(2)}
    record.record_isr(None, three, two, replicas=three, version=4, now_ms=9)
    record.record_isr(None, two, three, replicas=three, version=5, now_ms=10)
    record.record_isr(None, three, two, replicas=two, version=6, now_ms=11)
    shrink, expand, moved = rows_of(recorder, ISR.name)
    assert (shrink["reason"], moved["reason"]) == ("its session ended", "moved away")
    assert (shrink["isr_before"], shrink["isr_after"]) == ([1, 2, 3], [1, 3])
    assert (expand["isr_before"], expand["isr_after"]) == ([1, 3], [1, 2, 3])
    assert (shrink["change"], expand["change"], shrink["replica"]) == ("shrink", "expand", 2)
    assert shrink["decided_by"] == "controller"
    unknown = ("decided_at_ms", "replica_end", "leader_end", "caught_up_at_ms")
    assert [shrink[name] for name in unknown] == [None] * 4


def test_a_repeated_proposal_keeps_the_lateness_of_the_first() -> None:
    """The time of a row is the first proposal's, and so is the delay in its reason."""
    recorder = new_recorder()
    record = recorder.lead(("t", 0), LeaderEpoch(0))
    assert record is not None
    one, two = BrokerId(1), BrokerId(2)
    both = frozenset((one, two))
    term = Leadership.begin(
        rule=Rule(policy=CaughtUp(lag_time_max_ms=1_000), fetch_wait_max_ms=100), leader=one,
        epoch=LeaderEpoch(0), replicas=(one, two), members=both, end=Offset(0),
        high_watermark=Offset(0), registered={}, now_ms=0,
    )  # fmt: skip
    proposal = term.propose_leave(frozenset((two,)))
    reasons = []
    for times in (((1_001, 0),), ((1_008, 7),), ((1_008, 7), (1_040, 2), (1_090, 9))):
        for now_ms, late_ms in times:
            record.record_proposal(proposal, "silent", now_ms=now_ms, late_ms=late_ms)
        record.record_isr(proposal, both, both - {two}, replicas=both, version=1, now_ms=2_000)
        (row,) = rows_of(recorder, ISR.name)
        assert row["decided_at_ms"] == ANCHOR_MS + times[0][0]
        assert row["late_ms"] == times[0][1]
        reasons.append(row["reason"])
    assert reasons == [
        "silent",
        "silent; decided 7 ms after the deadline",
        "silent; proposed again 82 ms later; decided 7 ms after the deadline",
    ]


def test_the_outcome_of_an_uncommitted_proposal_is_read_back() -> None:
    recorder = new_recorder()
    record = recorder.lead(("t", 0), LeaderEpoch(2))
    assert record is not None
    one, two, three = BrokerId(1), BrokerId(2), BrokerId(3)
    term = Leadership.begin(
        rule=Rule(policy=CaughtUp(lag_time_max_ms=1_000), fetch_wait_max_ms=100), leader=one,
        epoch=LeaderEpoch(2), replicas=(one, two, three), members={one, two}, end=Offset(0),
        high_watermark=Offset(0), registered={}, now_ms=0, version=5,
    )  # fmt: skip
    shrink, expand = term.propose_leave({two}), term.propose_join(three)
    both, replicas = frozenset((one, two)), (one, two, three)
    record.began(term.isr, now_ms=0)
    record.append(base=0, end=0, size_bytes=0, now_ms=0)
    record.record_proposal(shrink, "silent", now_ms=1_003, late_ms=2)
    record.record_isr(shrink, both, both, replicas=replicas, version=5, now_ms=1_004)  # refused
    record.record_proposal(expand, "level", now_ms=1_010)
    record.record_isr(expand, both, frozenset((one,)), replicas=replicas, version=6, now_ms=1_011)
    record.record_proposal(shrink, "silent", now_ms=1_012)
    record.record_isr(shrink, both, frozenset((one,)), replicas=replicas, version=6, now_ms=1_013)
    rows = rows_of(recorder, "isr_events")
    identity = {"topic": "t", "partition": 0, "leader": 1, "leader_epoch": 2}
    assert all(row.items() >= identity.items() for row in rows)
    columns = ("number", "event", "version", "isr_before", "isr_after", "late_ms", "seq")
    assert [(row["at_ms"] - ANCHOR_MS, *(row[name] for name in columns)) for row in rows] == [
        (0, 0, "began", 5, [1, 2], [1, 2], None, 0),
        (1_003, 1, "proposed", 5, [1, 2], [1], 2, 1),
        (1_004, 2, "refused", 5, [1, 2], [1], None, 1),
        (1_010, 3, "proposed", 5, [1, 2], [1, 2, 3], None, 1),
        (1_011, 4, "superseded", 5, [1, 2], [1, 2, 3], None, 1),
        (1_012, 5, "proposed", 5, [1, 2], [1], 0, 1),  # and committed: `isr` has that
    ]


def test_a_stall_is_recorded_when_its_sockets_are_drained() -> None:
    recorder = new_recorder()
    recorder.record_stall(Stall(began_at_ms=10, ended_at_ms=160))
    recorder.record_stall(Stall(began_at_ms=160, ended_at_ms=300))
    assert recorder.count == 0
    recorder.record_drain(now_ms=310)
    recorder.record_drain(now_ms=900)
    rows = [[row[name] for name in TABLES["stalls"].names] for row in rows_of(recorder, "stalls")]
    drained_at_ms = ANCHOR_MS + 310
    assert rows == [
        [ANCHOR_MS + 10, 1, 150, drained_at_ms],
        [ANCHOR_MS + 160, 1, 140, drained_at_ms],
    ]


def idle(record: Any, at_ms: int, *, offset: int = 5, follower: int = 2) -> None:
    record.fetch(
        follower, offset=offset, leader_end=5, high_watermark=5, log_start=0, size_bytes=0,
        at_ms=at_ms, merges_within_ms=500,
    )  # fmt: skip


def test_idle_fetches_are_merged_until_a_gap() -> None:
    """The design: identical, consecutive, at most the fetch wait and 100 ms apart."""
    recorder = new_recorder()
    record = recorder.lead(("t", 0), LeaderEpoch(0))
    for at_ms in (0, 500, 1_100, 1_701, 2_000):
        idle(record, at_ms)
        idle(record, at_ms, follower=3)
    rows = rows_of(recorder, FETCHES.name)
    spans = [(r["at_ms"] - ANCHOR_MS, r["last_at_ms"] - ANCHOR_MS, r["repeats"]) for r in rows]
    assert spans == [(0, 1_100, 3)] * 2 + [(1_701, 2_000, 2)] * 2
    assert [row["seq"] for row in rows] == [0, 1, 2, 3]


def test_fetches_that_differ_or_were_drained_are_not_merged() -> None:
    recorder = new_recorder()
    record = recorder.lead(("t", 0), LeaderEpoch(0))
    idle(record, 0)
    idle(record, 100, offset=4)
    idle(record, 200)
    assert [row["repeats"] for row in rows_of(recorder, FETCHES.name)] == [1, 1, 1]
    idle(record, 300)
    assert [row["repeats"] for row in rows_of(recorder, FETCHES.name)] == [1]


def test_rows_without_room_are_counted_and_leave_a_gap() -> None:
    recorder = new_recorder(buffer_bytes=256 * 3)
    record = recorder.lead(("t", 0), LeaderEpoch(0))
    assert record is not None
    for end in range(1, 6):
        record.append(base=end - 1, end=end, size_bytes=1, now_ms=end)
    assert recorder.drops["appends"] == 2
    assert [row["seq"] for row in rows_of(recorder, APPENDS.name)] == [0, 1, 2]
    record.append(base=5, end=6, size_bytes=1, now_ms=6)
    assert [row["seq"] for row in rows_of(recorder, APPENDS.name)] == [5]


def test_the_telemetry_topic_itself_is_not_recorded() -> None:
    recorder = new_recorder()
    assert recorder.lead((TELEMETRY_TOPIC, 0), LeaderEpoch(0)) is None
    assert not recorder.is_needed


# Blocks that are none.


def stall_block() -> bytes:
    stall = StallRow(
        publish_key=PublishKey("", 1), at_ms=3, broker=1, stall_ms=200, drained_at_ms=204
    )
    return write_block(TABLES["stalls"], [stall], anchor_ms=0)


def test_a_block_with_a_missing_or_mistyped_column_is_refused() -> None:
    def stream(table: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    good = read_block(TABLES["stalls"], stall_block())
    more = good.append_column("new", pa.array(["x"]))
    assert read_block(TABLES["stalls"], stream(more)).equals(good)
    with pytest.raises(BadBlock, match="broker"):
        read_block(TABLES["stalls"], stream(good.drop_columns(["broker"])))
    with pytest.raises(BadBlock, match="2 columns"):
        read_block(TABLES["stalls"], stream(good.append_column("broker", pa.array([1]))))
    text = good.set_column(0, "at_ms", pa.array(["x"]))
    with pytest.raises(BadBlock, match="at_ms is string"):
        read_block(TABLES["stalls"], stream(text))


def test_every_cut_and_every_flipped_byte_is_a_block_or_a_refusal() -> None:
    block = stall_block()
    for size in range(len(block)):
        try_block(block[:size])
    for at in range(len(block)):
        try_block(block[:at] + bytes([block[at] ^ 0xFF]) + block[at + 1 :])


def try_block(data: bytes) -> None:
    try:
        read_block(TABLES["stalls"], data)
    except BadBlock:
        return


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"{",
        b"[]",
        b"7",
        b"[" * 5_000,
        json.dumps(asdict(LABEL) | {"table": "secrets"}).encode(),
        json.dumps(asdict(LABEL) | {"table": ["stalls"]}).encode(),
        json.dumps(asdict(LABEL) | {"rows": -1}).encode(),
        json.dumps(asdict(LABEL) | {"rows": 2**63}).encode(),
        json.dumps(asdict(LABEL) | {"broker": "1"}).encode(),
        json.dumps(asdict(LABEL) | {"dropped": 3}).encode(),
        json.dumps(asdict(LABEL) | {"dropped": {"x": 3}}).encode(),
        json.dumps(asdict(LABEL) | {"dropped": {"isr": None}}).encode(),
        json.dumps(asdict(LABEL) | {"more": 1}).encode(),
    ],
)
def test_a_malformed_label_is_refused(key: bytes | None) -> None:
    assert read_label(write_label(LABEL)) == LABEL
    with pytest.raises(BadBlock):
        read_label(key)


def test_corrupt_blocks_are_reported_by_offset_skipped_and_counted() -> None:
    good = (write_label(LABEL), stall_block())
    first = batches.build([good, (b"key", b"no block"), (write_label(LABEL), b"")], is_zipped=True)
    broken = bytearray(batches.build([good], base_offset=3))
    broken[-1] ^= 1  # the CRC no longer matches
    dropped = replace(LABEL, block=1, dropped={"fetches": 7})
    wrong_count = replace(LABEL, block=2, rows=2)
    last = batches.build(
        [(write_label(dropped), good[1]), (write_label(wrong_count), good[1]), good], base_offset=4
    )
    collection = Collection()
    assert collection.take(first + bytes(broken) + last, offset=0) == 7
    assert [offset for offset, _ in collection.reports] == [1, 2, 3, 5]
    assert (collection.corrupt, collection.blocks, collection.repeated) == (4, 3, 1)
    assert collection.joined("stalls").num_rows == 2
    assert sum(sum(of_table.values()) for of_table in collection.drops.values()) == 7


def test_rows_published_twice_are_read_once_and_in_order() -> None:
    recorder = new_recorder()
    record = recorder.lead(("t", 0), LeaderEpoch(0))
    assert record is not None
    for end in (1, 2, 3):
        record.append(base=end - 1, end=end, size_bytes=1, now_ms=10 - end)
    rows = recorder.take()["appends"]
    block = read_block(APPENDS, write_block(APPENDS, rows, anchor_ms=0))
    assert join(APPENDS, [block, block]).to_pylist() == block.to_pylist()[::-1]
