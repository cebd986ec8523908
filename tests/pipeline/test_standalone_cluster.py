"""A real Spark cluster of a master and two workers gives what one machine gives; so does
spark-submit, and the example runs either way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from insync.pipeline.tables.registry import STEPS
from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import arrow_schema, write_parquet
from insync.testing.cluster import HOST, free_ports
from support.cluster.clients import eventually
from support.pipeline.exported_tables import record
from support.pipeline.random_tables import throttled_seconds

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long]

HOME = Path(pyspark.__file__).parent
PYTHON = sys.executable
EXAMPLES = Path(__file__).parents[2] / "examples"
WITHIN_S = 600.0
POLICIES = ("caught-up", "lag-begin", "messages", "pending-reads", "true-lag")
WORKERS = 2
ENVIRONMENT = {
    **os.environ,
    "SPARK_HOME": str(HOME),
    "SPARK_LOCAL_IP": HOST,
    "PYSPARK_PYTHON": PYTHON,
}


def export(folder: Path, *, partitions: int) -> Path:
    """The record in each partition of its topic, in a file for each worker, and some throttles."""
    tables = record() | {"throttle": throttled_seconds(1, "leader", [1_000_000], brokers=3)}
    for name, rows in tables.items():
        (folder / name).mkdir()
        for worker in range(WORKERS):
            if "partition" in TABLES[name].names:
                numbers = range(worker, partitions, WORKERS)
                own_rows = [row | {"partition": number} for number in numbers for row in rows]
            else:
                own_rows = [] if worker else rows
            table = pa.Table.from_pylist(own_rows, arrow_schema(TABLES[name]))
            write_parquet(table, folder / name / f"part-{worker:05d}.parquet")
    return folder


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("standalone")
    (port,) = free_ports(1)
    url = f"spark://{HOST}:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as running:
        arguments = ("--host", HOST, "--port", str(port), "--webui-port", "0")
        running.enter_context(_Daemon(folder / "master", f"{deploy}.master.Master", *arguments))
        workers = [
            running.enter_context(
                _Daemon(
                    folder / name,
                    f"{deploy}.worker.Worker",
                    "--host",
                    HOST,
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--webui-port",
                    "0",
                    "--work-dir",
                    str(folder),
                    url,
                )
            )
            for name in (f"worker-{number}" for number in range(1, WORKERS + 1))
        ]
        for worker in workers:
            worker.await_words("Successfully registered with master")
        yield url


class _Daemon:
    """A process of Spark's, and all that it starts."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._command = [str(HOME / "bin" / "spark-class"), *arguments]

    def __enter__(self) -> _Daemon:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # a group of its own
        self._process.wait()

    def await_words(self, words: str) -> None:
        eventually(
            lambda: words in self._log.read_text(errors="replace"), within_s=WITHIN_S, what=words
        )


def run(*command: object) -> str:
    done = subprocess.run(
        [str(each) for each in command], env=ENVIRONMENT, capture_output=True, text=True,
        timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(out: Path) -> dict[str, list[str]]:
    return {
        table.name: sorted(map(str, pq.read_table(table).to_pylist()))
        for table in out.iterdir()
        if table.is_dir()
    }


def pipeline(
    command: str, *program: object, source: Path, out: Path, more: tuple[str, ...] = ()
) -> Any:
    output = run(
        *program, "pipeline", command, "--source", source, "--out", out, "--json", *more,
        "--lag-time-max-ms", "5000,10000,30000",
    )  # fmt: skip
    return json.loads(output)


@pytest.mark.slice(2)
def test_a_cluster_and_spark_submit_give_what_one_machine_gives(
    master: str, tmp_path: Path
) -> None:
    """Every table; what a driver may be sent is less than any table of fetches holds."""
    source = tmp_path / "source"
    source.mkdir()
    export(source, partitions=100)
    local, cluster, submitted = (tmp_path / name for name in ("local", "cluster", "submitted"))
    insync = (PYTHON, "-m", "insync")
    done = pipeline("report", *insync, source=source, out=local)
    assert set(done["rows"]) == set(STEPS)
    assert all(count > 0 for name, count in done["rows"].items() if name != "problems")
    pipeline("report", *insync, source=source, out=cluster, more=on_cluster(master))
    submit = (HOME / "bin" / "spark-submit", "--master", master, EXAMPLES / "submit.py")
    pipeline("what-if", *submit, source=source, out=submitted)
    expected = rows(local)
    assert rows(cluster) == expected
    tables = rows(submitted)
    assert {"what_if", "recommendation"} <= tables.keys()
    assert tables == {name: expected[name] for name in tables}


def on_cluster(master: str) -> tuple[str, ...]:
    settings = {
        "spark.driver.maxResultSize": "1m",
        "spark.sql.shuffle.partitions": "2",  # a task of nothing takes 40 ms, and 200 are usual
    }
    conf = (each for name, value in settings.items() for each in ("--conf", f"{name}={value}"))
    return ("--master", master, *conf)


@pytest.mark.parametrize(
    "is_submitted",
    [
        pytest.param(False, id="python", marks=pytest.mark.slice(4)),
        pytest.param(True, id="spark-submit", marks=pytest.mark.slice(1)),
    ],
)
def test_the_example_is_a_program_too(master: str, tmp_path: Path, *, is_submitted: bool) -> None:
    exported = export(tmp_path, partitions=2)
    program = [HOME / "bin" / "spark-submit", "--master", master] if is_submitted else [PYTHON]
    output = run(*program, EXAMPLES / "replication_analysis.py", exported)
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    left = [
        row for row in shown if row[:4] in (["orders", number, "3", "frozen"] for number in "01")
    ]
    assert len(left) == 4  # both partitions, as episodes and joined with the other tables
    # Both are out at 5 and 10 s, and neither at 30 s, whatever the rule.
    verdicts = {(row[0], row[1]): row[2] for row in shown if len(row) == 5 and row[0] in POLICIES}
    assert verdicts == {
        (policy, limit_ms): shrinks
        for policy in POLICIES
        for limit_ms, shrinks in (("5000", "2"), ("10000", "2"), ("30000", "0"))
    }
