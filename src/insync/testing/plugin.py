"""pytest plugin: real brokers for one test, gone when it is over, also when it fails.

def test_it(insync_cluster): ...                       # three brokers

@pytest.mark.insync_cluster(brokers=5, settings={"min.insync.replicas": "2"})
def test_more(insync_cluster): ...

def test_two(insync_cluster_factory):
    old, new = insync_cluster_factory(brokers=1), insync_cluster_factory(brokers=3)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from insync.testing.cluster import Cluster


class ClusterFactory(Protocol):
    def __call__(
        self, *, brokers: int = 3, settings: Mapping[str, str] | None = None
    ) -> Cluster: ...


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "insync_cluster(brokers=3, settings=None): what the fixture `insync_cluster` starts",
    )


@pytest.fixture
def insync_cluster_factory() -> Iterator[ClusterFactory]:
    """Starts as many clusters as a test asks for, each with empty folders."""
    # pytest loads plugins before anything else; importing here leaves coverage its chance.
    from insync.testing.cluster import Cluster  # noqa: PLC0415

    with ExitStack() as started:

        def start(*, brokers: int = 3, settings: Mapping[str, str] | None = None) -> Cluster:
            return started.enter_context(Cluster(brokers=brokers, settings=settings))

        yield start


@pytest.fixture
def insync_cluster(
    request: pytest.FixtureRequest, insync_cluster_factory: ClusterFactory
) -> Cluster:
    """Three real brokers with empty folders, or what the test's marker asks for."""
    marker = request.node.get_closest_marker("insync_cluster")
    return insync_cluster_factory(**(marker.kwargs if marker is not None else {}))
