"""`insync cluster`: several brokers on this machine, one process each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from insync.broker.settings import Settings
from insync.cli.answer import Answer, JsonFlag
from insync.cli.broker import parse_sets
from insync.client.sockets import await_acquaintance
from insync.rules.refusals import BadSetting, Refusal

HOST = "127.0.0.1"
STARTED_WITHIN_S = 30.0
STOPPED_WITHIN_S = 15.0
PORT_MAX = 65535

app = typer.Typer(help="Start, look at and stop a cluster on this machine.")

DataDir = Annotated[Path, typer.Option("--data-dir", help="Where the cluster keeps its files.")]


class ClusterFailed(Refusal):
    """A cluster that does not start, or is not there."""


@app.command()
def start(
    data_dir: DataDir,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=100)] = 3,
    port: Annotated[int, typer.Option("--port", min=1, max=PORT_MAX)] = 9092,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A broker setting.")
    ] = None,
) -> int:
    """Run a cluster in the foreground; one line on stdout says when every broker serves."""
    given = parse_sets(set_ or [])
    Settings(given)  # refused here, once, rather than by every broker
    if port + brokers - 1 > PORT_MAX:
        raise BadSetting(f"--port {port} leaves no room for {brokers} brokers")
    _refuse_running(data_dir)
    processes: list[subprocess.Popen[str]] = []
    stop = False

    def asked_to_stop(_number: int, _frame: object) -> None:
        nonlocal stop
        stop = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked_to_stop)
    try:
        for index in range(brokers):
            process = _start_broker(data_dir, index + 1, port + index, given)
            processes.append(process)
        for index, process in enumerate(processes):
            _await_ready(process, data_dir / f"broker-{index + 1}.log")
        ports = [port + index for index in range(brokers)]
        await_acquaintance(HOST, ports, within_s=STARTED_WITHIN_S)
        bootstrap = ",".join(f"{HOST}:{port + index}" for index in range(brokers))
        _describe(data_dir, bootstrap, processes, port)
        sys.stdout.write(f"ready bootstrap={bootstrap}\n")
        sys.stdout.flush()
        running = dict(enumerate(processes, start=1))
        while not stop:
            time.sleep(0.05)  # signals interrupt it
            for broker, process in list(running.items()):
                if process.poll() is not None:  # also takes leave of it for good
                    sys.stderr.write(f"insync: broker {broker} ended\n")
                    del running[broker]
        return 0
    finally:
        _stop(processes)
        (data_dir / "cluster.json").unlink(missing_ok=True)


def _start_broker(
    data_dir: Path, broker: int, port: int, given: dict[str, str]
) -> subprocess.Popen[str]:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        config = data_dir / f"broker-{broker}.properties"
        properties = {
            "node.id": str(broker),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(data_dir / f"broker-{broker}"),
            "metadata.dir": str(data_dir / "metadata"),
            **given,
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        log = (data_dir / f"broker-{broker}.log").open("a")
    except OSError as error:
        raise ClusterFailed(f"cannot use {data_dir}: {error.strerror}") from None
    with log:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "insync", "broker", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.DEVNULL,
            text=True,
            # Ctrl-C reaches the whole terminal; the brokers are stopped by this process.
            start_new_session=True,
        )


def _await_ready(process: subprocess.Popen[str], log: Path) -> None:
    assert process.stdout is not None, "its output is read here"
    if process.stdout.readline() != "ready\n":
        process.wait(STARTED_WITHIN_S)
        lines = log.read_text().splitlines() or ["it said nothing"]
        raise ClusterFailed(f"a broker did not start: {lines[-1].removeprefix('insync: ')}")


def _describe(
    data_dir: Path, bootstrap: str, processes: list[subprocess.Popen[str]], port: int
) -> None:
    described = {
        "bootstrap": bootstrap,
        "pid": os.getpid(),
        "brokers": [
            {"id": index + 1, "host": HOST, "port": port + index, "pid": process.pid}
            for index, process in enumerate(processes)
        ],
    }
    temporary = data_dir / "cluster.json.new"
    temporary.write_text(json.dumps(described, indent=2) + "\n")
    temporary.rename(data_dir / "cluster.json")


def _stop(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline_s = time.monotonic() + STOPPED_WITHIN_S
    for process in processes:
        try:
            process.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read(data_dir: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((data_dir / "cluster.json").read_text())
    except (OSError, ValueError):
        raise ClusterFailed(f"no cluster runs in {data_dir}") from None
    return found


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _refuse_running(data_dir: Path) -> None:
    if (data_dir / "cluster.json").exists() and _is_running(_read(data_dir)["pid"]):
        raise ClusterFailed(f"a cluster runs in {data_dir} already; stop it first")


@app.command()
def status(data_dir: DataDir, *, as_json: JsonFlag = False) -> Answer:
    """Which brokers run, and where."""
    found = _read(data_dir)
    rows = [{**broker, "running": _is_running(broker["pid"])} for broker in found["brokers"]]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("broker", "address", "pid", "running"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            str(row["id"]),
            f"{row['host']}:{row['port']}",
            str(row["pid"]),
            "yes" if row["running"] else "no",
        )
    is_well = all(row["running"] for row in rows)
    return Answer(
        data={"bootstrap": found["bootstrap"], "brokers": rows},
        view=table,
        as_json=as_json,
        exit_code=0 if is_well else 1,
    )


@app.command()
def stop(data_dir: DataDir) -> int:
    """Stop the cluster that runs in this folder, cleanly."""
    pid = _read(data_dir)["pid"]
    if _is_running(pid):
        os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + 2 * STOPPED_WITHIN_S
    while _is_running(pid) and (data_dir / "cluster.json").exists():
        if time.monotonic() > deadline_s:
            raise ClusterFailed(f"the cluster (process {pid}) does not stop")
        time.sleep(0.05)
    return 0
