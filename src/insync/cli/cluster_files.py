"""The files through which `insync cluster` commands and a running cluster's supervisor talk.

`cluster.json` says what runs. A command that wants a broker restarted writes `restart.request`,
and the supervisor, whose child every broker is, answers with `restart.result`. When the cluster
has stopped, `stopped.json` says how.

A supervisor that was killed leaves `cluster.json` behind, and the system gives its process ids to
other processes. So the file also says when each process started, and nothing else is ever taken for
it or signalled.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from insync.rules.refusals import Refusal
from insync.testing.cluster import HOST, Cluster

DESCRIPTION: Final = "cluster.json"
STOPPED: Final = "stopped.json"
RESTART_REQUEST: Final = "restart.request"
RESTART_RESULT: Final = "restart.result"
LOG: Final = "cluster.log"  # stderr of a detached supervisor


# Of /proc/PID/stat, counted after the name (proc(5)).
STAT_STATE: Final = 0
STAT_START: Final = 19
ENDED_STATES: Final = ("Z", "X")


class ClusterFailed(Refusal):
    """A cluster that does not start, does not stop, or does not run."""


def describe(data_dir: Path, cluster: Cluster) -> None:
    write_json(
        data_dir / DESCRIPTION,
        {
            "bootstrap": cluster.bootstrap,
            **_process(os.getpid()),
            "brokers": [
                {
                    "id": number,
                    "host": HOST,
                    "port": broker.port,
                    **_process(None if broker.process is None else broker.pid),
                }
                for number, broker in cluster.brokers.items()
            ],
        },
    )


def read_description(data_dir: Path) -> dict[str, Any]:
    description = read_json(data_dir / DESCRIPTION)
    if description is None:
        raise ClusterFailed(f"no cluster runs in {data_dir}")
    return description


def refuse_running(data_dir: Path) -> None:
    description = read_json(data_dir / DESCRIPTION)
    if description is not None and is_running(description):
        raise ClusterFailed(f"a cluster runs in {data_dir} already; stop it first")


def _process(pid: int | None) -> dict[str, Any]:
    return {"pid": pid, "started": None if pid is None else start_of(pid)}


def start_of(pid: int) -> str | None:
    """Boot of the machine, and clock ticks from then to the start of a process that runs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name in brackets may itself have brackets and blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, ticks = fields[STAT_STATE], fields[STAT_START]
    return None if state in ENDED_STATES else f"{boot}/{ticks}"


def is_running(process: Mapping[str, Any]) -> bool:
    """Whether the process that these fields describe runs, and not another one with its id."""
    pid, started = process["pid"], process.get("started")
    return pid is not None and started is not None and start_of(pid) == started


def terminate(process: Mapping[str, Any]) -> None:
    """SIGTERM to the process that these fields describe, if it runs."""
    try:
        descriptor = os.pidfd_open(process["pid"])
    except OSError:
        return
    try:
        # The descriptor stays with one process: its id cannot change hands after this check.
        if is_running(process):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Readers see the old content or the new, never a part."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(json.dumps(data, indent=2) + "\n")
    temporary.rename(path)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data


def read_and_delete_json(path: Path) -> dict[str, Any] | None:
    """Read a file, and remove it."""
    data = read_json(path)
    path.unlink(missing_ok=True)
    return data
