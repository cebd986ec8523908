"""Options, spans and limits of the source `insync`, without Spark's Java side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from insync.pipeline import source
from insync.pipeline.blocks import Cluster, Span, Unreadable
from insync.pipeline.source import Asked, BadOption, StreamReader, shared
from insync.pipeline.telemetry_schemas import SOURCE_TABLES

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
        Asked.read(GOOD | options)


def test_a_column_that_the_table_has_not() -> None:
    asked = Asked.read(GOOD)
    with pytest.raises(BadOption, match="table isr has no column lag"):
        source.Rows(asked, StructType([StructField("lag", LongType())]))


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 50), max_size=6), st.integers(1, 100))
def test_a_limit_is_shared_whole_and_fairly(wanted: dict[str, int], limit: int) -> None:
    given_out = shared(wanted, limit)
    assert all(0 <= given_out[name] <= count for name, count in wanted.items())
    assert sum(given_out.values()) == min(limit, sum(wanted.values()))
    served = [given_out[name] for name, count in wanted.items() if given_out[name] < count]
    assert not served or max(served) - min(served) <= 1 + limit // 2
    if limit >= len(wanted):
        assert all(given_out[name] for name, count in wanted.items() if count)


def stream(monkeypatch: pytest.MonkeyPatch, ends: dict[int, int], **options: str) -> StreamReader:
    def spans(_: Cluster) -> list[Span]:
        return [Span(partition=number, start=2, end=end) for number, end in ends.items()]

    monkeypatch.setattr(source, "spans", spans)
    return StreamReader(Asked.read(GOOD | options), SOURCE_TABLES["isr"])


def test_a_stream_goes_on_from_its_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {0: 10, 1: 4}
    reader = stream(monkeypatch, ends, maxBlocksPerTrigger="4")
    at = reader.initialOffset()
    assert at == {"0": 2, "1": 2}
    seen = {0: list[int](), 1: list[int]()}
    limit = reader.getDefaultReadLimit()
    for _ in range(3):
        until = reader.latestOffset(at, limit)
        for part in reader.partitions(at, until):
            assert isinstance(part, source.SpanPartition)
            seen[part.span.partition] += range(part.span.start, part.span.end)
        at = until
    assert seen == {0: list(range(2, 10)), 1: [2, 3]}
    assert reader.latestOffset(at, limit) == at
    assert reader.partitions(at, at) == []
    ends |= {0: 12, 2: 3}  # more came, and a partition was added
    assert reader.latestOffset(at, ReadAllAvailable()) == {"0": 12, "1": 4, "2": 3}


def test_available_now_ends_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {0: 10}
    reader = stream(monkeypatch, ends)
    reader.prepareForTriggerAvailableNow()
    ends[0] = 20
    assert reader.latestOffset({"0": 2}, ReadMaxRows(100)) == {"0": 10}
    assert reader.latestOffset({"0": 12}, ReadMaxRows(100)) == {"0": 12}  # of an earlier run


def test_a_topic_made_anew_is_refused_but_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream(monkeypatch, {0: 5}, readTimeoutMs="10")
    now_s = [100.0]
    monkeypatch.setattr("insync.pipeline.source.time.monotonic", lambda: now_s[0])
    assert reader.latestOffset({"0": 7}, ReadAllAvailable()) == {"0": 7}
    now_s[0] += 1
    with pytest.raises(Unreadable, match=r"ends at 5, before 7 .* made anew"):
        reader.latestOffset({"0": 7}, ReadAllAvailable())
