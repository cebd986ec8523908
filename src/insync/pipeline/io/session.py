"""A Spark session for commands, tests and examples; a program that has one uses its own.

Spark's log does not reach the terminal: the JVM and its workers write to a file. If Spark fails,
the first error in it is shown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from insync.rules.refusals import Refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
JAVA_ANSWERS_WITHIN_S: Final = 30.0
ERROR_LINE: Final = re.compile(r"error|exception|invalid|unsupported|cannot", re.IGNORECASE)
LINE_MAX: Final = 300

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # One machine: a task costs 40 ms, and Spark's default of 200 for every shuffle is slow.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}


class NoSpark(Refusal):
    """Spark, or the Java that it needs, is missing or does not start."""


def check_java() -> None:
    """Refuse in one line what Spark would report in fifty."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    requirement = f"Spark needs Java {JAVA_MIN} or newer"
    if java is None:
        raise NoSpark(
            f"{requirement}, and there is no java on the PATH; install one or set JAVA_HOME"
        )
    try:
        output = subprocess.run(  # noqa: S603 - the java that Spark would start
            [java, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=JAVA_ANSWERS_WITHIN_S,
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        where = f"JAVA_HOME is {home}, but {java}" if home else java
        raise NoSpark(f"{requirement}; {where} does not run: {error}") from None
    version = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if version is None:
        raise NoSpark(
            f"{requirement}; {java} prints no version: {' '.join(output.split())[:LINE_MAX]}"
        )
    major = int(version[2] if version[1] == "1" else version[1])  # Java 8 called itself 1.8
    if major < JAVA_MIN:
        raise NoSpark(f"{requirement}; {java} is Java {major}. Set JAVA_HOME to a newer one")


def check_packages() -> None:
    try:
        import numba  # noqa: F401, PLC0415 - looked for, not used
        import pyarrow  # noqa: F401, PLC0415
        import pyspark  # noqa: F401, PLC0415
    except ImportError as error:
        raise NoSpark(
            f"this needs {error.name}: install it with pip install 'insync[spark]'"
        ) from None


def is_submitted() -> bool:
    """Whether `spark-submit` started us: then Java runs, and it knows the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(
    *, master: str | None = None, settings: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[SparkSession]:
    """A session of our own, stopped at the end; local, unless a master is named or submitted to."""
    check_packages()
    if is_submitted():
        spark = _started(None if master is None else {"spark.master": master}, settings)
        try:
            yield spark
        finally:
            spark.stop()
        return
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or "local[*]"
    own = {"spark.master": master, **(LOCAL_SETTINGS if master.startswith("local") else {})}
    with _log_file(log) as log_path:
        with _output_to(log_path):
            try:
                spark = _started(own, settings)
            except Exception as error:
                raise NoSpark(
                    f"Spark does not start on {master}: {_first_error(log_path) or error}"
                ) from None
        try:
            yield spark
        finally:
            with _output_to(log_path):
                spark.stop()


def _started(own: Mapping[str, str] | None, settings: Mapping[str, str] | None) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second

    builder = SparkSession.builder.appName("insync")
    for name, value in {**SETTINGS, **(own or {}), **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def _log_file(log: Path | None) -> Iterator[Path]:
    if log is not None:
        try:
            log.touch()
        except OSError as error:
            raise NoSpark(f"cannot write Spark's log to {log}: {error.strerror}") from None
        yield log
        return
    with tempfile.TemporaryDirectory(prefix="insync-spark-") as folder:
        yield Path(folder, "spark.log")


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Processes started in this block write there until they end; this one only in the block."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for number in kept:
            os.dup2(target, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, former in kept.items():
            os.dup2(former, number)
            os.close(former)
        os.close(target)


def _first_error(log_path: Path) -> str:
    lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if ERROR_LINE.search(line)] or lines
    return errors[0][:LINE_MAX] if errors else ""
