"""Every kind of file of one stopped broker, damaged in every way, in a cluster of three.

All brokers stop, one file of one of them is damaged, and that broker starts first. Nothing that was
acknowledged is lost, and the replicas end equal. If the broker refuses to start, the operator
restores the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from insync.sim.cluster import Cluster
from insync.sim.ownership import acting_as
from insync.storage.memory_disk import MemoryDisk
from support.search_effort import tried
from support.sim.few_brokers import (
    KEY,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    topic,
    until,
)
from support.storage.log_model import read_all

SETTINGS = {
    "min.insync.replicas": "2",
    "log.segment.bytes": "2048",
    "log.scrub.interval.ms": "2000",
}
RECORDS = 60
CHECKPOINT_S = 70  # by then every watermark and every inventory is noted
DAMAGED = 1

Damage = Callable[[MemoryDisk, str, Mapping[str, bytes]], None]


def cut(disk: MemoryDisk, path: str, _earlier: Mapping[str, bytes]) -> None:
    disk.cut(path, disk.file_size(path) // 2)


def garble(disk: MemoryDisk, path: str, _earlier: Mapping[str, bytes]) -> None:
    data = disk.read_all(path)
    middle = len(data) // 2
    disk.overwrite(path, middle, bytes(each ^ 0x5A for each in data[middle : middle + 8]))


def remove(disk: MemoryDisk, path: str, _earlier: Mapping[str, bytes]) -> None:
    disk.remove(path)


def make_stale(disk: MemoryDisk, path: str, earlier: Mapping[str, bytes]) -> None:
    if path in earlier:
        disk.write_atomic(path, earlier[path])


def swap(disk: MemoryDisk, path: str, _earlier: Mapping[str, bytes]) -> None:
    """With the file before it of the same kind, else with any other of the folder."""
    folder, _, name = path.rpartition("/")
    others = [f"{folder}/{each}" for each in disk.list(folder) if each != name]
    others = [each for each in others if each in disk.paths()]
    kind = name.rpartition(".")[2]
    alike = [each for each in others if each.endswith(f".{kind}") and each != path]
    for other in (alike or others)[:1]:
        mine, theirs = disk.read_all(path), disk.read_all(other)
        disk.write_atomic(path, theirs)
        disk.write_atomic(other, mine)


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: disk.read_all(path) for path in disk.paths()}


async def stop_all(cluster: Cluster, *, cleanly: bool) -> None:
    for number in cluster.brokers:
        if cleanly:
            with acting_as(number):
                stopping = cluster.loop.create_task(node_of(cluster, number).stop())
            await asyncio.wait([stopping])
        cluster.kill(number)
    await asyncio.sleep(0.3)


async def start_all(cluster: Cluster, path: str, undamaged: Mapping[str, bytes]) -> None:
    """The damaged broker first, and alone for a second."""
    await cluster.start(DAMAGED)
    if cluster.brokers[DAMAGED].node is None:
        for each, data in undamaged.items():
            cluster.brokers[DAMAGED].disk.write_atomic(each, data)
        await cluster.start(DAMAGED)
    assert cluster.brokers[DAMAGED].node is not None, path
    await asyncio.sleep(1)
    for number in cluster.brokers:
        await cluster.start(number)


async def read_values(cluster: Cluster, count: int) -> list[bytes]:
    client = client_of(cluster, 102)
    values: list[bytes] = []
    while len(values) < count:
        more = await client.fetch(len(values))
        values += [value for _, value in more.records]
    return values


def is_whole(cluster: Cluster) -> bool:
    """Every replica is in sync, and each has read its log again since it started."""
    if isr_of(cluster) != [1, 2, 3]:
        return False
    nodes = [node_of(cluster, number) for number in cluster.brokers]
    logs = [replica_of(cluster, number).log for number in cluster.brokers]
    has_failed = any(log.has_failed for log in logs)
    is_scrubbed = all(
        node.replicas.counters.scrubbed_bytes > 4 * logs[0].size_bytes for node in nodes
    )
    return is_scrubbed and not has_failed and not any(node.directory.damaged for node in nodes)


@pytest.mark.slow
@pytest.mark.property
@pytest.mark.parametrize("cleanly", tried([False, True]))
@pytest.mark.parametrize(
    "damage", tried([garble, cut, remove, make_stale, swap]), ids=lambda each: each.__name__
)
def test_no_damaged_file_of_one_broker_loses_anything(damage: Damage, *, cleanly: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        disk = cluster.brokers[DAMAGED].disk
        written = [b"%0100d" % number for number in range(RECORDS)]
        earlier: dict[str, bytes] = {}
        for number, value in enumerate(written):
            await client_of(cluster).append([value])
            if number == RECORDS // 2:
                await asyncio.sleep(CHECKPOINT_S)
                earlier = contents(disk)
        await asyncio.sleep(CHECKPOINT_S)
        paths = [path for path in disk.paths() if disk.file_size(path)]
        assert len(paths) > 15
        for path in paths:
            await stop_all(cluster, cleanly=cleanly)
            undamaged = contents(disk)
            if path not in undamaged:
                await start_all(cluster, path, {})
                continue
            damage(disk, path, earlier)
            await start_all(cluster, path, undamaged)
            try:
                await until(lambda: is_whole(cluster), within_s=90)
            except TimeoutError:
                node = node_of(cluster, DAMAGED)
                raise AssertionError(
                    f"{path}: in sync are {isr_of(cluster)}, damaged is {node.directory.damaged}"
                ) from None
            values = await read_values(cluster, len(written))
            assert values == written, path
            logs = {read_all(replica_of(cluster, number).log) for number in cluster.brokers}
            assert len(logs) == 1, path
            await client_of(cluster).append([b"after " + path.encode()])
            written.append(b"after " + path.encode())
            assert KEY in node_of(cluster, DAMAGED).directory.logs

    play(scenario, settings=SETTINGS, within_s=100_000)
