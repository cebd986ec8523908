"""One trial: a fresh cluster, one kind of load, the figures seen. Nothing else runs meanwhile.

A cluster is started for each trial and gone after it. Two clusters side by side would share the
machine: three idle JVMs take a sixth of a core and a gigabyte, and a stopped one loses its session.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import arrivals, loads, size, throttled_move, what_if
from bench.backed_memory import back
from bench.loads import LoadFailed
from bench.processes import GIGABYTE, MEGABYTE, cpu_s, memory_mb
from bench.ratios import Values
from bench.sides import (
    APACHE_KAFKA,
    BROKERS,
    DUCKDB,
    OTHER_TREE,
    WITHOUT_QUOTAS,
    WITHOUT_TELEMETRY,
    Contender,
    Side,
)

TOPIC = "bench"
PARTITIONS = 6
MANY_PARTITIONS = 1_000
DONE_WITHIN_S = 120.0
IDLE_WINDOWS = 6
POLL_AFTER_S = 0.02
LAG_S = 1.5
IMPATIENT = {
    "replica.lag.time.max.ms": str(int(LAG_S * 1_000)),
    "broker.session.timeout.ms": "30000",
}
STOPS = 8
MOVED_PARTITIONS = 100
QUOTA_BYTES_PER_S = 10 * MEGABYTE
MOVED = "moved"
MOVED_MANY = "moved-many"
MAX_IMPACT = 0.3  # of the throughput without a move
TREES = "trees"
DUEL_BYTES = 25 * MEGABYTE
DUEL_WARM_UPS = 4
BACKED_BYTES_PER_S = 800 * MEGABYTE  # what three brokers write at most, and some more


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long to look. Rates do not depend on it; how much noise they hold does."""

    warm_s: float
    load_s: float
    settle_s: float
    idle_s: float
    catch_up_bytes: int
    moved_bytes: int
    rows: int
    many_rows: int


FULL = Scale(
    warm_s=6,
    load_s=8,
    settle_s=4,
    idle_s=5,
    catch_up_bytes=GIGABYTE,
    moved_bytes=300 * MEGABYTE,
    rows=20_000_000,
    many_rows=100_000_000,
)
QUICK = Scale(
    warm_s=2,
    load_s=3,
    settle_s=2,
    idle_s=2,
    catch_up_bytes=GIGABYTE // 5,
    moved_bytes=60 * MEGABYTE,
    rows=2_000_000,
    many_rows=4_000_000,
)

Seen = Mapping[str, Values]
"""By figure: its value, or as many as were tried for."""
Trial = Callable[[Contender, Scale], Seen]


def idle(contender: Contender, scale: Scale) -> Seen:
    seen = {"start": contender.seconds_to_serve()}
    with contender.cluster() as side:
        time.sleep(scale.settle_s)
        seen["memory-idle"] = memory_mb(side.pids.values())
        create_topic(side, partitions=MANY_PARTITIONS)
        # The least of several windows: a JVM goes on compiling long after it has anything to do.
        windows = (cores_taken(side, scale.idle_s) for _ in range(IDLE_WINDOWS))
        seen["cpu-idle-1000"] = 100 * min(windows)
        seen["memory-1000"] = memory_mb(side.pids.values())
    return seen


def cores_taken(side: Side, during_s: float) -> float:
    """By all brokers together: 0.5 is half of one core."""
    before_s, began_s = cpu_s(side.pids.values()), time.monotonic()
    time.sleep(during_s)
    return (cpu_s(side.pids.values()) - before_s) / (time.monotonic() - began_s)


def produce(contender: Contender, scale: Scale) -> Seen:
    """1 KiB messages in batches as large as librdkafka makes them; then the same read back."""
    with contender.cluster() as side:
        made = _produce(side, scale, message_bytes=1_024)
        before_s = cpu_s(side.pids.values())
        spec = {"topic": TOPIC, "partitions": PARTITIONS, "messages": made["messages"]}
        read = loads.run("consume", bootstrap=side.bootstrap, seconds=scale.load_s, **spec)
        taken_s = cpu_s(side.pids.values()) - before_s
    return {
        "produce": made["bytes"] / made["seconds"] / MEGABYTE,
        "produce-cpu": made["cpu_s"] / made["bytes"] * GIGABYTE,
        "consume": read["bytes"] / read["seconds"] / MEGABYTE,
        "consume-cpu": taken_s / read["bytes"] * GIGABYTE,
    }


