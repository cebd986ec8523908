"""A simulated cluster for tests of one thing, and a client of its topic."""

from __future__ import annotations

from random import Random

from insync.client.partition_client import PartitionClient
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop

TOPIC = "life"
SETTINGS = {
    "auto.create.topics.enable": "true",
    "num.partitions": "2",
    "min.insync.replicas": "2",
}


def new_cluster(loop: VirtualLoop, seed: int) -> Cluster:
    return Cluster(loop, Random(seed), settings=SETTINGS)  # noqa: S311 - chance, not secrecy


def client_of(cluster: Cluster, host: int, partition: int = 0) -> PartitionClient:
    return PartitionClient(cluster.network.host(host), cluster.addresses, TOPIC, partition)
