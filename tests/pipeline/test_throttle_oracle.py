"""Throttles on Spark are judged as by the dumb computation, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from frames import as_frames
from pyspark.sql import SparkSession
from throttle_oracle import spans

from insync.pipeline.throttle_table import SCHEMA, throttle

pytestmark = pytest.mark.process
Row = dict[str, Any]

START_MS = 1_700_000_000_000
MB = 1_000_000


def throttled_seconds(seed: int, side: str, inbound: Sequence[int], brokers: int = 20) -> list[Row]:
    """Moves that end, hang or never begin, under limits that are changed, too low or gone."""
    random = Random(seed)  # noqa: S311 - chance, not secrecy
    rows = []
    for broker in range(1, brokers + 1):
        limit: int | None = 10 * MB
        tells_lag = random.random() < 0.8
        tells_inbound = broker % 7 != 0
        # Where anybody tells it, it is known to all: who does not is alone, an hour later.
        at_ms, lag = START_MS + 1_000 * random.randrange(5) + 3_600_000 * (not tells_inbound), 0
        stays = random.random() < 0.3  # its lag falls no more
        for _ in range(random.randrange(30, 200)):
            at_ms += 1_000 + random.choice((0, 0, 0, 0, 0, 3))
            what = random.random()
            if what < 0.03:
                limit = random.choice((None, 0, 5 * MB, 10 * MB))
            elif what < 0.05:
                at_ms += random.choice((8_999, 9_000, 9_001, 20_000))
            elif what < 0.10 and not (stays and lag):
                lag = random.choice((30 * MB, 55 * MB + 1, 120 * MB))
            sent = random.randrange(8 * MB)
            lag = max(0, lag - (random.choice((0, 1, -1)) if stays else sent))
            row = {
                "at_ms": at_ms,
                "broker": broker,
                "side": side,
                "limit_bytes_per_s": limit,
                "bytes": sent,
                "exempt_bytes": random.randrange(sent + 1),
                "held_back_partitions": random.choice((0, 0, 1, 7)),
                "replica_lag_bytes": lag if tells_lag and random.random() < 0.95 else None,
                "bytes_in": random.choice(inbound) if tells_inbound else None,
            }
            rows += [row] * random.choice((1, 1, 1, 2))
    random.shuffle(rows)
    return rows


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["broker"], row["side"], row["began_at_ms"]))


@pytest.mark.parametrize(
    ("side", "inbound", "network"),
    [
        ("leader", [MB] * 40 + [3 * MB + 1, 5 * MB], None),
        ("leader", [MB] * 40 + [3 * MB + 1], 9 * MB),
        ("follower", [MB] * 40 + [3 * MB + 1], 9 * MB),
    ],
)
def test_whatever_was_throttled(
    spark: SparkSession, side: str, inbound: list[int], network: int | None
) -> None:
    seconds = throttled_seconds(1, side, inbound)
    expected = in_order(spans(seconds, network=network, factor=2))
    above = {"above-inbound"} if network is None else {"safe", "starves-clients"}
    assert {row["verdict"] for row in expected} == {"cannot-finish", None} | above
    assert {row["progress"] for row in expected} == {None, "done", "moving", "stuck"}
    assert {row["is_open"] for row in expected} == {True, False}
    assert {row["use"] is None for row in expected} == {True, False}
    assert any(row["real_ms"] for row in expected)
    frame = as_frames(spark, {"throttle": seconds})["throttle"]
    rows = throttle(frame, network_bytes_per_s=network, replication_factor=2).collect()
    found = in_order([row.asDict() for row in rows])
    for one, other in zip(found, expected, strict=True):
        differing = {
            name: (one[name], other[name]) for name in SCHEMA.names if one[name] != other[name]
        }
        assert not differing, (one, "found, expected:", differing)
