"""Faults in the middle of a throttled move.

A topic is moved by `insync reassign --execute --throttle --watch` while a producer with acks=all
writes to it. When the destination has a part of it, a process is killed with -9, or an operator
changes the rate or cancels. In the end all that was acknowledged is there, and no throttle is.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from insync.testing.cluster import Cluster
from support.cluster.clients import IntegerProducer, check_nothing_lost, eventually, partitions_of
from support.cluster.reassign_command import (
    command,
    controller,
    copied_bytes,
    create_with_replicas,
    reassign_json,
    throttles,
    trickling,
    write_plan,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.timed,
    pytest.mark.insync_cluster(
        brokers=4, settings={"auto.leader.rebalance.enable": "false"}, scope="module"
    ),
]

PARTITIONS = 3
MESSAGE_BYTES = 1_000
FILLED_BYTES = 6_000_000
QUOTA = 1_000_000  # six seconds and more
CRAWL = 150_000  # forty seconds and more
BURST_S = 0.5  # what a bucket may have saved before it is counted
_numbers = count()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """From the source, which leads, to the destination; the keeper keeps its replica."""

    cluster: Cluster
    topic: str
    source: int
    keeper: int
    destination: int
    plan: str
    tool: subprocess.Popen[str]

    @property
    def copied_bytes(self) -> int:
        return copied_bytes(self.cluster, self.topic, self.destination)

    def is_at_rest_at(self, replicas: list[int]) -> bool:
        partitions = partitions_of(self.cluster, self.topic).values()
        return all(p.replicas == replicas and set(p.isrs) == set(replicas) for p in partitions)

    def kill_and_restart(self, broker: int) -> None:
        self.cluster.kill(broker)
        time.sleep(0.5)  # the others go on without it for a while
        self.cluster.restart(broker)


# Faults.


def the_source_dies(move: Move) -> None:
    move.kill_and_restart(move.source)


def the_destination_dies(move: Move) -> None:
    move.kill_and_restart(move.destination)


def the_controller_dies(move: Move) -> None:
    move.kill_and_restart(controller(move.cluster))


def all_brokers_die(move: Move) -> None:
    for broker in move.cluster.brokers:
        move.cluster.kill(broker)
    move.cluster.start()


def the_tool_dies(move: Move) -> None:
    move.tool.kill()


def the_rate_is_raised(move: Move) -> None:
    rates = {value for key, value in throttles(move.cluster).items() if key.endswith(".rate")}
    assert rates == {str(CRAWL)}
    flags = ["--execute", "--reassignment-json-file", move.plan, "--force", "--additional"]
    reassign_json(move.cluster, *flags, "--throttle", str(QUOTA), "--no-watch")


def it_is_cancelled(move: Move) -> None:
    answer = reassign_json(move.cluster, "--cancel", "--reassignment-json-file", move.plan)
    assert answer["cancelled"] == [f"{move.topic}-{number}" for number in range(PARTITIONS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    fault: Callable[[Move], None]
    bytes_per_s: int = QUOTA
    fault_at_bytes: int = FILLED_BYTES // 6
    controller_is_source: bool = False  # otherwise it has none of the data
    is_moved: bool = True
    tool_ends_with: int = 0


LONG = pytest.mark.long
CASES = [
    pytest.param(Case(fault=the_source_dies), id="the-source-dies"),
    pytest.param(Case(fault=the_destination_dies), id="the-destination-dies", marks=LONG),
    pytest.param(Case(fault=the_controller_dies), id="the-controller-dies", marks=LONG),
    pytest.param(Case(fault=the_tool_dies, tool_ends_with=-9), id="the-tool-dies"),
    pytest.param(
        Case(fault=the_rate_is_raised, bytes_per_s=CRAWL, fault_at_bytes=CRAWL),
        id="the-rate-is-raised",
        marks=LONG,
    ),
    pytest.param(
        Case(fault=it_is_cancelled, is_moved=False, tool_ends_with=1), id="it-is-cancelled"
    ),
    pytest.param(
        Case(fault=the_controller_dies, controller_is_source=True),
        id="the-controller-dies-which-leads",
        marks=LONG,
    ),
    pytest.param(Case(fault=all_brokers_die), id="all-brokers-die", marks=LONG),
]


@pytest.mark.parametrize("case", CASES)
def test_a_move_in_flight_ends_correctly_although(
    cluster: Cluster, tmp_path: Path, case: Case
) -> None:
    with under_way(cluster, tmp_path / "plan.json", case) as (move, producer):
        eventually(lambda: move.copied_bytes >= case.fault_at_bytes, within_s=30, what="bytes flow")
        left_bytes, began_s = FILLED_BYTES - move.copied_bytes, time.monotonic()
        assert left_bytes > FILLED_BYTES / 4, "there is a good deal to do yet"
        case.fault(move)
        # As with Apache Kafka, the replica that was to be removed is last after a cancellation.
        end = [move.destination, move.keeper] if case.is_moved else [move.keeper, move.source]
        eventually(lambda: move.is_at_rest_at(end), within_s=30, what=f"all is at {end}")
        took_s = time.monotonic() - began_s
        _, message = move.tool.communicate(timeout=30)
    assert move.tool.returncode == case.tool_ends_with, message
    if case.is_moved:
        assert left_bytes <= 1.05 * QUOTA * (took_s + BURST_S), "the throttle held to the end"
    eventually(lambda: not throttles(cluster, move.topic), within_s=10, what="no throttle is left")
    check_nothing_lost(cluster, producer)
    gone = cluster.brokers[move.source if case.is_moved else move.destination]
    eventually(
        lambda: not list(gone.log_dir.glob(f"{move.topic}-*")),
        within_s=10,
        what=f"the files of broker {gone.broker}, which has no replica, are gone",
    )


@pytest.mark.long
def test_a_move_to_a_destination_that_never_returns_is_reported_stuck_and_can_be_cancelled(
    cluster: Cluster, tmp_path: Path
) -> None:
    case = Case(fault=it_is_cancelled)
    flags = ("--stuck-after", "3s", "--timeout", "60000")  # so long it is not given up
    with under_way(cluster, tmp_path / "plan.json", case, *flags) as (
        move,
        producer,
    ):
        eventually(lambda: move.copied_bytes > 0, within_s=30, what="bytes flow")
        cluster.kill(move.destination)
        assert move.tool.stdout is not None
        stuck = next(line for line in move.tool.stdout if line.startswith("STUCK: "))
        assert f"broker {move.destination}" in stuck
        assert stuck.endswith("start it, or cancel the move\n")
        case.fault(move)
        end = [move.keeper, move.source]
        eventually(lambda: move.is_at_rest_at(end), within_s=30, what=f"all is at {end}")
        move.tool.communicate(timeout=30)
    assert move.tool.returncode == 1
    cluster.restart(move.destination)
    assert throttles(cluster, move.topic) == {}, (
        "not even of the broker that was dead when it ended"
    )
    check_nothing_lost(cluster, producer)


@contextmanager
def under_way(
    cluster: Cluster, path: Path, case: Case, *watch: str
) -> Iterator[tuple[Move, IntegerProducer]]:
    """The tool has been started and watches; the producer goes on until the end."""
    first = controller(cluster)
    others = [broker for broker in cluster.brokers if broker != first]
    source, keeper, destination, *_ = [first, *others] if case.controller_is_source else others
    topic = f"moved{next(_numbers)}"
    create_with_replicas(cluster, topic, [[source, keeper]] * PARTITIONS)
    producer = IntegerProducer(cluster, topic, partitions=PARTITIONS, digits=MESSAGE_BYTES)
    while producer.sent < FILLED_BYTES // MESSAGE_BYTES:
        producer.send(60)  # batches of some 20 kB
    producer.flush()
    plan = write_plan(path, topic, [[destination, keeper]] * PARTITIONS)
    flags = ["--execute", "--reassignment-json-file", plan, "--throttle", str(case.bytes_per_s)]
    with (
        trickling(producer, count=3, every_s=0.05),
        subprocess.Popen(
            command(cluster, *flags, "--force", "--watch", *watch),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as tool,
    ):
        try:
            yield (
                Move(
                    cluster=cluster,
                    topic=topic,
                    source=source,
                    keeper=keeper,
                    destination=destination,
                    plan=plan,
                    tool=tool,
                ),
                producer,
            )
        finally:
            tool.kill()