def small_batches(contender: Contender, scale: Scale) -> Seen:
    with contender.cluster() as side:
        made = _produce(side, scale, message_bytes=1_024, client={"batch.size": 16_384})
    return {"small-batches": made["bytes"] / made["seconds"] / MEGABYTE}


def small_messages(contender: Contender, scale: Scale) -> Seen:
    with contender.cluster() as side:
        made = _produce(side, scale, message_bytes=100)
    return {
        "small-messages": made["messages"] / made["seconds"] / 1_000,
        "small-messages-cpu": made["cpu_s"] / made["bytes"] * GIGABYTE,
    }


def throttle(contender: Contender, scale: Scale) -> Seen:
    """Partitions moved from one broker to another under a quota, with nothing else going on."""
    with contender.cluster() as side:
        throttled_move.create(side.bootstrap, TOPIC, partitions=MOVED_PARTITIONS)
        spec = {"partitions": MOVED_PARTITIONS, "message_bytes": 1_024, "client": {}}
        loads.run("produce", bootstrap=side.bootstrap, topic=TOPIC, bytes=scale.moved_bytes, **spec)
        os.sync()
        seen = throttled_move.move(
            side.bootstrap,
            TOPIC,
            side.log_dir(throttled_move.DESTINATION),
            partitions=MOVED_PARTITIONS,
            bytes_per_s=QUOTA_BYTES_PER_S,
            within_s=DONE_WITHIN_S,
        )
    ideal_s = seen.samples[-1].bytes / QUOTA_BYTES_PER_S
    return {
        "throttle-mean": arrivals.mean_rate(seen.samples) / QUOTA_BYTES_PER_S,
        "throttle-1s": arrivals.worst_rate(seen.samples, window_s=1) / QUOTA_BYTES_PER_S,
        "throttle-10s": arrivals.worst_rate(seen.samples, window_s=10) / QUOTA_BYTES_PER_S,
        "throttle-time": seen.taken_s / ideal_s,
    }


def impact(contender: Contender, scale: Scale) -> Seen:
    """What clients feel of a move: without one, under the recommended throttle, without throttle.

    The network is what the brokers take from a producer at full speed: with as many replicas as
    brokers, all of it reaches each broker. `insync reassign --plan --max-impact` says the throttle.
    A throttle bounds bytes, and not what it costs to move a partition at all, so the throttled move
    is also made with many small partitions, with the throttle that is said for these.
    """
    with contender.cluster() as side:
        _fill(side, MOVED, partitions=PARTITIONS, size_bytes=2 * scale.moved_bytes)
        _warm_up(side, scale, _load(side, message_bytes=1_024))
        before = _feel(side, scale)
        network_bytes_per_s = int(before["produce"] * MEGABYTE)
        throttle = recommended_throttle(
            side, MOVED, partitions=PARTITIONS, network_bytes_per_s=network_bytes_per_s
        )

        def feel_move(topic: str, partitions: int, bytes_per_s: int | None) -> dict[str, float]:
            with throttled_move.keep_moving(
                side.bootstrap, topic, partitions=partitions, bytes_per_s=bytes_per_s
            ):
                return _feel(side, scale)

        phases = {
            "throttled": feel_move(MOVED, PARTITIONS, throttle),
            "unthrottled": feel_move(MOVED, PARTITIONS, None),
        }
        _fill(side, MOVED_MANY, partitions=MOVED_PARTITIONS, size_bytes=scale.moved_bytes)
        throttle_many = recommended_throttle(
            side, MOVED_MANY, partitions=MOVED_PARTITIONS, network_bytes_per_s=network_bytes_per_s
        )
        phases["many"] = feel_move(MOVED_MANY, MOVED_PARTITIONS, throttle_many)
        after = _feel(side, scale)
    # The machine's speed drifts: what is lost is compared with the mean of before and after.
    still = {name: (before[name] + after[name]) / 2 for name in before}
    seen = {
        f"impact-{phase}-{name}": value
        for phase, felt in {"none": still, **phases}.items()
        for name, value in felt.items()
    }
    for phase, felt in phases.items():
        seen[f"impact-{phase}-loss"] = 100 * (1 - felt["produce"] / still["produce"])
    return {
        **seen,
        "impact-asked": 100 * MAX_IMPACT,
        "impact-quota": throttle / MEGABYTE,
        "impact-many-quota": throttle_many / MEGABYTE,
    }


