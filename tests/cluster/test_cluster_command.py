"""`insync cluster` and `insync broker` as scripts use them, and what they refuse."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from insync.cli.cluster_supervisor import stop_brokers
from insync.testing.cluster import HOST, Cluster, free_ports
from support.cluster.clients import eventually

pytestmark = pytest.mark.process
INSYNC = Path(sys.executable).with_name("insync")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INSYNC, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command: list[str | Path] = [INSYNC, "cluster", "start", "--data-dir", folder, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def some_port(count: int = 3) -> int:
    """The first of several free ports in a row."""
    return free_ports(count)[0]


def test_start_status_stop(tmp_path: Path) -> None:
    port = some_port()
    with started(tmp_path, "--port", str(port), "--set", "num.partitions=2") as process:
        addresses = ",".join(f"{HOST}:{port + index}" for index in range(3))
        assert ready_line(process) == f"ready bootstrap={addresses}\n"
        described = json.loads((tmp_path / "cluster.json").read_text())
        assert described["bootstrap"] == addresses
        assert [broker["id"] for broker in described["brokers"]] == [1, 2, 3]
        status = run("cluster", "status", "--data-dir", tmp_path, "--json")
        assert status.returncode == 0
        assert all(broker["running"] for broker in json.loads(status.stdout)["brokers"])
        assert run("cluster", "start", "--data-dir", tmp_path).stderr == (
            f"insync: a cluster runs in {tmp_path} already; stop it first\n"
        )
        stopped = run("cluster", "stop", "--data-dir", tmp_path)
        assert stopped.returncode == 0
        *lines, total = stopped.stdout.splitlines()
        assert [line.rpartition(" after ")[0] for line in lines] == [
            f"broker {number} stopped cleanly" for number in (1, 2, 3)
        ]
        assert total.startswith("stopped 3 brokers in ")
        assert process.wait(30) == 0
        for broker in described["brokers"]:
            with pytest.raises(ProcessLookupError):
                os.kill(broker["pid"], 0)


def test_a_detached_cluster_runs_on_until_it_is_stopped(tmp_path: Path) -> None:
    port = some_port(2)
    begun = run(
        *("cluster", "start", "--data-dir", tmp_path, "--detach"),
        *("--brokers", "2", "--port", str(port), "--set", "num.partitions=2"),
    )
    try:
        assert begun.returncode == 0
        assert begun.stdout == f"ready bootstrap={HOST}:{port},{HOST}:{port + 1}\n"
        assert "num.partitions=2" in (tmp_path / "broker-2.properties").read_text()
        assert run("cluster", "status", "--data-dir", tmp_path).returncode == 0
        taken = run(
            *("cluster", "start", "--data-dir", tmp_path / "other"),
            *("--detach", "--port", str(port), "--brokers", "1"),
        )
        assert taken.returncode == 1
        assert taken.stderr.count("\n") == 1
        assert taken.stderr.endswith("choose another --port\n")
    finally:
        stopped = run("cluster", "stop", "--data-dir", tmp_path, "--json")
    assert [broker["killed"] for broker in json.loads(stopped.stdout)["brokers"]] == [False, False]
    assert run("cluster", "status", "--data-dir", tmp_path).returncode == 1


def test_restart_of_one_broker(tmp_path: Path) -> None:
    def pids() -> list[int]:
        description = json.loads((tmp_path / "cluster.json").read_text())
        return [broker["pid"] for broker in description["brokers"]]

    with started(tmp_path, "--brokers", "2", "--port", str(some_port(2))) as process:
        ready_line(process)
        first, second = pids()
        done = run("cluster", "restart", "--data-dir", tmp_path, "--broker", "2")
        assert done.returncode == 0
        assert done.stdout.startswith("broker 2 serves again after ")
        assert pids() == [first, pids()[1]]
        assert pids()[1] != second
        os.kill(pids()[1], signal.SIGKILL)
        eventually(
            lambda: run("cluster", "status", "--data-dir", tmp_path).returncode == 1,
            within_s=10,
            what="the status says that a broker is gone",
        )
        done = run("cluster", "restart", "--data-dir", tmp_path, "--broker", "2", "--json")
        assert json.loads(done.stdout)["pid"] == pids()[1]
        assert run("cluster", "status", "--data-dir", tmp_path).returncode == 0
        unknown = run("cluster", "restart", "--data-dir", tmp_path, "--broker", "7")
        assert unknown.returncode == 1
        assert unknown.stderr == "insync: --broker 7: this cluster has brokers 1, 2\n"


def test_a_broker_that_does_not_stop_is_killed_and_named(tmp_path: Path) -> None:
    cluster = Cluster(brokers=1, folder=tmp_path, with_faults=False)
    ignoring = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    broker = cluster.brokers[1]
    broker.process = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE)
    assert broker.process.stdout is not None
    broker.process.stdout.readline()
    (stopped,) = stop_brokers(cluster, within_s=0.2)
    assert (stopped["id"], stopped["killed"]) == (1, True)
    assert not broker.is_running


def test_a_broker_that_dies_shows_in_the_status(tmp_path: Path) -> None:
    with started(tmp_path, "--port", str(some_port())) as process:
        ready_line(process)
        pids = [b["pid"] for b in json.loads((tmp_path / "cluster.json").read_text())["brokers"]]
        os.kill(pids[1], signal.SIGKILL)
        eventually(
            lambda: run("cluster", "status", "--data-dir", tmp_path).returncode == 1,
            within_s=10,
            what="the status says that a broker is gone",
        )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["cluster", "start"], 2, "Missing option '--data-dir'"),
        (["cluster", "start", "--data-dir", "x", "--brokers", "0"], 2, "--brokers"),
        (["cluster", "start", "--data-dir", "x", "--port", "65535"], 1, "leaves no room"),
        (["cluster", "start", "--data-dir", "x", "--set", "a"], 1, "not of the form KEY=VALUE"),
        (["cluster", "start", "--data-dir", "x", "--set", "num.partition=1"], 1, "did you mean"),
        (["cluster", "start", "--data-dir", "x", "--set", "num.partitions=no"], 1, "whole number"),
        (["cluster", "status", "--data-dir", "nowhere"], 1, "no cluster runs in nowhere"),
        (["cluster", "stop", "--data-dir", "nowhere"], 1, "no cluster runs in nowhere"),
        (["cluster", "restart", "--data-dir", "no", "--broker", "1"], 1, "no cluster runs in no"),
        (["broker", "--config", "nowhere"], 1, "cannot read nowhere"),
        (["cluster", "start", "--data-dir", "/proc/insync"], 1, "cannot use /proc/insync"),
    ],
)
def test_invalid_usage_is_one_line(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    done = subprocess.run(
        [INSYNC, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def properties(folder: Path, **changes: str) -> Path:
    settings = {
        "node.id": "1",
        "listeners": f"PLAINTEXT://{HOST}:{free_ports(1)[0]}",
        "log.dirs": str(folder / "logs"),
        "metadata.dir": str(folder / "metadata"),
    }
    settings |= {name.replace("_", "."): value for name, value in changes.items()}
    path = folder / "broker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listeners": "SSL://h:1"}, "write PLAINTEXT://HOST:PORT"),
        ({"listeners": "PLAINTEXT://127.0.0.1:99999"}, "write PLAINTEXT://HOST:PORT"),
        ({"node_id": "one"}, "node.id is 'one'; write a whole number"),
        ({"node_id": "-4"}, "node.id is -4; it must be between"),
        ({"log_dirs": ""}, "set log.dirs and metadata.dir"),
        ({"log_dirs": "/proc/logs"}, "/proc/logs"),
        ({"log_dirs": "/sys"}, "cannot write to the data directory"),
        ({"log_dirs": "/dev/null"}, "cannot write to the data directory"),
        ({"log_dirs": "a,b"}, "log.dirs names several folders"),
        ({"metadata_dir": "/proc/metadata"}, "cannot use metadata.dir /proc/metadata"),
        ({"metadata_dir": "/dev/null"}, "cannot use metadata.dir /dev/null"),
        ({"broker_rakc": "a"}, "did you mean broker.rack?"),
    ],
)
def test_a_broken_configuration_is_one_line(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    done = run("broker", "--config", properties(tmp_path, **changes))
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_broker_stops_cleanly_on_either_signal(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command: list[str | Path] = [INSYNC, "broker", "--config", properties(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, log = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in log


def test_ctrl_c_stops_a_cluster_and_is_no_failure(tmp_path: Path) -> None:
    with started(tmp_path, "--brokers", "1", "--port", str(some_port(1))) as process:
        ready_line(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        address = f"PLAINTEXT://{HOST}:{taken.getsockname()[1]}"
        done = run("broker", "--config", properties(tmp_path, listeners=address))
    assert done.returncode == 1
    assert done.stderr.startswith("insync: cannot serve at")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"node.id=1\nnonsense\n", "line 2: 'nonsense' is not of the form key=value"),
        (b"=1\n", "line 1: '=1' is not of the form key=value"),
        (b"#" * (1 << 20) + b"\n", "is larger than"),
        (b"", "set log.dirs and metadata.dir"),
    ],
)
def test_a_broken_properties_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broker.properties"
    path.write_bytes(content)
    done = run("broker", "--config", path)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_malformed_metadata_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "metadata.sqlite").write_bytes(b"a text, and no database" * 100)
    done = run("broker", "--config", properties(tmp_path))
    assert done.returncode == 1
    assert "not an Insync metadata store, or damaged" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_data_directory_in_use_or_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, "--brokers", "1", "--port", str(some_port(1))) as process:
        ready_line(process)
        logs = str(tmp_path / "broker-1")
        shared = str(tmp_path / "metadata")
        other = tmp_path / "other"
        other.mkdir()
        config = properties(other, log_dirs=logs, metadata_dir=shared)
        done = run("broker", "--config", config)
        assert done.returncode == 1
        assert "is used by another broker" in done.stderr
        assert done.stderr.count("\n") == 1
    of_another_broker = {"metadata_dir": shared, "node_id": "2"}
    for changes, message in (({}, "says cluster.id="), (of_another_broker, "says node.id='1'")):
        done = run("broker", "--config", properties(other, log_dirs=logs, **changes))
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
