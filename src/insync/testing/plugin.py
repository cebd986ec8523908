"""pytest plugin: real brokers for one test or one module, stopped when it ends or fails.

def test_it(insync_cluster): ...                       # three brokers

@pytest.mark.insync_cluster(brokers=5, settings={"min.insync.replicas": "2"})
def test_more(insync_cluster): ...

pytestmark = pytest.mark.insync_cluster(brokers=1, scope="module")  # all tests share one cluster

def test_two(insync_cluster_factory):
    old, new = insync_cluster_factory(brokers=1), insync_cluster_factory(brokers=3)

The report of a test that fails has the end of its brokers' logs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

if TYPE_CHECKING:
    from insync.testing.cluster import Cluster

# Of one test, or shared by the tests of one module, in the order of their start.
CLUSTERS: Final = pytest.StashKey[list["Cluster"]]()
MARK: Final = "insync_cluster"
LOG_LINES: Final = 40


class ClusterFactory(Protocol):
    def __call__(
        self,
        *,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        with_faults: bool = True,
    ) -> Cluster: ...


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(brokers=3, settings=None, with_faults=True, scope='function'): brokers and "
        "settings of `insync_cluster`; with scope='module' all tests of a module share one cluster",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        clusters = [
            cluster for node in item.listchain() for cluster in node.stash.get(CLUSTERS, [])
        ]
        for number, cluster in enumerate(clusters, start=1):
            where = f" of cluster {number}" if len(clusters) > 1 else ""
            report.sections += _log_sections(cluster, where)
    return report


def _log_sections(cluster: Cluster, where: str) -> Iterator[tuple[str, str]]:
    for broker in cluster.brokers.values():
        if broker.log.exists():  # it is gone when the fixture's end fails
            lines = broker.log.read_text(errors="replace").splitlines()
            title = f"log of broker {broker.broker}{where}, last {LOG_LINES} lines"
            yield title, "\n".join(lines[-LOG_LINES:])


@pytest.fixture
def insync_cluster_factory(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Starts clusters, each with empty folders; all stop when the test ends."""
    # pytest loads plugins first; with the import here, coverage can measure the module.
    from insync.testing.cluster import Cluster  # noqa: PLC0415

    with ExitStack() as started:

        def start(
            *,
            brokers: int = 3,
            settings: Mapping[str, str] | None = None,
            with_faults: bool = True,
        ) -> Cluster:
            cluster = Cluster(brokers=brokers, settings=settings, with_faults=with_faults)
            request.node.stash.setdefault(CLUSTERS, []).append(cluster)
            return started.enter_context(cluster)

        yield start


@pytest.fixture(scope="module")
def insync_module_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One cluster for all tests of a module, as the module's mark says."""
    from insync.testing.cluster import Cluster  # noqa: PLC0415 - as above

    options = _marked(request.node)
    options.pop("scope", None)
    cluster = Cluster(**options)
    request.node.stash[CLUSTERS] = [cluster]
    with cluster:
        yield cluster


@pytest.fixture
def insync_cluster(
    request: pytest.FixtureRequest, insync_cluster_factory: ClusterFactory
) -> Cluster:
    """Three real brokers with empty folders, or as the mark of the test or its module says."""
    options = _marked(request.node)
    scope = options.pop("scope", "function")
    if scope == "function":
        return insync_cluster_factory(**options)
    if scope != "module" or options | {"scope": scope} != _marked(
        request.node.getparent(pytest.Module)
    ):
        raise pytest.UsageError(
            f"{MARK}: scope is 'function', or 'module' in the `pytestmark` of a module: {scope!r}"
        )
    cluster: Cluster = request.getfixturevalue("insync_module_cluster")
    return cluster


def _marked(node: Any) -> dict[str, Any]:
    marker = node.get_closest_marker(MARK)
    return {} if marker is None else dict(marker.kwargs)
