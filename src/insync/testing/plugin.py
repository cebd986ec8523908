"""pytest plugin: the fixture `insync_cluster`, three brokers for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from insync.testing.cluster import Cluster


@pytest.fixture
def insync_cluster() -> Iterator[Cluster]:
    """Three real brokers with empty folders; gone when the test is over, also when it fails."""
    # pytest loads plugins before anything else; importing here leaves coverage its chance.
    from insync.testing.cluster import Cluster  # noqa: PLC0415

    with Cluster(brokers=3) as cluster:
        yield cluster
