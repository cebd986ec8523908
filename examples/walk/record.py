"""Records what walk.py reads: three real brokers, real faults, a little more than a minute.

    python examples/walk/record.py examples/walk/telemetry

The folder must be empty or absent. Broker 3 is stopped (SIGSTOP) and goes on, the disk of broker 1
becomes slow and heals, broker 2 is killed and started again, and a topic moves under a throttle.
"""

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from insync.cli import telemetry
from insync.client import reassignments
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections
from insync.client.partition_client import PartitionClient
from insync.client.sockets import Sockets
from insync.rules.values import BrokerId, PartitionId
from insync.testing.cluster import HOST, Cluster

SETTINGS = {
    "replica.lag.time.max.ms": "3000",
    "min.insync.replicas": "2",
    "telemetry.topic.partitions": "1",  # one file per table
}
ORDERS = [(1, 2, 3), (1, 3, 2), (2, 3, 1)]  # replicas of each partition, the leader first
MOVED, MOVED_FROM, MOVED_TO = "payments", (1, 2), (3, 2)
APPEND_EVERY_S, VALUES = 0.2, [bytes(200)] * 10
FILLED, QUOTA = [bytes(10_000)] * 20, 400_000
PUBLISHED_WITHIN_S = 5.0
KEPT_SETTINGS = r"^(replica\.|follower\.|min\.insync|broker\.rack)"


async def write(client: PartitionClient) -> None:
    """Write for as long as the recording lasts, whatever happens to the brokers."""
    while True:
        with suppress(Exception):
            await client.append(VALUES)
        await asyncio.sleep(APPEND_EVERY_S)


async def stage(cluster: Cluster) -> None:
    addresses = [(HOST, broker.port) for broker in cluster.brokers.values()]
    began = time.monotonic()

    def say(words: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:5.1f} s  {words}\n")

    async with Admin(Connections(Sockets(), addresses, client_id="walk")) as admin:
        await admin.create_topic(NewTopic(name="orders", assignment=ORDERS, config={}))
        await admin.create_topic(NewTopic(name=MOVED, assignment=[MOVED_FROM], config={}))
        clients = [PartitionClient(Sockets(), addresses, "orders", each) for each in range(3)]
        payments = PartitionClient(Sockets(), addresses, MOVED, 0)
        for _ in range(16):
            await payments.append(FILLED)
        writers = [asyncio.create_task(write(client)) for client in clients]
        await asyncio.sleep(8)

        say("broker 3 is stopped")
        cluster.pause(3)
        await asyncio.sleep(6)
        cluster.resume(3)
        say("broker 3 goes on")
        await asyncio.sleep(8)

        say("each read of orders from the disk of broker 1 takes 5 s")
        cluster.slow_reads(1, delay_ms=5_000, topic="orders")
        await asyncio.sleep(7)
        cluster.heal()
        say("the disk is as before")
        await asyncio.sleep(10)

        say("broker 2 is killed")
        cluster.kill(2)
        await asyncio.sleep(5)
        cluster.restart(2)
        say("broker 2 runs again")
        await asyncio.sleep(10)

        say(f"{MOVED} moves from broker 1 to broker 3 at {QUOTA} B/s")
        plan = {(MOVED, PartitionId(0)): tuple(map(BrokerId, MOVED_TO))}
        started = await reassignments.start_with_throttle(
            admin, plan, throttle_bytes_per_s=QUOTA, is_additional=False, timeout_ms=10_000
        )
        assert started.is_done, "a plan of our own"
        while await admin.moves():
            await asyncio.sleep(0.2)
        say("moved")
        await asyncio.sleep(5)
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        for client in (*clients, payments):
            await client.close()


def shrink(folder: Path) -> None:
    """For the repository: compressed, and without settings of the host, such as its folders."""
    for path in sorted(folder.glob("*/*.parquet")):
        rows = pq.read_table(path)
        if path.parent.name == "configs":
            kept = pc.match_substring_regex(rows["name"], KEPT_SETTINGS)
            rows = rows.filter(kept)
        pq.write_table(rows, path, compression="zstd", compression_level=19, write_statistics=False)


def main(out: Path) -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        asyncio.run(stage(cluster))
        time.sleep(PUBLISHED_WITHIN_S)
        telemetry.export(cluster.bootstrap, out)
    shrink(out)
    size = sum(path.stat().st_size for path in out.glob("*/*.parquet"))
    sys.stdout.write(f"{size:,} bytes in {out}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
