"""Commands in README.md and docs/ work: run where they need no other cluster, else checked by flag.

Everything that names 127.0.0.1:9092 is run, against the one cluster that README.md itself starts
(on other ports, in a temporary folder). Commands for a Kafka cluster elsewhere, and those that need
Java, are checked against `--help`: the command and every flag exist.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from insync.cli.main import COMMANDS, main
from insync.testing.cluster import Cluster

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = (README, *sorted((ROOT / "docs").glob("*.md")))
OURS = "127.0.0.1:9092"
DATA_DIR = "/tmp/insync"  # noqa: S108 - as README.md writes it, never used
WITHIN_S = 30.0


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", path.read_text())


def lines(path: Path) -> list[list[str]]:
    """Each command of a document's bash blocks as its words; continued lines are one."""
    text = "".join(blocks(path, "bash")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def insync_lines(path: Path) -> list[list[str]]:
    """What follows `insync`, also where another program runs it."""
    return [
        [word for word in words[words.index(program) + 1 :] if word != "&"]
        for words in lines(path)
        for program in ("insync", "examples/submit.py")
        if program in words
    ]


def command_of(words: list[str]) -> tuple[str, ...]:
    """`topics`, or `pipeline what-if`: up to the first word that is no command's name."""
    is_group = words[0] in {"cluster", "telemetry", "pipeline"}
    return tuple(words[: 2 if is_group else 1])


@cache
def help_of(command: tuple[str, ...]) -> tuple[int, frozenset[str]]:
    """The exit code of its --help, and the flags that it lists."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = main([*command, "--help"])
    return code, frozenset(re.findall(r"--[a-z][a-z-]*", shown.getvalue()))


@pytest.mark.parametrize("path", DOCUMENTS, ids=[path.name for path in DOCUMENTS])
def test_commands_and_their_flags_exist(path: Path) -> None:
    for words in insync_lines(path):
        code, flags = help_of(command_of(words))
        assert code == 0, words
        assert {word for word in words if word.startswith("--")} <= flags, words


def test_every_command_is_shown_in_a_document() -> None:
    shown = {words[0] for path in DOCUMENTS for words in insync_lines(path)}
    assert set(COMMANDS) - shown <= {
        "broker",
        "demo",
    }  # one is for a properties file, one is make's


def test_targets_of_make_exist() -> None:
    made = {words[1] for path in DOCUMENTS for words in lines(path) if words[0] == "make"}
    assert {"demo", "test"} <= made
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
    assert made <= set(targets)


class Started(NamedTuple):
    bootstrap: str
    folder: Path

    def insync(self, words: list[str]) -> tuple[int, str, str]:
        """Run one line of README.md here: exit code, stdout, stderr."""
        out, errors = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            code = main(self.adapted(words))
        return code, out.getvalue(), errors.getvalue()

    def adapted(self, words: list[str]) -> list[str]:
        folder = str(self.folder / "cluster")
        return [word.replace(OURS, self.bootstrap).replace(DATA_DIR, folder) for word in words]


def free_ports(count: int) -> int:
    """The first of so many that are free one after the other."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, count):
        with contextlib.ExitStack() as taken:
            try:
                for port in range(first, first + count):
                    taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return first
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """The cluster that README.md starts, until it serves."""
    (start,) = (words for words in insync_lines(README) if words[:2] == ["cluster", "start"])
    port = free_ports(3)
    cluster = Started(f"127.0.0.1:{port}", tmp_path_factory.mktemp("readme"))
    process = subprocess.Popen(
        [sys.executable, "-m", "insync", *cluster.adapted(start), "--port", str(port),
         "--set", "telemetry.publish.interval.ms=200"],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready bootstrap=127.0.0.1:")
        yield cluster
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WITHIN_S)
        if process.stdout is not None:
            process.stdout.close()


def is_run(words: list[str]) -> bool:
    """Whether it needs neither another cluster nor Java."""
    is_ours = any(OURS in word or DATA_DIR in word for word in words)
    return (is_ours and words[0] != "pipeline") or words[0] == "explain"


@pytest.mark.process
def test_the_commands_of_the_readme_run_in_order(started: Started) -> None:
    run = [words for words in insync_lines(README) if is_run(words)]
    assert [command_of(words)[-1] for words in run] == [
        "start", "topics", "configs", "replicas", "stop", "export", "explain",
    ]  # fmt: skip
    by_name = {command_of(words)[-1]: words for words in run}
    for name in ("topics", "configs", "replicas", "explain"):
        code, out, errors = started.insync(by_name[name])
        assert (code, errors) == (0, ""), by_name[name]
        assert out, by_name[name]
    until_exported(started, by_name["export"])
    code, _, errors = started.insync(by_name["stop"])
    assert (code, errors) == (0, "")


def until_exported(started: Started, export: list[str]) -> None:
    """Telemetry comes with the first partition that is led, and a moment later."""
    ends_at_s = time.monotonic() + WITHIN_S
    while (done := started.insync(export))[0] != 0:
        assert time.monotonic() < ends_at_s, done
        time.sleep(0.2)
    assert list((started.folder / "telemetry" / "appends").glob("*.parquet"))


@pytest.mark.process
def test_the_test_of_the_readme_passes(insync_cluster: Cluster) -> None:
    (shown,) = (block for block in blocks(README, "python") if "insync_cluster" in block)
    names: dict[str, Any] = {}
    exec(shown, names)  # noqa: S102 - it is what readers paste
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(insync_cluster)
