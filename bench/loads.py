"""The loads, each in a process of its own, and the same for either side.

`python -m bench.loads LOAD JSON` puts one load on a cluster and prints what it saw as JSON. `run`
does that from the harness.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from insync.rules.refusals import Refusal

ROOT = Path(__file__).parent.parent
LOAD_WITHIN_S = 300.0
FLUSHED_WITHIN_S = 120.0
GIVES_UP_AFTER_S = 60.0
MESSAGES_PER_CALL = 200
MESSAGES_PER_READ = 2_000
TRICKLE_INTERVAL_S = 0.005
DUE = Struct(">d")  # when a message was due, at its beginning
TRICKLE_BEFORE_KILL_S = 1.0
PRODUCER = {"acks": "all", "queue.buffering.max.messages": 200_000, "log_level": 0}


class LoadFailed(Refusal):
    """A cluster failed under a load."""


def produce(spec: dict[str, Any]) -> dict[str, float]:
    """As fast as it goes, for some seconds or some bytes; done when all is acknowledged."""
    producer = Producer(
        {
            **PRODUCER,
            "bootstrap.servers": spec["bootstrap"],
            "delivery.report.only.error": True,
            **spec["client"],
        }
    )
    topic, partitions, size = spec["topic"], spec["partitions"], spec["message_bytes"]
    messages = [{"value": os.urandom(size)} for _ in range(MESSAGES_PER_CALL)]
    errors: list[str] = []

    def failed(error: Any, _message: Any) -> None:
        errors.append(str(error))

    producer.list_topics(topic, timeout=10)  # connected and informed before the clock starts
    count_max = spec.get("bytes", float("inf")) / size
    began_s = time.monotonic()
    ends_s = began_s + spec.get("seconds", LOAD_WITHIN_S)
    queued = turn = 0
    while queued < count_max and time.monotonic() < ends_s and not errors:
        taken = producer.produce_batch(
            topic, messages, partition=turn % partitions, on_delivery=failed
        )
        queued += taken
        turn += 1
        producer.poll(0 if taken == len(messages) else 0.005)  # its queue is full: wait a little
    left = producer.flush(FLUSHED_WITHIN_S)
    taken_s = time.monotonic() - began_s
    if errors or left:
        raise LoadFailed(errors[0] if errors else f"{left} messages were never acknowledged")
    return {"messages": queued, "bytes": queued * size, "seconds": taken_s}


def consume(spec: dict[str, Any]) -> dict[str, float]:
    """From the beginning, for some seconds or until all of it was read; timed from the first."""
    consumer = Consumer(
        {
            "bootstrap.servers": spec["bootstrap"],
            "group.id": "bench",
            "enable.auto.commit": False,
            # Else it sends no fetch for a second whenever it has read ahead as far as it may, and
            # the faster a broker fills it up, the longer it stands still.
            "fetch.queue.backoff.ms": 5,
            "log_level": 0,
        }
    )
    wanted = spec["messages"]
    assigned = [
        TopicPartition(spec["topic"], partition, OFFSET_BEGINNING)
        for partition in range(spec["partitions"])
    ]
    consumer.assign(assigned)
    try:
        first = consumer.consume(1, 30)
        began_s = time.monotonic()
        count, size, now_s = 0, 0, began_s
        while first and count < wanted - 1 and now_s - began_s < spec["seconds"]:
            batch = consumer.consume(min(MESSAGES_PER_READ, wanted - 1 - count), 5)
            if not batch:
                break
            for message in batch:
                if message.error() is not None:
                    raise LoadFailed(str(message.error()))
                size += len(message.value())
            count += len(batch)
            now_s = time.monotonic()
    finally:
        consumer.close()
    if not count:
        raise LoadFailed("nothing could be read")
    return {"messages": count, "bytes": size, "seconds": now_s - began_s}


def pace(spec: dict[str, Any]) -> dict[str, float]:
    """At a steady rate: percentiles of the time from when a message was due to its answer.

    Counted from when it was due: a stall that also keeps the client from sending is not forgotten.
    With `is_read`, a consumer reads along: how much later than due it gets a message is its lag.
    """
    client = {"linger.ms": 0, "max.in.flight.requests.per.connection": 5}
    producer = Producer({**PRODUCER, "bootstrap.servers": spec["bootstrap"], **client})
    topic, partitions = spec["topic"], spec["partitions"]
    value = os.urandom(spec["message_bytes"] - DUE.size)
    interval_s = spec["message_bytes"] / spec["bytes_per_s"]
    latencies_s: list[float] = []
    errors: list[str] = []

    def delivered_after(due_s: float, *, is_counted: bool) -> Callable[[Any, Any], None]:
        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                errors.append(str(error))
            elif is_counted:
                latencies_s.append(time.monotonic() - due_s)

        return delivered

    producer.list_topics(topic, timeout=10)
    reader = _Reader(spec) if spec.get("is_read") else None
    began_s = time.monotonic()
    count = int((spec["warm_s"] + spec["seconds"]) / interval_s)
    for number in range(count):
        due_s = began_s + number * interval_s
        while (early_s := due_s - time.monotonic()) > 0:
            producer.poll(early_s)
        is_counted = due_s - began_s >= spec["warm_s"]
        producer.produce(
            topic,
            DUE.pack(due_s) + value,
            partition=number % partitions,
            on_delivery=delivered_after(due_s, is_counted=is_counted),
        )
        producer.poll(0)
    left = producer.flush(FLUSHED_WITHIN_S)
    if errors or left:
        raise LoadFailed(errors[0] if errors else f"{left} messages were never acknowledged")
    seen = {"p50_s": percentile(latencies_s, 50), "p99_s": percentile(latencies_s, 99)}
    if reader is not None:
        lags_s = reader.finish(count, counted_from_s=began_s + spec["warm_s"])
        seen["lag_p99_s"] = percentile(lags_s, 99)
    return seen


class _Reader:
    """A consumer in a thread of its own, from the ends of the partitions on."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": spec["bootstrap"],
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 5,
                "log_level": 0,
            }
        )
        self._read: list[tuple[float, float]] = []  # when each was due, and when it came
        self._errors: list[str] = []
        self._ended = threading.Event()
        assigned = []
        for partition in range(spec["partitions"]):
            of = TopicPartition(spec["topic"], partition)
            _, end = self._consumer.get_watermark_offsets(of, timeout=10)
            assigned.append(TopicPartition(spec["topic"], partition, end))
        self._consumer.assign(assigned)
        self._thread = threading.Thread(target=self._consume, daemon=True)
        self._thread.start()

    def _consume(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(MESSAGES_PER_READ, 0.05):
                if message.error() is not None:
                    self._errors.append(str(message.error()))
                    return
                self._read.append((DUE.unpack_from(message.value())[0], time.monotonic()))

    def finish(self, count: int, *, counted_from_s: float) -> list[float]:
        """The lag of each message since then, once all were read."""
        deadline_s = time.monotonic() + FLUSHED_WITHIN_S
        while len(self._read) < count and not self._errors and time.monotonic() < deadline_s:
            time.sleep(0.05)
        self._ended.set()
        self._thread.join()
        self._consumer.close()
        if self._errors or len(self._read) < count:
            raise LoadFailed(self._errors[0] if self._errors else "not all could be read")
        return [came_s - due_s for due_s, came_s in self._read if due_s >= counted_from_s]


def percentile(values: list[float], percent: int) -> float:
    """By nearest rank: a value that was seen."""
    rank = -(-len(values) * percent // 100)
    return sorted(values)[rank - 1]


def lose_leader(spec: dict[str, Any]) -> dict[str, float]:
    """Send a trickle, kill the leader, and time the first answer to what was sent since."""
    producer = Producer(
        {
            **PRODUCER,
            "bootstrap.servers": spec["bootstrap"],
            "linger.ms": 0,
            "enable.idempotence": True,
        }
    )
    killed_s: float | None = None
    answered_s: float | None = None
    errors: list[str] = []

    def sent_at(moment_s: float) -> Callable[[Any, Any], None]:
        def delivered(error: Any, _message: Any) -> None:
            nonlocal answered_s
            if error is not None:
                errors.append(str(error))
            elif killed_s is not None and moment_s >= killed_s and answered_s is None:
                answered_s = time.monotonic()

        return delivered

    producer.produce(spec["topic"], b"first", partition=0, on_delivery=sent_at(time.monotonic()))
    if producer.flush(30) or errors:
        raise LoadFailed("the leader does not answer, and was not even killed yet")
    began_s = time.monotonic()
    while answered_s is None:
        now_s = time.monotonic()
        if killed_s is None and now_s > began_s + TRICKLE_BEFORE_KILL_S:
            killed_s = time.monotonic()
            os.kill(spec["leader_pid"], signal.SIGKILL)
        if now_s > began_s + GIVES_UP_AFTER_S:
            raise LoadFailed(f"nothing acknowledged in the {GIVES_UP_AFTER_S:.0f} s after the kill")
        producer.produce(spec["topic"], b"more", partition=0, on_delivery=sent_at(now_s))
        producer.poll(TRICKLE_INTERVAL_S)
    assert killed_s is not None, "an answer counts only after the kill"
    return {"seconds": answered_s - killed_s}


LOADS = {"produce": produce, "consume": consume, "pace": pace, "lose-leader": lose_leader}


def run(load: str, **spec: Any) -> dict[str, float]:
    """Put one load on a cluster, in a process of its own, and wait for its end."""
    command = [sys.executable, "-m", "bench.loads", load, json.dumps(spec)]
    try:
        done = subprocess.run(  # noqa: S603 - this very module
            command, cwd=ROOT, capture_output=True, text=True, timeout=LOAD_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{load} took more than {LOAD_WITHIN_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise LoadFailed(f"{load}: {lines[-1] if lines else 'it said nothing'}")
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


def main() -> int:
    try:
        seen = LOADS[sys.argv[1]](json.loads(sys.argv[2]))
    except LoadFailed as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 1
    sys.stdout.write(json.dumps(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
