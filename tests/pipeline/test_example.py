"""The example is a notebook: its cells run one by one, with known results for a known record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.testing.cluster import Cluster
from support.pipeline.exported_tables import LIMIT_BYTES_PER_S, throttled_record, write
from support.pipeline.telemetry_topic import SETTINGS, Topic

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.insync_cluster(brokers=1, settings=SETTINGS, scope="module"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "replication_analysis.py"
README = EXAMPLE.parents[1] / "README.md"
MARK = re.compile(r"^\s*# %%.*$", re.MULTILINE)
POLICIES = ("caught-up", "lag-begin", "messages", "pending-reads", "true-lag")


@pytest.fixture(scope="module")
def brokers(insync_module_cluster: Cluster) -> str:
    """One that has the record in its telemetry topic, and records nothing itself."""
    topic = Topic(insync_module_cluster)
    for number, (table, rows) in enumerate(throttled_record().items()):
        if rows:
            topic.block(number % 2, table, rows)
    return insync_module_cluster.bootstrap


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("exported"), throttled_record()))


def cells() -> list[str]:
    return MARK.split(EXAMPLE.read_text())


@pytest.mark.long
@pytest.mark.parametrize("source", ["folder", "brokers"])
def test_the_cells_run_in_order(
    source: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    monkeypatch.setattr("sys.argv", [EXAMPLE.name, request.getfixturevalue(source)])
    tasks = spark.conf.get("spark.sql.shuffle.partitions")
    notebook: dict[str, Any] = {}
    *work, cleaning_up = cells()
    for cell in work:
        exec(compile(cell, EXAMPLE.name, "exec"), notebook)  # noqa: S102 - as a notebook does
    check_episodes(notebook)
    check_what_if(notebook)
    check_the_others(notebook)
    assert views(spark) == {"episodes", "lag", "what_if"}
    exec(compile(cleaning_up, EXAMPLE.name, "exec"), notebook)  # noqa: S102
    assert views(spark) == set()
    assert not notebook["out_of_sync"].is_cached
    assert spark.conf.get("spark.sql.shuffle.partitions") == tasks
    assert spark.range(3).count() == 3  # the session is ours, and goes on


def views(spark: SparkSession) -> set[str]:
    return {row["tableName"] for row in spark.sql("SHOW TABLES").collect()}


def test_the_example_of_the_readme_runs(
    brokers: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (shown,) = (block for block in blocks if "insync.pipeline" in block)
    assert "127.0.0.1:9092" in shown
    exec(shown.replace("127.0.0.1:9092", brokers), {"spark": spark})  # noqa: S102
    lines = [line.replace(" ", "").split("|")[2:] for line in capsys.readouterr().out.splitlines()]
    rows = {(row[2], row[3]): row[6] for row in lines if row[:1] == ["orders"]}
    assert rows == {
        (policy, limit_ms): shrinks
        for policy in ("caught-up", "true-lag")
        for limit_ms, shrinks in (("10000", "1"), ("30000", "0"))
    }


def check_episodes(notebook: dict[str, Any]) -> None:
    """Follower 3 fetched last at 4.910 s: out 10.001 s later, and in again at 17.011 s."""
    (episode,) = notebook["out_of_sync"].collect()
    assert (episode["topic"], episode["partition"], episode["follower"]) == ("orders", 0, 3)
    assert (episode["cause"], episode["ending"], episode["out_ms"]) == ("stuck", "rejoined", 2_100)
    (joined,) = notebook["kept_by"].collect()
    assert (joined["follower"], joined["cause"], joined["out_ms"]) == (3, "stuck", 2_100)
    # It lacked what came at 5 s until its fetch at 17.010 s.
    assert joined["lag_ms_max"] in {12_009, 12_010}
    assert joined["without_shrinks"] == [f"{policy} 30000" for policy in POLICIES]


def check_what_if(notebook: dict[str, Any]) -> None:
    """Silent for 12.1 s: every rule puts it out at 5 s and at 10 s, none at 30 s."""
    verdicts = {
        (row["policy"], row["lag_time_max_ms"]): (row["shrinks"], row["flaps"])
        for row in notebook["overall"].collect()
    }
    # Out for 7 s is no flap under 5 s; out for 2 s is one under 10 s.
    wanted = {5_000: (1, 0), 10_000: (1, 1), 30_000: (0, 0)}
    assert verdicts == {
        (policy, limit_ms): wanted[limit_ms] for policy in POLICIES for limit_ms in wanted
    }
    (advice,) = notebook["advice"].collect()
    assert advice["verdict"] == "too-short"  # 20 s are no day


def check_the_others(notebook: dict[str, Any]) -> None:
    (limit,) = notebook["limits"].collect()
    assert (limit["limit_bytes_per_s"], limit["use"]) == (LIMIT_BYTES_PER_S, 0.5)
    statuses = {(row["level"], row["name"]): row["status"] for row in notebook["daily"].collect()}
    assert statuses["topic", "orders"] == "warning"  # a replica was out, and is back
