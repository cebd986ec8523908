"""Spark's own Kafka connector on our brokers: batch, stream and sink on ordinary topics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_helpers import create_topic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from insync.pipeline.session import session
from insync.testing.cluster import Cluster
from peers.apache_kafka import SPARK_POM, classpath

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
    found = rows.select(F.col("key").cast("string"), F.col("value").cast("string")).collect()
    return sorted((row["key"], row["value"]) for row in found)


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
