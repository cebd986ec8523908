"""Spark's own Kafka connector on our brokers: batch, stream and sink; the telemetry topic too."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from insync.pipeline import tables_from_kafka
from insync.pipeline.io.blocks import Cluster as TelemetryCluster
from insync.pipeline.io.blocks import contents
from insync.pipeline.io.session import session
from insync.pipeline.io.telemetry_schemas import TELEMETRY
from insync.telemetry.schemas import TELEMETRY_TOPIC
from insync.testing.cluster import Cluster
from peers.apache_kafka import SPARK_POM, classpath
from support.cluster.clients import consumer_of, create_topic, eventually

pytestmark = pytest.mark.interop

COUNT = 5_000
WITHIN_S = 120


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.jars": classpath(SPARK_POM).replace(os.pathsep, ","),
        "spark.sql.shuffle.partitions": "2",
    }
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with session(master="local[2]", settings=settings, log=log) as started:
        yield started


@pytest.fixture(scope="module")
def filled(spark: SparkSession, cluster: Cluster) -> str:
    """Written by Spark's sink."""
    create_topic(cluster, "from-spark", partitions=3)
    numbers = spark.range(COUNT).select(
        F.col("id").cast("string").alias("key"), F.concat(F.lit("v"), "id").alias("value")
    )
    numbers.write.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap).option(
        "topic", "from-spark"
    ).save()
    return "from-spark"


def values(rows: DataFrame) -> list[tuple[str, str]]:
    records = rows.select(F.col("key").cast("string"), F.col("value").cast("string")).collect()
    return sorted((row["key"], row["value"]) for row in records)


WANTED = sorted((str(number), f"v{number}") for number in range(COUNT))


def test_a_batch_reads_what_the_sink_wrote(
    spark: SparkSession, cluster: Cluster, filled: str
) -> None:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    rows = reader.option("subscribe", filled).load()
    assert values(rows) == WANTED
    assert rows.select("partition").distinct().count() == 3
    half = reader.option("endingOffsets", '{"from-spark":{"0":100,"1":100,"2":100}}')
    assert half.option("subscribe", filled).load().count() == 300


def test_a_stream_reads_on_and_writes_to_another_topic(
    spark: SparkSession, cluster: Cluster, filled: str, tmp_path: Path
) -> None:
    create_topic(cluster, "copied", partitions=2)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    source = reader.option("subscribe", filled).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", str(COUNT // 3)).load().select("key", "value")
    for _ in range(2):  # the second finds that all is done
        writer = rows.writeStream.format("kafka").option("topic", "copied")
        query = (
            writer.option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WITHIN_S)
        assert query.exception() is None
    copied = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    assert values(copied.option("subscribe", "copied").load()) == WANTED


@pytest.mark.usefixtures("filled")
def test_telemetry_is_the_same_as_through_our_own_source(
    spark: SparkSession, cluster: Cluster
) -> None:
    """Of a copy of the topic: the connector sees no internal one."""
    ours = spark.read.format("insync").option("kafka.bootstrap.servers", cluster.bootstrap)
    eventually(
        lambda: not ours.option("table", "fetches").load().isEmpty(),
        within_s=WITHIN_S,
        what="the brokers have published telemetry of their followers",
    )
    ends = copy_telemetry(cluster, "telemetry-copy")
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    records = reader.option("subscribe", "telemetry-copy").load()
    ours = ours.option("endingOffsets", json.dumps(ends))
    for table in TELEMETRY:
        tables, wanted = tables_from_kafka(records, table), ours.option("table", table).load()
        assert tables.schema == wanted.schema
        rows = sorted(map(str, tables.collect()))
        assert rows == sorted(map(str, wanted.collect())), table
        assert rows or table not in ("fetches", "appends", "configs")


def copy_telemetry(cluster: Cluster, to: str) -> dict[int, int]:
    """As any mirror would, all that is there now; returns where each partition ended."""
    spans = contents(TelemetryCluster(bootstrap=cluster.bootstrap, patience_ms=30_000)).spans
    create_topic(cluster, to, partitions=len(spans))
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    consumer = consumer_of(cluster)
    unread = {each.partition: each.end for each in spans if each.start < each.end}
    consumer.assign([TopicPartition(TELEMETRY_TOPIC, number, 0) for number in unread])
    deadline_s = time.monotonic() + WITHIN_S
    while unread:
        assert time.monotonic() < deadline_s, f"unread: {unread}"
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        number, offset = message.partition(), message.offset()
        end = unread.get(number, 0)
        if offset < end:
            producer.produce(to, message.value(), message.key(), partition=number)
        if offset + 1 >= end:
            unread.pop(number, None)
    consumer.close()
    assert producer.flush(WITHIN_S) == 0
    return {each.partition: each.end for each in spans}
