"""KIP-501's example on virtual time: a leader whose disk is slow, with and without KIP-501."""

from __future__ import annotations

from insync.sim.cluster import Cluster
from support.sim.few_brokers import client_of, term_of, topic, until

# As in the document's example. A follower that gave up on its leader would end its own read.
EXAMPLE = {
    "replica.lag.time.max.ms": "10000",
    "replica.fetch.wait.max.ms": "500",
    "replica.socket.timeout.ms": "60000",
    "min.insync.replicas": "2",
}
SOLUTION_1 = EXAMPLE | {
    "follower.fetch.pending.reads.insync.enable": "true",
    "follower.fetch.process.time.max.ms": "100000",
}
SOLUTION_2 = EXAMPLE | {"replica.in.sync.policy": "pending-reads"}  # 500 ms, the default


async def begin_a_slow_read(cluster: Cluster, *, read_s: float = 25.0) -> int:
    """Level followers fetch one more record, which takes so long to read. Returns when."""
    await topic(cluster)
    client = client_of(cluster)
    await client.append([b"x"] * 10)
    await until(lambda: all(f.end == 10 for f in term_of(cluster).followers.values()))
    cluster.brokers[1].disk.is_cold = True
    cluster.brokers[1].read_s = (read_s, read_s)
    appended_ms = cluster.loop.clock_ms()
    await client.append_once([b"slow"])
    await until(lambda: all(f.reads.reads for f in term_of(cluster).followers.values()))
    reads = [f.reads.oldest_parsed_at_ms for f in term_of(cluster).followers.values()]
    began_ms = min(at_ms for at_ms in reads if at_ms is not None)
    assert began_ms >= appended_ms, "what a fetch waited for records is no part of reading them"
    return began_ms
