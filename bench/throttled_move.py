"""A throttled move as an operator makes one, by the same requests on either side.

The throttle is set through IncrementalAlterConfigs and the move started by
AlterPartitionReassignments. Progress is read from the destination's folder, not from a broker.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from bench.arrivals import Sample
from bench.loads import LoadFailed
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections, Refused, parse_bootstrap
from insync.client.sockets import Sockets
from insync.wire.apis import Api
from insync.wire.configs import Resource

SOURCE: Final = 1
DESTINATION: Final = 2
SAMPLE_EVERY_S: Final = 0.05
KEPT_MOVING_WITHIN_S: Final = 120.0
REQUEST_EVERY_S: Final = 0.25
SIDES: Final = ("leader", "follower")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    samples: list[Sample]
    taken_s: float  # from the request until nothing is listed as moving


def _request(bootstrap: str, question: Callable[[Admin], Awaitable[T]]) -> T:
    async def answer() -> T:
        async with Admin(Connections(Sockets(), parse_bootstrap(bootstrap))) as admin:
            return await question(admin)

    return asyncio.run(answer())


def create(bootstrap: str, topic: str, *, partitions: int) -> None:
    """With one replica of each partition, all on the source."""
    new = NewTopic(name=topic, assignment=[[SOURCE]] * partitions)
    _request(bootstrap, lambda admin: admin.create_topic(new))


def move(
    bootstrap: str,
    topic: str,
    log_dir: Path,
    *,
    partitions: int,
    bytes_per_s: int,
    within_s: float,
) -> Moved:
    """All partitions to the destination, whose folder is `log_dir`."""

    async def throttled(admin: Admin) -> Moved:
        await _throttle(admin, topic, bytes_per_s)
        return await _move(admin, topic, log_dir, partitions=partitions, within_s=within_s)

    return _request(bootstrap, throttled)


async def _move(
    admin: Admin, topic: str, log_dir: Path, *, partitions: int, within_s: float
) -> Moved:
    samples = [Sample(time.monotonic(), arrived(log_dir, topic))]
    began_s = time.monotonic()
    await _start(admin, topic, partitions)
    is_done = asyncio.create_task(_until_done(admin, began_s + within_s))
    try:
        while not is_done.done():
            await asyncio.sleep(SAMPLE_EVERY_S)
            samples.append(Sample(time.monotonic(), arrived(log_dir, topic)))
        ended_s = await is_done
    finally:
        is_done.cancel()
    return Moved(samples=samples, taken_s=ended_s - began_s)


async def _throttle(admin: Admin, topic: str, bytes_per_s: int) -> None:
    rates = {f"{side}.replication.throttled.rate": str(bytes_per_s) for side in SIDES}
    for broker in (SOURCE, DESTINATION):
        await admin.alter_configs(Resource.BROKER, str(broker), set_values=rates)
    lists = {f"{side}.replication.throttled.replicas": "*" for side in SIDES}
    await admin.alter_configs(Resource.TOPIC, topic, set_values=lists)


@contextmanager
def keep_moving(
    bootstrap: str, topic: str, *, partitions: int, bytes_per_s: int | None
) -> Iterator[None]:
    """To the destination and back, again and again; the last move ends without a throttle."""
    ended = threading.Event()

    async def to_and_fro(admin: Admin) -> None:
        if bytes_per_s is not None:
            await _throttle(admin, topic, bytes_per_s)
        target = DESTINATION
        while not ended.is_set():
            await _start(admin, topic, partitions, target)
            target = SOURCE if target == DESTINATION else DESTINATION
            while not ended.is_set() and await admin.moves():
                await asyncio.sleep(SAMPLE_EVERY_S)
        await _end_throttle(admin, topic)
        await _until_done(admin, time.monotonic() + KEPT_MOVING_WITHIN_S)
        await _start(admin, topic, partitions, SOURCE)
        await _until_done(admin, time.monotonic() + KEPT_MOVING_WITHIN_S)

    with ThreadPoolExecutor(1) as thread:
        moving = thread.submit(_request, bootstrap, to_and_fro)
        try:
            yield
        finally:
            ended.set()
        moving.result()


async def _end_throttle(admin: Admin, topic: str) -> None:
    rates = [f"{side}.replication.throttled.rate" for side in SIDES]
    for broker in (SOURCE, DESTINATION):
        await admin.alter_configs(Resource.BROKER, str(broker), set_values={}, deleted=rates)
    lists = [f"{side}.replication.throttled.replicas" for side in SIDES]
    await admin.alter_configs(Resource.TOPIC, topic, set_values={}, deleted=lists)


async def _start(admin: Admin, topic: str, partitions: int, target: int = DESTINATION) -> None:
    moves = [{"partition_index": number, "replicas": (target,)} for number in range(partitions)]
    values = {
        "timeout": timedelta(seconds=30),
        "topics": [{"name": topic, "partitions": moves}],
    }

    async def attempt() -> None:
        answer = await admin.connections.ask_controller(Api.ALTER_PARTITION_REASSIGNMENTS, values)
        parts = [each for response in answer.responses for each in response.partitions]
        for each in (answer, *parts):
            if each.error_code is not ErrorCode.none:
                raise Refused(each.error_code, each.error_message or "the move")

    await admin.connections.operation(attempt)


async def _until_done(admin: Admin, deadline_s: float) -> float:
    while await admin.moves():
        if time.monotonic() > deadline_s:
            raise LoadFailed("a throttled move did not end")
        await asyncio.sleep(REQUEST_EVERY_S)
    return time.monotonic()


def arrived(log_dir: Path, topic: str) -> int:
    return sum(each.stat().st_size for each in log_dir.glob(f"{topic}-*/*.log"))
