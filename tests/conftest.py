"""How hard Hypothesis searches: briefly in `make check`, longer in `make test`, and longest in
`make test-long`.

A failure prints the example; the seed it prints replays it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session for all tests that bear the mark `spark`, started as commands start it."""
    from insync.pipeline.session import session  # noqa: PLC0415 - few tests need it

    os.environ.pop("NUMBA_DISABLE_JIT", None)
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.shuffle.partitions": "2",
        # Nothing here runs long enough to repay Java's second compiler.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with session(master="local[2]", settings=settings, log=folder / "spark.log") as started:
        yield started
