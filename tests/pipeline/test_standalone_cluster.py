"""A real Spark cluster of a master and two workers gives what one machine gives; so does
spark-submit, and the example runs."""

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

import pyarrow.parquet as pq
import pyspark
import pytest
from cluster_helpers import eventually
from exported_tables import record, write

from insync.testing.cluster import HOST, free_ports

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long]

HOME = Path(pyspark.__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
WITHIN_S = 300.0
ENVIRONMENT = {
    **os.environ,
    "SPARK_HOME": str(HOME),
    "SPARK_LOCAL_IP": HOST,
    "PYSPARK_PYTHON": sys.executable,
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of the topic, so that both workers have something to do."""
    folder = write(tmp_path_factory.mktemp("exported"), record())
    for table in folder.iterdir():
        rows = pq.read_table(table / "part-00000.parquet")
        if "partition" in rows.column_names:
            others = [row | {"partition": 1} for row in rows.to_pylist()]
            pq.write_table(rows.from_pylist(others, rows.schema), table / "part-00001.parquet")
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
            for name in ("worker-1", "worker-2")
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
        table.name: sorted(map(str, pq.read_table(table).to_pylist())) for table in out.iterdir()
    }


def what_if(*program: object, source: Path, out: Path, more: tuple[str, ...] = ()) -> Any:
    said = run(
        *program, "pipeline", "what-if", "--source", source, "--out", out, "--json", *more,
        "--lag-time-max-ms", "5000,10000,30000",
    )  # fmt: skip
    return json.loads(said)


def test_a_cluster_and_spark_submit_give_what_one_machine_gives(
    master: str, exported: Path, tmp_path: Path
) -> None:
    insync = (sys.executable, "-m", "insync")
    local = what_if(*insync, source=exported, out=tmp_path / "local")
    assert local["rows"]["what_if"] > 0
    on_cluster = ("--master", master)
    what_if(*insync, source=exported, out=tmp_path / "cluster", more=on_cluster)
    submit = (HOME / "bin" / "spark-submit", "--master", master, EXAMPLES / "submit.py")
    what_if(*submit, source=exported, out=tmp_path / "submitted")
    assert rows(tmp_path / "cluster") == rows(tmp_path / "local")
    assert rows(tmp_path / "submitted") == rows(tmp_path / "local")


def test_the_example_runs(exported: Path) -> None:
    said = run(sys.executable, EXAMPLES / "replication_analysis.py", exported)
    assert said.count("stuck") == 2
    assert "false_evictions" in said
