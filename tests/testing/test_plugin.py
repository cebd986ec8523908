"""The pytest plugin as a project that installs Insync uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster.clients import eventually

pytestmark = pytest.mark.process

TESTS = """
import pytest

@pytest.mark.insync_cluster(brokers=1)
def test_fails(insync_cluster):
    insync_cluster.kill(1)
    assert False, "on purpose"

def test_several(insync_cluster_factory):
    insync_cluster_factory(brokers=1)
    insync_cluster_factory(brokers=1)
    assert False, "on purpose"

@pytest.mark.insync_cluster(brokers=1, settings={"log.dirs": "/dev/null"})
def test_does_not_start(insync_cluster):
    pass

@pytest.mark.insync_cluster(brokers=1)
def test_passes(insync_cluster):
    pass
"""

SHARED = """
import pytest

pytestmark = pytest.mark.insync_cluster(brokers=1, scope="module")
clusters = []

def test_passes(insync_cluster):
    clusters.append(insync_cluster)

def test_fails(insync_cluster, insync_module_cluster):
    assert insync_cluster is insync_module_cluster is clusters[0]
    assert False, "on purpose"

@pytest.mark.insync_cluster(brokers=1)
def test_has_its_own(insync_cluster):
    assert insync_cluster is not clusters[0]

@pytest.mark.insync_cluster(brokers=2, scope="module")
def test_shares_with_no_other(insync_cluster):
    pass
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_project(tmp_path_factory.mktemp("project"), TESTS, "2 failed, 1 passed, 1 error")


def run_project(folder: Path, tests: str, summary: str) -> str:
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert summary in done.stdout, done.stdout
    return done.stdout


def section(report: str, title: str) -> str:
    return report.partition(f" {title} ")[2].partition("\n---")[0].partition("\n___")[0]


def test_a_failing_test_shows_its_brokers_logs(report: str) -> None:
    failures = report.partition("= FAILURES =")[2]
    assert " INFO " in section(failures, "log of broker 1, last 40 lines")
    for number in (1, 2):
        assert " INFO " in section(report, f"log of broker 1 of cluster {number}, last 40 lines")


def test_a_cluster_that_does_not_start_shows_why(report: str) -> None:
    shown = report.partition("ERROR at setup of test_does_not_start")[2]
    assert "cannot write to the data directory" in section(shown, "log of broker 1, last 40 lines")


def test_a_passing_test_shows_none(report: str) -> None:
    assert report.count("log of broker") == 4


def test_tests_of_a_module_may_share_a_cluster(tmp_path: Path) -> None:
    report = run_project(tmp_path, SHARED, "1 failed, 2 passed, 1 error")
    failures = report.partition("= FAILURES =")[2]
    assert " INFO " in section(failures, "log of broker 1, last 40 lines")
    assert "scope is 'function', or 'module' in the `pytestmark` of a module" in report


LEFT_ALONE = """
from pathlib import Path
from insync.testing.cluster import Cluster

with Cluster(brokers=1, folder=Path("cluster")) as cluster:
    print(cluster.brokers[1].pid, flush=True)
    input()
"""


def test_a_killed_test_run_leaves_no_broker(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", LEFT_ALONE],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        broker = int(starter.stdout.readline())
        starter.kill()
    try:
        eventually(lambda: not _runs(broker), within_s=10, what="the broker has ended")
    finally:
        if _runs(broker):
            os.kill(broker, signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that ended and was not reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
