"""Options, spans and limits of the source `insync`, without Spark's Java side."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from insync.pipeline.io import source
from insync.pipeline.io.blocks import Cluster, Contents, Span, Unreadable
from insync.pipeline.io.source import BadOption, SourceOptions, StreamReader, shared
from insync.pipeline.io.telemetry_schemas import SOURCE_TABLES

GOOD = {"kafka.bootstrap.servers": "127.0.0.1:1", "table": "isr"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.bootstrap.servers": ""}, "say which brokers"),
        ({"table": "nothing"}, "there is no table 'nothing'"),
        ({"mode": "lenient"}, "mode is 'LENIENT'"),
        ({"readTimeoutMs": "soon"}, "readTimeoutMs is 'soon'"),
        ({"maxBlocksPerTrigger": "0"}, "maxBlocksPerTrigger is '0'"),
        ({"endingOffsets": "[1]"}, "endingOffsets is '[1]'"),
        ({"endingOffsets": '{"0": "x"}'}, "endingOffsets is"),
        ({"endingOffsets": "{"}, "endingOffsets is"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption, match="^" + says.replace("[", r"\[").replace("(", r"\(")):
        SourceOptions.read(GOOD | options)


def test_an_unknown_column_is_refused() -> None:
    options = SourceOptions.read(GOOD)
    with pytest.raises(BadOption, match="table isr has no column lag"):
        source.Rows(options, StructType([StructField("lag", LongType())]))


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 50), max_size=6), st.integers(1, 100))
def test_a_limit_is_shared_whole_and_fairly(wanted: dict[str, int], limit: int) -> None:
    given_out = shared(wanted, limit)
    assert all(0 <= given_out[name] <= count for name, count in wanted.items())
    assert sum(given_out.values()) == min(limit, sum(wanted.values()))
    served = [given_out[name] for name, count in wanted.items() if given_out[name] < count]
    assert not served or max(served) - min(served) <= 1 + limit // 2
    if limit >= len(wanted):
        assert all(given_out[name] for name, count in wanted.items() if count)


def stream(
    monkeypatch: pytest.MonkeyPatch,
    ends: dict[int, int],
    *,
    ids: Iterable[str] = (),
    **options: str,
) -> StreamReader:
    """Of a topic that ends there; `ids` are those it has from one look to the next."""
    known = chain(ids, repeat("first"))

    def contents(_: Cluster) -> Contents:
        spans = [Span(partition=number, start=2, end=end) for number, end in ends.items()]
        return Contents(topic_id=next(known), spans=spans)

    monkeypatch.setattr(source, "contents", contents)
    monkeypatch.setattr(source, "topic_id", lambda _: next(known))
    return StreamReader(SourceOptions.read(GOOD | options), SOURCE_TABLES["isr"])


def at(**offsets: int) -> source.Position:
    """`p0=7`: partition 0 at offset 7."""
    return {"topic_id": "first", "offsets": {name[1:]: each for name, each in offsets.items()}}


def test_a_stream_resumes_from_its_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {0: 10, 1: 4}
    reader = stream(monkeypatch, ends, maxBlocksPerTrigger="4")
    now = reader.initialOffset()
    assert now == at(p0=2, p1=2)
    seen = {0: list[int](), 1: list[int]()}
    limit = reader.getDefaultReadLimit()
    for _ in range(3):
        until = reader.latestOffset(now, limit)
        for part in reader.partitions(now, until):
            assert isinstance(part, source.SpanPartition)
            seen[part.span.partition] += range(part.span.start, part.span.end)
        now = until
    assert seen == {0: list(range(2, 10)), 1: [2, 3]}
    # Spark compares texts: where nothing came, it must be the same to the letter.
    assert json.dumps(reader.latestOffset(now, limit)) == json.dumps(now)
    assert reader.partitions(now, now) == []
    ends |= {0: 12, 2: 3}  # more came, and a partition was added
    assert reader.latestOffset(now, ReadAllAvailable()) == at(p0=12, p1=4, p2=3)


def test_available_now_ends_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {0: 10}
    reader = stream(monkeypatch, ends)
    reader.prepareForTriggerAvailableNow()
    ends[0] = 20
    assert reader.latestOffset(at(p0=2), ReadMaxRows(100)) == at(p0=10)
    assert reader.latestOffset(at(p0=10), ReadMaxRows(100)) == at(p0=10)


def test_an_end_that_went_back_is_refused_but_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream(monkeypatch, {0: 5}, readTimeoutMs="10")
    now_s = [100.0]
    monkeypatch.setattr("insync.pipeline.io.source.time.monotonic", lambda: now_s[0])
    assert reader.latestOffset(at(p0=7), ReadAllAvailable()) == at(p0=7)
    now_s[0] += 1
    with pytest.raises(Unreadable, match=r"ends at 5, and ended at 7 before: blocks were lost"):
        reader.latestOffset(at(p0=7), ReadAllAvailable())


def test_available_now_does_not_wait_for_an_end_that_went_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be over before: without an error, and without a block."""
    reader = stream(monkeypatch, {0: 5})
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(Unreadable, match=r"ends at 5, and ended at 7"):
        reader.latestOffset(at(p0=7), ReadMaxRows(100))


def test_a_recreated_topic_is_refused_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    says = r"has the id second, and had first: the topic was created again"
    reader = stream(monkeypatch, {0: 9}, ids=["first", "second", "second"])
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(at(p0=2), ReadMaxRows(100)) == at(p0=9)
    with pytest.raises(Unreadable, match=says):
        reader.partitions(at(p0=2), at(p0=9))
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(Unreadable, match=says):
        reader.latestOffset(at(p0=2), ReadMaxRows(100))
