"""`insync cluster`: several brokers on this machine, one process each."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from insync.broker.settings import Settings
from insync.cli.answer import Answer, JsonFlag
from insync.cli.broker import parse_sets
from insync.rules.refusals import BadSetting, Refusal
from insync.testing.cluster import HOST, Cluster

PORT_MAX = 65535
STOPPED_WITHIN_S = 30.0
DESCRIPTION = "cluster.json"

app = typer.Typer(help="Start, look at and stop a cluster on this machine.")


def register(on: typer.Typer) -> None:
    on.add_typer(app, name="cluster")


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
    ports = {index + 1: port + index for index in range(brokers)}
    try:
        cluster = Cluster(ports=ports, settings=given, folder=data_dir, with_faults=False)
    except OSError as error:
        raise ClusterFailed(f"cannot use {data_dir}: {error.strerror}") from None
    stop = False

    def asked_to_stop(_number: int, _frame: object) -> None:
        nonlocal stop
        stop = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked_to_stop)
    with cluster:
        _describe(data_dir, cluster)
        sys.stdout.write(f"ready bootstrap={cluster.bootstrap}\n")
        sys.stdout.flush()
        running = dict(cluster.brokers)
        while not stop:
            time.sleep(0.05)  # signals interrupt it
            for broker, process in list(running.items()):
                if not process.is_running:  # asking also takes leave of it for good
                    sys.stderr.write(f"insync: broker {broker} ended\n")
                    del running[broker]
    (data_dir / DESCRIPTION).unlink(missing_ok=True)
    return 0


def _describe(data_dir: Path, cluster: Cluster) -> None:
    described = {
        "bootstrap": cluster.bootstrap,
        "pid": os.getpid(),
        "brokers": [
            {"id": number, "host": HOST, "port": broker.port, "pid": broker.pid}
            for number, broker in cluster.brokers.items()
        ],
    }
    temporary = data_dir / f"{DESCRIPTION}.new"
    temporary.write_text(json.dumps(described, indent=2) + "\n")
    temporary.rename(data_dir / DESCRIPTION)


def _read(data_dir: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((data_dir / DESCRIPTION).read_text())
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
    if (data_dir / DESCRIPTION).exists() and _is_running(_read(data_dir)["pid"]):
        raise ClusterFailed(f"a cluster runs in {data_dir} already; stop it first")


@app.command()
def status(data_dir: DataDir, *, as_json: JsonFlag = False) -> Answer:
    """Which brokers run, and where."""
    from rich.table import Table  # noqa: PLC0415 - a start has no table to show

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
    deadline_s = time.monotonic() + STOPPED_WITHIN_S
    while _is_running(pid) and (data_dir / DESCRIPTION).exists():
        if time.monotonic() > deadline_s:
            raise ClusterFailed(f"the cluster (process {pid}) does not stop")
        time.sleep(0.05)
    return 0
