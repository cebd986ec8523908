"""The process that runs a cluster: it starts the brokers, restarts them on request, stops them."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from insync.broker.accepted import NOTHING, Accepted, accepted_by
from insync.cli import cluster_files as files
from insync.cli.cluster_files import ClusterFailed
from insync.testing.cluster import BrokerFailed, Cluster

CHECK_EVERY_S: Final = 0.05
STOPPED_WITHIN_S: Final = 15.0


def supervise(
    data_dir: Path,
    ports: Mapping[int, int],
    settings: Mapping[str, str],
    accepted: Accepted = NOTHING,
) -> None:
    """Run a cluster until SIGTERM or Ctrl-C; `accepted` is for the start, not for restarts."""
    try:
        cluster = Cluster(ports=ports, settings=settings, folder=data_dir, with_faults=False)
    except OSError as error:
        raise ClusterFailed(f"cannot use {data_dir}: {error.strerror}") from None
    must_stop = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal must_stop
        must_stop = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for name in (files.STOPPED, files.RESTART_REQUEST, files.RESTART_RESULT):
        (data_dir / name).unlink(missing_ok=True)
    try:
        cluster.start(accepted=accepted)
    except BrokerFailed as failed:
        raise BrokerFailed(name_flags(str(failed))) from None
    try:
        files.describe(data_dir, cluster)
        sys.stdout.write(f"ready bootstrap={cluster.bootstrap}\n")
        sys.stdout.flush()
        ended: set[int] = set()
        while not must_stop:
            time.sleep(CHECK_EVERY_S)  # signals interrupt it
            _report_ended(cluster, ended)
            _restart_if_requested(data_dir, cluster, ended)
    finally:
        stopped = stop_brokers(cluster)
        files.write_json(data_dir / files.STOPPED, {"brokers": stopped})
        (data_dir / files.DESCRIPTION).unlink(missing_ok=True)
    killed = [str(broker["id"]) for broker in stopped if broker["killed"]]
    if killed:
        raise ClusterFailed(
            f"broker {', '.join(killed)} did not stop within {STOPPED_WITHIN_S:.0f} s: killed"
        )


def name_flags(message: str) -> str:
    """A broker names its setting; the user of `cluster start` set it with a flag."""
    message = message.replace("choose another address in listeners", "choose another --port")
    return re.sub(r"(choose another) address in (\S+)$", r"\1 with --set \2=...", message)


def _report_ended(cluster: Cluster, ended: set[int]) -> None:
    for number, broker in cluster.brokers.items():
        if number not in ended and not broker.is_running:  # asking also reaps the process
            sys.stderr.write(f"insync: broker {number} ended\n")
            sys.stderr.flush()
            ended.add(number)


def _restart_if_requested(data_dir: Path, cluster: Cluster, ended: set[int]) -> None:
    request = files.read_and_delete_json(data_dir / files.RESTART_REQUEST)
    if request is None:
        return
    number = request["broker"]
    began_s = time.monotonic()
    result: dict[str, Any] = {"broker": number}
    try:
        accepted = accepted_by(request.get("accepted", []))
        assert accepted is not None, "`insync cluster restart` writes these flags alone"
        cluster.restart(number, accepted=accepted)
        ended.discard(number)
        result["pid"] = cluster.brokers[number].pid
        result["took_s"] = round(time.monotonic() - began_s, 2)
    except BrokerFailed as failed:
        result["failed"] = str(failed)
    files.describe(data_dir, cluster)
    files.write_json(data_dir / files.RESTART_RESULT, result)


def stop_brokers(cluster: Cluster, within_s: float = STOPPED_WITHIN_S) -> list[dict[str, Any]]:
    """Stop all at once; how long each took, and which had to be killed."""
    began_s = time.monotonic()
    running = {number: each for number, each in cluster.brokers.items() if each.is_running}
    for broker in running.values():
        broker.signal(signal.SIGCONT)
        broker.signal(signal.SIGTERM)
    stopped: list[dict[str, Any]] = []
    while running:
        is_late = time.monotonic() - began_s > within_s
        for number, broker in list(running.items()):
            if broker.is_running and not is_late:
                continue
            killed = broker.is_running
            broker.kill()  # also puts away what is left of a process that ended
            took_s = round(time.monotonic() - began_s, 2)
            stopped.append({"id": number, "took_s": took_s, "killed": killed})
            del running[number]
        time.sleep(CHECK_EVERY_S)
    return sorted(stopped, key=lambda broker: broker["id"])
