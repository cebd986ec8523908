"""One cluster for the whole lane: each test has a topic of its own."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from insync.testing.cluster import Cluster
from support.cluster.clients import create_topic

_numbers = count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore unclosed sockets of third-party clients that the garbage collector finds in a test."""
    not_ours = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(not_ours)


@pytest.fixture(autouse=True)
def sockets_left_behind() -> Iterator[None]:
    """Collect the rest here, and not in the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# Records bear times of years ago, and the lane takes longer than retention waits to look at them.
SETTINGS = {"min.insync.replicas": "2", "log.retention.check.interval.ms": str(24 * 3_600_000)}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of one partition that takes messages of 5 MiB."""
    name = f"topic-{next(_numbers)}"
    create_topic(cluster, name, partitions=1, config={"max.message.bytes": str(5 << 20)})
    return name