def _fill(side: Side, topic: str, *, partitions: int, size_bytes: int) -> None:
    """A topic to move, with one replica of each partition."""
    throttled_move.create(side.bootstrap, topic, partitions=partitions)
    spec = {"partitions": partitions, "message_bytes": 1_024, "client": {}}
    loads.run("produce", bootstrap=side.bootstrap, topic=topic, bytes=size_bytes, **spec)


def _feel(side: Side, scale: Scale) -> dict[str, float]:
    """A steady producer with a consumer behind it, then a producer at full speed."""
    os.sync()
    spec = {"bootstrap": side.bootstrap, "partitions": PARTITIONS, "message_bytes": 1_024}
    pace = {"bytes_per_s": MEGABYTE, "warm_s": 1, "seconds": scale.load_s, "is_read": True}
    steady = loads.run("pace", topic=TOPIC, **pace, **spec)
    back(scale.load_s * BACKED_BYTES_PER_S)
    full = loads.run("produce", topic=TOPIC, seconds=scale.load_s, client={}, **spec)
    return {
        "produce": full["bytes"] / full["seconds"] / MEGABYTE,
        "p50": steady["p50_s"] * 1_000,
        "p99": steady["p99_s"] * 1_000,
        "lag": steady["lag_p99_s"] * 1_000,
    }


