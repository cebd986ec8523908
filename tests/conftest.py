"""How hard Hypothesis searches: briefly in `make check`, longer in `make test`, and longest in
`make test-long`.

A failure prints the example; the seed it prints replays it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from slices import (  # noqa: F401 - pytest finds its hooks here
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from support.spark_session import (  # noqa: F401 - likewise
    pytest_generate_tests,
    pytest_runtest_makereport,
    spark,
    spark_on_java,
)

if TYPE_CHECKING:
    from insync.testing.cluster import Cluster

# No deadline: these machines are noisy, and a slow example is not a wrong one.
settings.register_profile("quick", max_examples=20, deadline=None, print_blob=True)
for name, examples in (("thorough", 50), ("exhaustive", 600)):
    settings.register_profile(
        name,
        max_examples=examples,
        stateful_step_count=60,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
settings.load_profile(PROFILE)

# Compiling the pipeline's kernels takes half a minute when nothing is kept yet. In `make check`
# they run as the Python they are written in; longer searches and Spark's workers compile them.
if PROFILE == "quick":
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # before anything imports numba


@pytest.fixture
def cluster(insync_cluster: Cluster) -> Cluster:
    """Brokers as the mark `insync_cluster` of the test or its module says."""
    return insync_cluster
