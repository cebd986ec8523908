"""The Spark session that tests share, and what to show of it when one of them fails.

Tests of tables, and of what they are written with, run twice: on this session, and on the local
engine in its place.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_LINES: Final = 60
FOLDER: Final = pytest.StashKey[Path]()
JAVA_ERROR: Final = "java_error.log"
ENGINES: Final = ("spark", "local")
_TESTS: Final = Path(__file__).parents[1] / "pipeline"
ON_BOTH: Final = (_TESTS / "local", _TESTS / "tables")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spark" in metafunc.fixturenames and metafunc.definition.path.parent in ON_BOTH:
        is_long = metafunc.definition.get_closest_marker("long_on_spark") is not None
        engines = (
            pytest.param(ENGINES[0], marks=[pytest.mark.long] if is_long else []),
            pytest.param(ENGINES[1], marks=pytest.mark.local),
        )
        metafunc.parametrize("spark", engines, indirect=True, scope="session")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The shared session, or the local engine where a test runs on both."""
    if getattr(request, "param", ENGINES[0]) == ENGINES[0]:
        yield request.getfixturevalue("spark_on_java")
        return
    from insync.pipeline.local.session import local_session  # noqa: PLC0415 - few tests need it

    os.environ.pop("NUMBA_DISABLE_JIT", None)
    with local_session() as session:
        yield cast("SparkSession", session)


@pytest.fixture(scope="session")
def spark_on_java(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """One local session for all tests that bear the mark `spark`, started as commands start it."""
    from insync.pipeline.io.session import session  # noqa: PLC0415 - few tests need it

    os.environ.pop("NUMBA_DISABLE_JIT", None)
    folder = request.config.stash[FOLDER] = tmp_path_factory.mktemp("spark")
    java_options = (
        # Nothing here runs long enough to repay Java's second compiler.
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        # Without that compiler Java keeps 48 MB for compiled code. Spark compiles every query, and
        # a JVM without room for more may end in the middle of a later test.
        " -XX:ReservedCodeCacheSize=256m"
        f" -XX:ErrorFile={folder / JAVA_ERROR}"
    )
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": java_options,
        "spark.sql.adaptive.enabled": "false",
        # Nor do a few rows repay Java classes made for their query.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with session(master="local[2]", settings=settings, log=folder / "spark.log") as started:
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of Spark's log with a failure, and how Java ended if it did."""
    report = yield
    folder = item.config.stash.get(FOLDER, None)
    if report.failed and folder is not None and "spark" in getattr(item, "fixturenames", ()):
        report.sections.append(("Java", _state_of_java()))
        for name in ("spark.log", JAVA_ERROR):
            if (folder / name).exists():
                lines = (folder / name).read_text(errors="replace").splitlines()
                shown = lines[-LOG_LINES:] if name == "spark.log" else lines[:LOG_LINES]
                report.sections.append((name, "\n".join(shown)))
    return report


def _state_of_java() -> str:
    from pyspark import SparkContext  # noqa: PLC0415 - it runs already

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return "no process"
    return "it runs" if process.poll() is None else f"it ended with {process.returncode}"
