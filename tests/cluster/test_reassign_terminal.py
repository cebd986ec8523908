"""`insync reassign --execute` on a terminal: the bars that are drawn there, and Ctrl-C."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from insync.testing.cluster import Cluster
from support.cluster.clients import IntegerProducer, eventually, partitions_of
from support.cluster.reassign_command import command, create_with_replicas, throttles, write_plan
from support.cluster.terminal import Terminal

pytestmark = [
    pytest.mark.process,
    pytest.mark.insync_cluster(
        brokers=4,
        settings={"telemetry.enable": "false", "auto.leader.rebalance.enable": "false"},
        scope="module",
    ),
]

TARGETS = [[3, 2], [4, 2], [3, 2], [4, 2]]
DESTINATIONS = ("3", "4")
QUOTA, LIMIT = 1_000_000, "1 MB/s"
FILLED_BYTES = 6_000_000
SIZE, RATE = r"[\d.]+ [kM]?B", r"[\d.]+ [kM]?B/s"
# Of a broker: its bar, how much of it, done and left, rate and limit, what comes in, the end.
ROW = re.compile(
    rf"^(?P<label>\d+|total) +[━╸╺ ]+ (?P<percent>\d+)% +(?P<done>{SIZE}) +(?P<left>{SIZE})"
    rf"(?: +(?P<rate>{RATE}))?(?: +(?P<limit>{RATE}))?(?: +{RATE})? +(?P<ends_in>[\d.]+ \w+|\?)$"
)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))


class Bars(Terminal):
    """A move that is drawn as a bar for each broker."""

    def rows(self, label: str) -> list[re.Match[str]]:
        """Every state that the row of a broker, or that of the total, was drawn in."""
        lines = (line.rstrip() for line in re.split(r"[\r\n]+", self.text))
        return [row for row in map(ROW.match, lines) if row and row["label"] == label]

    def is_halfway(self, label: str) -> bool:
        return any(
            0 < int(row["percent"]) < 100 and row["ends_in"] != "?" for row in self.rows(label)
        )


@contextmanager
def moving(cluster: Cluster, topic: str, path: Path) -> Iterator[Bars]:
    """Partitions of 1 and 2 go to 3 and 4, half of them to each; without --watch."""
    create_with_replicas(cluster, topic, [[1, 2]] * len(TARGETS))
    producer = IntegerProducer(cluster, topic, partitions=len(TARGETS), digits=1_000)
    while producer.sent < FILLED_BYTES // 1_000:
        producer.send(80)
    producer.flush()
    plan = write_plan(path, topic, TARGETS)
    flags = ["--execute", "--reassignment-json-file", plan, "--throttle", str(QUOTA), "--force"]
    terminal = Bars(command(cluster, *flags))
    try:
        yield terminal
    finally:
        terminal.close()


def is_moved(cluster: Cluster, topic: str) -> bool:
    partitions = partitions_of(cluster, topic)
    return [partitions[number].replicas for number in sorted(partitions)] == TARGETS


def test_bars_are_drawn_until_the_end(cluster: Cluster, tmp_path: Path) -> None:
    with moving(cluster, "watched", tmp_path / "plan.json") as terminal:
        assert terminal.read_to_the_end() == 0, terminal.text
    assert is_moved(cluster, "watched")
    header = ["broker", "done", "left", "rate", "limit", "inbound", "ends", "in"]
    assert any(line.split() == header for line in terminal.text.splitlines())
    for destination in (*DESTINATIONS, "total"):
        assert terminal.is_halfway(destination), terminal.text
        rows = terminal.rows(destination)
        percents = [int(row["percent"]) for row in rows]
        assert percents == sorted(percents), "a bar only grows"
        assert any(row["rate"] for row in rows)
        assert (percents[-1], rows[-1]["left"], rows[-1]["ends_in"]) == (100, "0 B", "0 ms")
    for destination in DESTINATIONS:
        limits = [row["limit"] for row in terminal.rows(destination)]
        assert LIMIT in limits
        assert set(limits) <= {LIMIT, None}, "none when it is over"
    for number in range(len(TARGETS)):
        line = f"Reassignment of partition watched-{number} is completed."
        assert line in terminal.text
    assert terminal.shows_its_cursor
    eventually(lambda: not throttles(cluster, "watched"), within_s=10, what="no throttle is left")


def test_ctrl_c_ends_the_watch_and_not_the_move(cluster: Cluster, tmp_path: Path) -> None:
    """Exit code 130, and a hint how to continue; the move goes on, and the cluster removes the
    throttle."""
    topic = "left"
    with moving(cluster, topic, tmp_path / "plan.json") as terminal:
        terminal.read_until(lambda: terminal.is_halfway("total"), within_s=60)
        assert not is_moved(cluster, topic)
        terminal.press_ctrl_c()
        assert terminal.read_to_the_end() == 130, terminal.text
    assert "The moves go on. Follow them with --watch; --verify or --sweep" in terminal.text
    assert "Traceback" not in terminal.text
    assert terminal.shows_its_cursor
    assert throttles(cluster, topic) != {}, "they are under way"
    eventually(lambda: is_moved(cluster, topic), within_s=30, what="they went on")
    eventually(lambda: not throttles(cluster, topic), within_s=10, what="no throttle is left")
