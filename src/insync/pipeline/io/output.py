"""Results as files: a folder per table, Parquet or Delta."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from insync.pipeline.io.storage import is_url
from insync.pipeline.local.frames import as_local as as_local_frame
from insync.pipeline.local.session import as_local
from insync.rules.refusals import Refusal

PARQUET: Final = "parquet"
FORMATS: Final = (PARQUET, "delta")
COMPRESSION: Final = "zstd"
FILE: Final = "part-00000.parquet"  # of a table that the local engine writes
LINE_MAX: Final = 300
_OUR_WORDS: Final = re.compile(r"^\s*(?:\w+: )?insync\.[\w.]+: (.+)$", re.MULTILINE)
_SPARKS_WORDS: Final = re.compile(r"\[[A-Z]+_[A-Z_.]+\] .+")


class BadOutput(Refusal):
    """Results cannot, or must not, be written there."""


class SparkFailed(Refusal):
    """An error of Spark, in one line."""


def check_new(out: str, names: Iterable[str], *, may_overwrite: bool) -> None:
    """Refuse before the work what writing would refuse at its end."""
    if is_url(out):
        return  # remote storage: Spark refuses when it writes
    if Path(out).exists() and not Path(out).is_dir():
        raise BadOutput(f"{out} is a file; --out names a folder")
    for name in names:
        if not may_overwrite and Path(out, name).exists():
            raise _exists(str(Path(out, name)))


def _exists(path: str) -> BadOutput:
    return BadOutput(f"{path} exists; choose another --out, or --overwrite")


def write(rows: DataFrame, path: str, *, form: str = PARQUET, may_overwrite: bool = False) -> None:
    if (frame := as_local_frame(rows)) is not None:
        _write_here(frame.to_arrow(), Path(path), may_overwrite=may_overwrite)
        return
    try:
        writer = rows.write.format(form).option("compression", COMPRESSION)
        writer.mode("overwrite" if may_overwrite else "error").save(path)
    except (AnalysisException, Py4JError) as error:
        # Spark raises some of its refusals as Java errors.
        if _has_condition(error, "PATH_ALREADY_EXISTS"):
            raise _exists(path) from None
        if _has_condition(error, "DATA_SOURCE_NOT_FOUND"):
            raise BadOutput(
                f"this Spark cannot write {form}: give it the package, for Delta with "
                "--conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0 --conf "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
            ) from None
        raise


def _write_here(rows: pa.Table, folder: Path, *, may_overwrite: bool) -> None:
    """One file, complete or not there."""
    if folder.exists() and not may_overwrite:
        raise _exists(str(folder))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".insync-", dir=folder.parent) as temporary:
            pq.write_table(rows, Path(temporary, FILE), compression=COMPRESSION)
            if folder.exists():
                folder.rename(Path(temporary, "former"))
            folder.mkdir()
            Path(temporary, FILE).rename(folder / FILE)
    except OSError as error:
        raise BadOutput(f"cannot write {folder}: {error.strerror or error}") from None


def _has_condition(error: AnalysisException | Py4JError, condition: str) -> bool:
    if isinstance(error, AnalysisException):
        return error.getCondition() == condition
    return f"[{condition}]" in str(error)


def write_text(spark: SparkSession, path: str, text: str, *, may_overwrite: bool = False) -> None:
    """One file beside the tables: in whatever storage holds them, as the session knows it."""
    if not is_url(path):
        if Path(path).exists() and not may_overwrite:
            raise _exists(path)
        Path(path).write_text(text, encoding="utf-8")
        return
    # Spark itself writes no single files; the Hadoop that it writes with does.
    java: Any = spark._jvm  # noqa: SLF001
    hadoop = java.org.apache.hadoop.fs
    settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    where = hadoop.Path(path)
    storage = hadoop.FileSystem.newInstance(where.toUri(), settings)
    storage.setWriteChecksum(False)  # no .crc beside what people open
    try:
        file = storage.create(where, may_overwrite)
        file.write(text.encode())
        file.close()
    except Py4JError as error:
        if "FileAlreadyExistsException" in str(error):
            raise _exists(path) from None
        raise
    finally:
        storage.close()


def written(spark: SparkSession, path: str, *, form: str = PARQUET) -> DataFrame:
    if (session := as_local(spark)) is not None:
        return cast("DataFrame", session.read_parquet([Path(path, FILE)]))
    return spark.read.format(form).load(path)


def in_a_line(error: PySparkException | Py4JError) -> str:
    """What went wrong in our own words if they are in there, else in Spark's first ones.

    Those have a condition in brackets, where py4j only says which call it was that failed."""
    text = str(error)
    ours = _OUR_WORDS.findall(text)
    if ours:
        return str(ours[-1])[:LINE_MAX]
    sparks = _SPARKS_WORDS.search(text)
    if sparks:
        return sparks[0].strip()[:LINE_MAX]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:LINE_MAX]
