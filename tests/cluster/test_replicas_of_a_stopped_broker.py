"""`insync replicas` of 200 partitions while a broker hangs, is evicted and comes back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from insync.testing.cluster import Cluster
from support.cluster.clients import await_in_sync, create_topic, eventually

pytestmark = pytest.mark.process
INSYNC = str(Path(sys.executable).with_name("insync"))
TOPICS = {"clicks": 40, "orders": 100, "payments": 60}
SESSION_S = 8
SETTINGS = {"broker.session.timeout.ms": f"{SESSION_S}000", "min.insync.replicas": "3"}
NARROW = {**os.environ, "COLUMNS": "80"}
STOPPED = 3
LAST_TOPIC = "last"


class Watched:
    """`insync replicas --watch` in a pipe of 80 columns, and the lines that it has written."""

    def __init__(self, bootstrap: str, *flags: str) -> None:
        self.process = subprocess.Popen(
            [INSYNC, "replicas", "-b", bootstrap, "--watch", *flags],
            env=NARROW,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            # Not at any new topic: the telemetry topic may be created while this reads.
            if '"topic-created"' in line and json.loads(line)["topic"] == LAST_TOPIC:
                return

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines)]

    @property
    def pages(self) -> list[list[str]]:
        """The complete ones, each from its totals on."""
        lines = list(self.lines)
        starts = [at for at, line in enumerate(lines) if line.startswith("brokers ")]
        return [lines[begin:end] for begin, end in pairwise(starts)]

    def count(self, change: str) -> int:
        return sum(each["change"] == change for each in self.objects)

    def hang_up(self) -> int:
        """The reader closes the pipe; the exit code of the writer."""
        self._reader.join(20)
        assert not self._reader.is_alive()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(20)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


def joined(lines: list[str]) -> str:
    """The text of a page at 80 columns, each sentence as one line."""
    assert max(map(len, lines)) <= 80 + len("\n")
    assert len(lines) < 45, "618 lines before"
    return re.sub(r"\n  (?! |leader|follower)", " ", "".join(lines))


def replicas(cluster: Cluster) -> tuple[int, str]:
    """The exit code, and the text."""
    done = subprocess.run(
        [INSYNC, "replicas", "-b", cluster.bootstrap],
        env=NARROW,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, joined(done.stdout.splitlines(keepends=True))


def test_a_broker_that_hangs_is_evicted_and_returns() -> None:
    with Cluster(settings=SETTINGS) as cluster, ExitStack() as stack:
        for topic, partitions in TOPICS.items():
            create_topic(cluster, topic, partitions=partitions)
        for topic in TOPICS:
            await_in_sync(cluster, topic)
        screen, stream = Watched(cluster.bootstrap), Watched(cluster.bootstrap, "--json")
        stack.callback(screen.end)
        stack.callback(stream.end)
        stack.callback(cluster.resume, STOPPED)
        eventually(lambda: bool(stream.lines and screen.pages), within_s=20, what="both show it")
        check_snapshot(stream.objects[0])
        cluster.pause(STOPPED)
        check_hung(screen)
        check_stream_of_eviction(stream)
        check_evicted(cluster)
        cluster.resume(STOPPED)
        eventually(
            lambda: stream.count("joined-isr") >= 200, within_s=30, what="it joined every ISR"
        )
        eventually(
            lambda: screen.pages[-1][-1] == "Every replica is in sync.\n",
            within_s=30,
            what="every replica is in sync",
        )
        create_topic(cluster, LAST_TOPIC, partitions=1)
        assert stream.hang_up() == 1


def check_snapshot(snapshot: dict[str, Any]) -> None:
    assert snapshot["change"] == "snapshot"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", snapshot["at"])
    assert sum(row["topic"] in TOPICS for row in snapshot["followers"]) == 400


def check_hung(screen: Watched) -> None:
    pages: list[str] = []

    def is_shown() -> bool:
        pages[:] = [text for text in map(joined, screen.pages) if " stopped fetching " in text]
        return bool(pages)

    eventually(is_shown, within_s=30, what="it stopped fetching")
    text = pages[0]
    assert text.startswith("brokers     3: 2 responding, 1 not responding, 0 down\n")
    sentence = re.search(
        rf"(?m)^broker {STOPPED} stopped fetching (\d\.\d) s ago and does not respond: still in "
        r"all its ISRs, leads (\d+) \(not responding\); the controller evicts it in about "
        r"(\d\.\d s|\d+ ms) and elects other leaders; do: check its host and its process$",
        text,
    )
    assert sentence, text
    left_text, unit = sentence[3].split()
    left_s = float(left_text) / (1_000 if unit == "ms" else 1)
    assert float(sentence[1]) + left_s == pytest.approx(SESSION_S, abs=0.11)
    assert 60 <= int(sentence[2]) <= 75
    topics = re.findall(r"(?m)^(\w+): \d+ of \d+ partitions", text)
    assert topics[:3] == ["orders", "payments", "clicks"], "user topics first, the most first"


def check_stream_of_eviction(stream: Watched) -> None:
    eventually(lambda: stream.count("left-isr") >= 200, within_s=30, what="it left every ISR")
    # Metadata is read before the leaders are asked, so "down" may come with the next report.
    eventually(lambda: stream.count("broker") >= 2, within_s=30, what="its registration ended")
    changes = stream.objects
    states = [each["state"] for each in changes if each["change"] == "broker"]
    assert states == ["not responding", "down"]
    left = [each for each in changes if each["change"] == "left-isr"]
    assert {each["replica"] for each in left} == {STOPPED}
    assert sum(each.get("reason") == "stopped fetching" for each in changes) > 100
    assert stream.count("leader") >= 60


def check_evicted(cluster: Cluster) -> None:
    code, text = replicas(cluster)
    assert code == 0, text
    assert re.search(
        rf"(?m)^broker {STOPPED} is down, its latest fetch was [\d.]+ s ago: out of 20\d ISRs, "
        r"leads 0; do: start it; if its process runs, check its host$",
        text,
    ), text
    assert (
        "orders: 100 of 100 partitions: 100 under min ISR, 100 with a replica out of sync" in text
    )
    assert "\n  follower 3, out of sync, 100 partitions: 0-99\n    its broker is down\n" in text