def recommended_throttle(
    side: Side, topic: str, *, partitions: int, network_bytes_per_s: int
) -> int:
    """What the tool says for the most that clients may lose."""
    entries = [
        {"topic": topic, "partition": number, "replicas": [throttled_move.DESTINATION]}
        for number in range(partitions)
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps({"version": 1, "partitions": entries}))
        command = [sys.executable, "-m", "insync", "reassign"]
        command += ["--bootstrap-server", side.bootstrap, "--plan", str(path), "--json"]
        command += ["--network", str(network_bytes_per_s), "--max-impact", f"{MAX_IMPACT:.0%}"]
        command += ["--measure-for", "1s"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise LoadFailed(f"insync reassign --plan: {done.stderr.strip()}")
    return int(json.loads(done.stdout)["throttles"]["max_impact"]["bytes_per_s"])


@dataclass(frozen=True, slots=True)
class Duel:
    """Two clusters that run side by side, and small loads to either in turn.

    For a ratio near 1: a machine's speed changes within seconds, a fresh cluster is never just as
    the one before, and only many pairs have a median that means something.
    """

    figure: str

    def rounds(
        self, contenders: Sequence[Contender], pairs: int
    ) -> Iterator[tuple[int, dict[str, Seen]]]:
        """The CPU per GB of each, by its name, pair by pair."""
        with ExitStack() as clusters:
            sides = {each.name: clusters.enter_context(each.cluster()) for each in contenders}
            for side in sides.values():
                create_topic(side)
            for pair in range(1 - DUEL_WARM_UPS, pairs + 1):
                names = list(sides) if pair % 2 else list(sides)[::-1]
                # What comes of a load a moment later, as telemetry does, is counted as well: until
                # the other's is over, or in the next round.
                pids = {name: list(sides[name].pids.values()) for name in names}
                back(2 * len(names) * BROKERS * DUEL_BYTES)
                before_s = {name: cpu_s(pids[name]) for name in names}
                made = {name: self._load(sides[name]) for name in names}
                taken_s = {name: cpu_s(pids[name]) - before_s[name] for name in names}
                if pair > 0:
                    yield (
                        pair,
                        {
                            name: {self.figure: taken_s[name] / made[name] * GIGABYTE}
                            for name in names
                        },
                    )

    def _load(self, side: Side) -> float:
        load = _load(side, message_bytes=1_024)
        return loads.run("produce", topic=TOPIC, bytes=DUEL_BYTES, **load)["bytes"]


def _produce(
    side: Side,
    scale: Scale,
    *,
    message_bytes: int,
    client: dict[str, Any] | None = None,
) -> dict[str, float]:
    """The load that is measured, after a shorter one of the same kind on another topic."""
    load = _load(side, message_bytes=message_bytes, client=client)
    _warm_up(side, scale, load)
    os.sync()  # what was left to write before is not this load's
    back(scale.load_s * BACKED_BYTES_PER_S)
    pids = list(side.pids.values())
    before_s = cpu_s(pids)
    made = loads.run("produce", topic=TOPIC, seconds=scale.load_s, **load)
    return {**made, "cpu_s": cpu_s(pids) - before_s}


def _load(
    side: Side, *, message_bytes: int, client: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "bootstrap": side.bootstrap,
        "partitions": PARTITIONS,
        "message_bytes": message_bytes,
        "client": client or {},
    }


def _warm_up(side: Side, scale: Scale, load: dict[str, Any]) -> None:
    create_topic(side, f"{TOPIC}-warm")
    loads.run("produce", topic=f"{TOPIC}-warm", seconds=scale.warm_s, **load)
    create_topic(side)


def catch_up(contender: Contender, scale: Scale) -> Seen:
    """A broker is killed, misses a gigabyte and comes back: until it is in every ISR again."""
    with contender.cluster() as side:
        create_topic(side)
        absent = max(side.pids)
        side.kill(absent)
        present = present_bootstrap(side, absent)
        await_isr(present, lambda members: members == BROKERS - 1, what="a killed broker is out")
        spec = {"partitions": PARTITIONS, "message_bytes": 1_024, "client": {}}
        loads.run("produce", bootstrap=present, topic=TOPIC, bytes=scale.catch_up_bytes, **spec)
        os.sync()
        back(2 * scale.catch_up_bytes)
        began_s = time.monotonic()
        side.restart(absent)
        await_isr(present, lambda members: members == BROKERS, what="it has caught up")
        return {"catch-up": time.monotonic() - began_s}


def latency(contender: Contender, scale: Scale) -> Seen:
    """1 MB/s, long after the code is warm: a burst first, then a while at the same pace."""
    with contender.cluster() as side:
        create_topic(side, f"{TOPIC}-warm")
        spec = {"bootstrap": side.bootstrap, "partitions": PARTITIONS, "message_bytes": 1_024}
        loads.run("produce", topic=f"{TOPIC}-warm", seconds=scale.warm_s, client={}, **spec)
        create_topic(side)
        os.sync()
        pace = {"bytes_per_s": MEGABYTE, "warm_s": scale.warm_s, "seconds": scale.load_s}
        seen = loads.run("pace", topic=TOPIC, **pace, **spec)
    return {"latency-p50": seen["p50_s"] * 1_000, "latency-p99": seen["p99_s"] * 1_000}


def failover(contender: Contender, scale: Scale) -> Seen:  # noqa: ARG001 - it takes what it takes
    with contender.cluster() as side:
        create_topic(side, partitions=1)
        leader = partitions_of(side.bootstrap)[0].leader
        spec = {"topic": TOPIC, "leader_pid": side.pids[leader]}
        seen = loads.run("lose-leader", bootstrap=side.bootstrap, **spec)
        side.kill(leader)
    return {"failover": seen["seconds"]}


def eviction(contender: Contender, scale: Scale) -> Seen:  # noqa: ARG001 - it takes what it takes
    """Followers stopped at random moments under load: until each is out, in lag limits."""
    with contender.cluster(settings=IMPATIENT) as side, ExitStack() as at_the_end:
        create_topic(side, partitions=1)
        leader = partitions_of(side.bootstrap)[0].leader
        # The controller writes an eviction: if it is stopped, that takes until its session ends.
        busy = {leader, side.controller()}
        others = [broker for broker in side.pids if broker not in busy]
        address = side.bootstrap.split(",")[leader - 1]
        at_the_end.enter_context(trickle(address))
        limits = []
        for number in range(STOPS):
            pid = side.pids[others[number % len(others)]]
            time.sleep(SystemRandom().uniform(0, LAG_S))
            os.kill(pid, signal.SIGSTOP)
            began_s = time.monotonic()
            try:
                await_isr(
                    address, lambda members: members == BROKERS - 1, what="a stopped one is out"
                )
                limits.append((time.monotonic() - began_s) / LAG_S)
            finally:
                os.kill(pid, signal.SIGCONT)
            await_isr(address, lambda members: members == BROKERS, what="it is back")
    return dict.fromkeys(("eviction-min", "eviction", "eviction-max"), limits)


@contextmanager
def trickle(bootstrap: str) -> Iterator[None]:
    """A message now and then, so that a follower that stops falls behind."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "log_level": 0})
        while not stop.wait(0.005):
            producer.produce(TOPIC, b"x" * 100, partition=0)
            producer.poll(0)
        producer.flush(5)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


TRIALS: dict[str, Trial | Duel] = {
    "idle": idle,
    "produce": produce,
    "small-batches": small_batches,
    "small-messages": small_messages,
    "catch-up": catch_up,
    "latency": latency,
    "failover": failover,
    "eviction": eviction,
    "throttle": throttle,
    "impact": impact,
    "unthrottled": Duel("unthrottled-cpu"),
    "telemetry": Duel("telemetry-cpu"),
    TREES: Duel("trees-cpu"),
    "size": lambda contender, scale: size.measure(
        contender, size.Watched(idle_s=scale.idle_s, busy_s=scale.load_s)
    ),
    "what-if": lambda contender, scale: what_if.twenty_million(contender.name, scale.rows),
    "what-if-large": lambda contender, scale: what_if.hundred_million(
        contender.name, scale.many_rows
    ),
}
RIVALS: dict[str, Contender] = {
    "unthrottled": WITHOUT_QUOTAS,
    "telemetry": WITHOUT_TELEMETRY,
    TREES: OTHER_TREE,
    "what-if": DUCKDB,
    "what-if-large": DUCKDB,
}
"""What Insync is compared with, where that is not Apache Kafka but Insync with something less, or
another way to replay telemetry."""
PAIRS_OF = {"unthrottled": 121, "telemetry": 121, TREES: 121, "size": 1, "what-if-large": 1}
"""Of trials whose ratio is so near 1 that a few pairs say nothing, or that take very long."""


def rival(trial: str) -> Contender:
    return RIVALS.get(trial, APACHE_KAFKA)


def create_topic(side: Side, name: str = TOPIC, *, partitions: int = PARTITIONS) -> None:
    """With factor 3, and wait until every partition has a leader and all replicas in sync."""
    client = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})
    topic = NewTopic(name, partitions, BROKERS)
    client.create_topics([topic], operation_timeout=60)[name].result(90)
    await_isr(side.bootstrap, lambda members: members == BROKERS, what="it is served", name=name)


def partitions_of(bootstrap: str, name: str = TOPIC) -> dict[int, Any]:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions: dict[int, Any] = client.list_topics(name, timeout=10).topics[name].partitions
    return partitions


def await_isr(
    bootstrap: str, is_good: Callable[[int], bool], *, what: str, name: str = TOPIC
) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline_s = time.monotonic() + DONE_WITHIN_S
    while True:
        partitions = client.list_topics(name, timeout=10).topics[name].partitions.values()
        if partitions and all(each.leader >= 0 and is_good(len(each.isrs)) for each in partitions):
            return
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"not within {DONE_WITHIN_S:.0f} s: {what}")
        time.sleep(POLL_AFTER_S)


def present_bootstrap(side: Side, absent: int) -> str:
    """The addresses of the others: a client of the absent one would wait in vain."""
    addresses = side.bootstrap.split(",")
    return ",".join(each for broker, each in enumerate(addresses, start=1) if broker != absent)
