"""One cluster for the whole lane: each test has a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from cluster_helpers import create_topic

from insync.testing.cluster import Cluster

_numbers = count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings={"min.insync.replicas": "2"}) as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of one partition that takes messages of 5 MiB."""
    name = f"topic-{next(_numbers)}"
    create_topic(cluster, name, partitions=1, config={"max.message.bytes": str(5 << 20)})
    return name
