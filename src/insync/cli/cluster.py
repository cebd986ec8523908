"""`insync cluster`: several brokers on this machine, one process each."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from insync.broker.accepted import (
    NEW_DIRECTORY,
    NEW_DIRECTORY_HELP,
    OLDER_METADATA,
    OLDER_METADATA_HELP,
    Accepted,
)
from insync.broker.settings import Settings
from insync.cli import cluster_files as files
from insync.cli import cluster_supervisor
from insync.cli.answer import Answer, JsonFlag
from insync.cli.broker import parse_sets
from insync.cli.cluster_files import ClusterFailed
from insync.rules.refusals import BadSetting

PORT_MAX: Final = 65535
CHECK_EVERY_S: Final = 0.05
READY_WITHIN_S: Final = 90.0
RESTARTED_WITHIN_S: Final = 60.0
STOPPED_WITHIN_S: Final = 30.0

app = typer.Typer(help="Start, inspect and stop a cluster on this machine.")


def register(on: typer.Typer) -> None:
    on.add_typer(app, name="cluster")


DataDir = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", help="Folder of the cluster's files.")
]
OlderMetadataFlag = Annotated[bool, typer.Option(OLDER_METADATA, help=OLDER_METADATA_HELP)]
NewDirectoryFlag = Annotated[bool, typer.Option(NEW_DIRECTORY, help=NEW_DIRECTORY_HELP)]


@app.command()
def start(
    data_dir: DataDir,
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", min=1, max=100, help="Number of brokers.")
    ] = 3,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="PORT",
            min=1,
            max=PORT_MAX,
            help="Port of the first broker; the others use the ports after it.",
        ),
    ] = 9092,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A broker setting; may be repeated."),
    ] = None,
    *,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Return when every broker serves; the cluster runs on."),
    ] = False,
    accept_older_metadata: OlderMetadataFlag = False,
    new_directory: NewDirectoryFlag = False,
) -> int:
    """Run a cluster in the foreground; one line on stdout says when every broker serves."""
    settings = parse_sets(set_ or [])
    Settings(settings)  # refused here, once, rather than by every broker
    if port + brokers - 1 > PORT_MAX:
        raise BadSetting(f"--port {port} leaves no room for {brokers} brokers")
    accepted = Accepted(older_metadata=accept_older_metadata, new_directory=new_directory)
    files.refuse_running(data_dir)
    if detach:
        _start_detached(data_dir, brokers=brokers, port=port, settings=settings, accepted=accepted)
    else:
        ports = {index + 1: port + index for index in range(brokers)}
        cluster_supervisor.supervise(data_dir, ports, settings, accepted)
    return 0


def _start_detached(
    data_dir: Path, *, brokers: int, port: int, settings: dict[str, str], accepted: Accepted
) -> None:
    """The same command in a session of its own, which neither Ctrl-C nor a logout reaches."""
    log = data_dir / files.LOG
    command = [sys.executable, "-m", "insync", "cluster", "start", "--data-dir", str(data_dir)]
    command += ["--brokers", str(brokers), "--port", str(port)]
    command += accepted.flags()
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
    except OSError as error:
        raise ClusterFailed(f"cannot use {data_dir}: {error.strerror}") from None
    assert process.stdout is not None, "its output is read here"
    with process.stdout as output:
        line = output.readline()  # the brokers have their own limit for this
    if not line.startswith(b"ready "):
        process.wait(READY_WITHIN_S)
        reasons = log.read_text().splitlines()
        reason = reasons[-1].removeprefix("insync: ") if reasons else "it logged nothing"
        raise ClusterFailed(reason)
    sys.stdout.write(line.decode())
    sys.stderr.write(f"insync: stop it with: insync cluster stop --data-dir {data_dir}\n")


@app.command()
def status(data_dir: DataDir, *, as_json: JsonFlag = False) -> Answer:
    """Which brokers run, and where."""
    from rich.table import Table  # noqa: PLC0415 - a start has no table to show

    description = files.read_description(data_dir)
    rows = [{**broker, "running": files.is_running(broker)} for broker in description["brokers"]]
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
        data={"bootstrap": description["bootstrap"], "brokers": rows},
        view=table,
        as_json=as_json,
        exit_code=0 if is_well else 1,
    )


@app.command()
def restart(
    data_dir: DataDir,
    broker: Annotated[int, typer.Option("--broker", metavar="ID", help="Id of the broker.")],
    *,
    accept_older_metadata: OlderMetadataFlag = False,
    new_directory: NewDirectoryFlag = False,
    as_json: JsonFlag = False,
) -> Answer:
    """Stop one broker of a running cluster cleanly, and start it again; start it if it is down."""
    description = _running_description(data_dir)
    pids = {each["id"]: each["pid"] for each in description["brokers"]}
    if broker not in pids:
        known = ", ".join(map(str, pids))
        raise ClusterFailed(f"--broker {broker}: this cluster has brokers {known}")
    (data_dir / files.RESTART_RESULT).unlink(missing_ok=True)
    accepted = Accepted(older_metadata=accept_older_metadata, new_directory=new_directory)
    request = {"broker": broker, "accepted": accepted.flags()}
    files.write_json(data_dir / files.RESTART_REQUEST, request)
    result = _await_result(data_dir, description)
    if "failed" in result:
        raise ClusterFailed(result["failed"])
    text = (
        f"broker {broker} serves again after {result['took_s']:.1f} s: "
        f"process {result['pid']} instead of {pids[broker]}\n"
    )
    return Answer(data=result, view=text, as_json=as_json)


def _running_description(data_dir: Path) -> dict[str, Any]:
    description = files.read_description(data_dir)
    if not files.is_running(description):
        orphans = [
            f"{broker['id']} (process {broker['pid']})"
            for broker in description["brokers"]
            if files.is_running(broker)
        ]
        also = f"; end what it left behind: broker {', '.join(orphans)}" if orphans else ""
        raise ClusterFailed(
            f"the cluster's process {description['pid']} in {data_dir} is gone{also}"
        )
    return description


def _await_result(data_dir: Path, description: dict[str, Any]) -> dict[str, Any]:
    deadline_s = time.monotonic() + RESTARTED_WITHIN_S
    while True:
        result = files.read_and_delete_json(data_dir / files.RESTART_RESULT)
        if result is not None:
            return result
        if not files.is_running(description):
            raise ClusterFailed(f"the cluster in {data_dir} stopped meanwhile")
        if time.monotonic() > deadline_s:
            raise ClusterFailed(f"not restarted within {RESTARTED_WITHIN_S:.0f} s")
        time.sleep(CHECK_EVERY_S)


@app.command()
def stop(data_dir: DataDir, *, as_json: JsonFlag = False) -> Answer:
    """Stop the cluster that runs in this folder, cleanly, and say how each broker ended."""
    description = _running_description(data_dir)
    pid = description["pid"]
    began_s = time.monotonic()
    files.terminate(description)
    while files.is_running(description) and (data_dir / files.DESCRIPTION).exists():
        if time.monotonic() - began_s > STOPPED_WITHIN_S:
            raise ClusterFailed(f"the cluster (process {pid}) does not stop")
        time.sleep(CHECK_EVERY_S)
    stopped = files.read_and_delete_json(data_dir / files.STOPPED) or {"brokers": []}
    lines = [_stopped_line(broker) for broker in stopped["brokers"]]
    took_s = time.monotonic() - began_s
    lines.append(f"stopped {len(lines)} brokers in {took_s:.1f} s")
    return Answer(data=stopped, view="".join(f"{line}\n" for line in lines), as_json=as_json)


def _stopped_line(broker: dict[str, Any]) -> str:
    how = "had to be killed" if broker["killed"] else "stopped cleanly"
    return f"broker {broker['id']} {how} after {broker['took_s']:.1f} s"
