"""The format `insync` returns the rows of the topic, and reports what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from insync.pipeline.io.block_tables import decoded, each_once, findings
from insync.pipeline.io.output import in_a_line
from insync.telemetry.schemas import TELEMETRY_TOPIC
from insync.testing.cluster import Cluster
from support.cluster.clients import partitions_of
from support.pipeline.telemetry_topic import SETTINGS, Topic, append_row, block_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.insync_cluster(settings=SETTINGS, scope="module"),
]

ROWS = [[append_row(seq + 10 * block) for seq in range(10)] for block in range(6)]
ALL_ROWS = [row for rows in ROWS for row in rows]
STALL = {"at_ms": 5, "broker": 3, "stall_ms": 40}
ISR = {
    "at_ms": 9, "decided_at_ms": 8, "decided_by": "leader", "topic": "orders", "partition": 0,
    "leader": 1, "leader_epoch": 2, "version": 3, "isr_before": [1, 2, 3], "isr_after": [1, 3],
    "replica": 2, "change": "shrink", "reason": None, "replica_end": None, "leader_end": 7,
    "caught_up_at_ms": 1, "seq": 4, "cause": "lag-time", "late_ms": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def topic(insync_module_cluster: Cluster) -> Topic:
    """Two partitions: six good blocks of appends, some of them twice, and six that are none."""
    topic = Topic(insync_module_cluster)
    for number, rows in enumerate(ROWS):
        key, value = topic.block(number % 2, "appends", rows)
        if number % 3 == 0:
            topic.send(number % 2, key, value)
        if number == 1:
            topic.send(1, key, value[:-150])  # truncated
            topic.send(1, key, b"")
            topic.send(1, b"no label", value)
            topic.send(1, topic.label("appends", 3), value)  # not as many as there are
            topic.send(1, topic.label("nothing", 10), value)
            topic.send(1, None, value)
    topic.block(0, "stalls", [STALL], dropped={"fetches": 3})
    topic.block(0, "isr", [ISR], dropped={"fetches": 5, "isr": 1})
    topic.block(1, "stalls", [STALL | {"at_ms": 6}], broker=2, dropped={"fetches": 2})
    return topic


def read(spark: SparkSession, cluster: Cluster, table: str, **options: Any) -> DataFrame:
    reader = spark.read.format("insync").option("kafka.bootstrap.servers", cluster.bootstrap)
    return reader.option("table", table).options(**options).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["at_ms"])


@pytest.mark.usefixtures("topic")
def test_rows_are_those_of_the_good_blocks_each_once(spark: SparkSession, cluster: Cluster) -> None:
    assert rows_of(read(spark, cluster, "appends")) == ALL_ROWS
    assert rows_of(read(spark, cluster, "isr")) == [ISR]
    assert rows_of(read(spark, cluster, "elections")) == []


@pytest.mark.usefixtures("topic")
def test_every_block_is_in_the_inventory(spark: SparkSession, cluster: Cluster) -> None:
    blocks = read(spark, cluster, "blocks")
    assert rows_of(decoded(blocks, "appends")) == ALL_ROWS
    counts = findings(blocks)
    assert (counts.blocks, counts.repeated_blocks, counts.bad_blocks) == (11, 2, 6)
    assert counts.dropped_rows == {"fetches": 7, "isr": 1}
    assert [line.split(": ", 1)[0] for line in counts.bad] == [
        f"partition 1, offset {offset}" for offset in range(1, 7)
    ]
    assert "3" in counts.bad[3]
    assert "nothing" in counts.bad[4]


@pytest.mark.usefixtures("topic")
def test_failfast_ends_with_the_first_bad_block(spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(PySparkException) as refused:
        read(spark, cluster, "appends", mode="failfast").collect()
    assert in_a_line(refused.value).startswith(f"{TELEMETRY_TOPIC}-1 offset 1: no Arrow stream")


@pytest.mark.usefixtures("topic")
def test_a_narrow_schema_and_an_end(spark: SparkSession, cluster: Cluster) -> None:
    reader = spark.read.format("insync").option("kafka.bootstrap.servers", cluster.bootstrap)
    ends = json.dumps({"0": 1, "1": 1})
    reader = reader.option("table", "appends").option("endingOffsets", ends)
    rows = reader.schema("seq long, topic string").load().collect()
    assert sorted(rows) == [(row["seq"], "orders") for row in ROWS[0] + ROWS[1]]


@pytest.mark.usefixtures("topic")
def test_bad_options_are_reported_in_one_line(spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(PySparkException) as refused:
        read(spark, cluster, "nothing")
    assert in_a_line(refused.value).startswith("there is no table 'nothing'; option 'table' is one")


def test_rows_that_came_twice_under_other_labels(spark: SparkSession) -> None:
    twice = [append_row(1), append_row(1), append_row(2, partition=1), append_row(2)]
    unnumbered = [append_row(1) | {"seq": None}] * 2  # Kafka's logs have none
    frame = spark.createDataFrame(twice + unnumbered)
    assert each_once(frame, "appends").count() == 5
    assert each_once(frame, "isr").count() == 6


def test_a_table_as_a_stream_takes_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with Cluster(brokers=1, settings=SETTINGS) as cluster:
        topic = Topic(cluster)
        for sent in (ROWS[:4], ROWS[4:]):
            for number, rows in enumerate(sent):
                topic.block(number % 2, "appends", rows)
            reader = spark.readStream.format("insync").option("table", "appends")
            reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap)
            writer = reader.option("maxBlocksPerTrigger", "3").load().writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            assert writer.trigger(availableNow=True).start(out).awaitTermination(300)
    assert rows_of(spark.read.parquet(out)) == ALL_ROWS
    # Four blocks, three at a time, and then two.
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 3


def test_a_read_survives_a_failover_and_then_fails_with_a_timeout(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        topic = Topic(cluster, partitions=1)
        big = [append_row(seq) for seq in range(100)]
        value = block_of("appends", big)
        for _ in range(20):
            topic.send(0, topic.label("appends", 100), value)
        frame = read(spark, cluster, "appends", readTimeoutMs="20000")
        frame.explain()  # planned: where each partition ends is known
        cluster.kill(partitions_of(cluster, TELEMETRY_TOPIC)[0].leader)
        assert frame.count() == 2_000
        for broker, each in cluster.brokers.items():
            if each.is_running:
                cluster.kill(broker)
        late = read(spark, cluster, "appends", readTimeoutMs="1000")
        with pytest.raises(PySparkException) as refused:
            late.write.parquet(str(tmp_path / "out"))
        assert in_a_line(refused.value).startswith("cannot reach 127.0.0.1:")
