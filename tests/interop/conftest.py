"""One cluster for the whole lane: each test has a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from cluster_helpers import create_topic

from insync.testing.cluster import Cluster

_numbers = count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sockets that other people's clients leave behind are theirs, whenever they are found."""
    not_ours = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(not_ours)


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
