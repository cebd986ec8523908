"""Folders in an object store: what tasks read, with which keys, and what is refused in a line."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from pyspark.sql import SparkSession

from insync.pipeline.io import shards, storage
from insync.pipeline.io.columns import BadTables
from insync.pipeline.replay import events
from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.lag import lag_exported
from insync.pipeline.tables.registry import is_exported
from insync.pipeline.tables.what_if import what_if_exported
from peers.object_store import BUCKET, ObjectStore, object_store
from support.pipeline.exported_tables import record, write, write_split
from support.pipeline.sample_tables import some_partitions
from support.pipeline.table_strategies import arrow


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


def use(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    monkeypatch.setattr(storage, "hadoop_settings", lambda _: settings.get)


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}", "file://{}/"])
def test_a_local_folder_is_read_by_path_or_url(form: str, tmp_path: Path) -> None:
    path = tmp_path / "with a space"
    write(path, record())
    url = form.format(path)
    folder = storage.folder(None, url)
    assert folder.is_local
    assert folder.path == str(path)
    assert list(folder.listed("fetches")) == ["part-00000.parquet"]
    assert folder.listed("nothing") == {}
    assert is_exported(url)
    assert not is_exported(url.rstrip("/") + "-not")


@pytest.mark.parametrize("url", ["hdfs://host/x", "abfss://c@host/x", "gs://bucket/x", "dbfs:/x"])
def test_other_storage_is_left_to_spark(url: str) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(storage.SparkOnly, match=rf"^{url}: only Spark reads {scheme}:"):
        storage.folder(None, url)
    assert not is_exported(url)


def test_a_buckets_own_settings_come_first() -> None:
    settings = {"fs.s3a.endpoint": "a", "fs.s3a.bucket.b.endpoint": "c", "fs.s3a.access.key": ""}
    of_b = storage.settings_of_bucket(settings.get, "b")
    of_other = storage.settings_of_bucket(settings.get, "other")
    assert (of_b("endpoint"), of_other("endpoint")) == ("c", "a")
    assert of_b("access.key") is None


def test_keys_of_an_unknown_class_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    known = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
    settings = {"fs.s3a.endpoint": "http://127.0.0.1:1"}
    for providers in (known, f"{known}, software.amazon.awssdk.ProfileCredentialsProvider"):
        use(monkeypatch, settings | {"fs.s3a.aws.credentials.provider": providers})
        assert not storage.folder(None, "s3a://b/x").is_local
    use(monkeypatch, settings | {"fs.s3a.aws.credentials.provider": f"{known},com.acme.Vault"})
    with pytest.raises(storage.SparkOnly, match=r"only Spark has the credentials of Vault"):
        storage.folder(None, "s3a://b/x")
    use(monkeypatch, settings | {"fs.s3a.proxy.host": "proxy"})
    with pytest.raises(storage.SparkOnly, match="only Spark goes through the proxy"):
        storage.folder(None, "s3a://b/x")


@pytest.mark.process
def test_tasks_read_an_export_from_an_object_store(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = record()
    url = store.upload(write(tmp_path, tables), "export")
    use(monkeypatch, store.settings())
    folder = pickle.loads(pickle.dumps(storage.folder(None, url)))  # noqa: S301 - to a task
    files = shards.exported_files(folder)
    assert files == shards.exported_files(storage.folder(None, tmp_path))
    assert shards.with_rows(folder, "configs", files["configs"]) == ["part-00000.parquet"]
    assert shards.with_rows(folder, "stalls", files["stalls"]) == []
    columns = {"fetches": events.FETCH_COLUMNS}
    rows = shards._OfFiles(folder, files, [[0]], columns, lambda each: each["fetches"])
    ids = pyarrow.RecordBatch.from_pydict({"id": [0]})
    read = [row["seq"] for batch in rows(iter([ids])) for row in batch.to_pylist()]
    assert sorted(read) == sorted(row["seq"] for row in tables["fetches"])
    assert is_exported(url)
    assert not is_exported(f"s3a://{BUCKET}/nothing-there")


@pytest.mark.process
@pytest.mark.parametrize(
    ("bucket", "changes", "says"),
    [
        ("missing", {}, "there is no such bucket"),
        (BUCKET, {"access_key": "AKIAUNKNOWN"}, "the object store does not know the access key"),
        (BUCKET, {"secret_key": "wrong"}, "the secret key is not that of the access key"),
        (BUCKET, {"endpoint": "http://127.0.0.1:1"}, "the object store does not answer"),
    ],
)
def test_what_an_object_store_refuses_is_one_line(
    store: ObjectStore,
    bucket: str,
    changes: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, store.settings(**changes))
    with pytest.raises(BadTables) as refused:
        is_exported(f"s3a://{bucket}/export")
    assert str(refused.value) == f"s3a://{bucket}/export cannot be read: {says}"


@pytest.mark.long
@pytest.mark.spark
def test_spark_makes_the_same_tables_of_an_object_store(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """With the session's settings, and without Hadoop's own package for S3."""
    local = write_split(tmp_path, arrow(some_partitions(12)), files=3)
    url = store.upload(local, "of-spark")
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[1_000])

    def rows(folder: Any) -> list[str]:
        made = what_if_exported(spark, folder, grid=grid), lag_exported(spark, folder)
        return sorted(str(row) for table in made for row in table.collect())

    for name, value in store.settings().items():
        spark.conf.set(name, value)
    try:
        assert is_exported(url, spark)
        assert rows(url) == rows(local)
    finally:
        for name in store.settings():
            spark.conf.unset(name)
