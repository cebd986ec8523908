"""From a folder of tables to results, on a session that the caller has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from insync.pipeline.io.files import BadSource, read_tables
from insync.pipeline.io.output import BadOutput, write_text
from insync.pipeline.job import Job, draw, run
from insync.telemetry.schemas import TABLES
from insync.testing.cluster import Cluster
from support.pipeline.exported_tables import LAG_MS, record, write, write_table
from support.pipeline.telemetry_topic import SETTINGS, Topic

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("exported"), record())


def test_episodes_and_what_if_of_a_silent_follower(
    spark: SparkSession, exported: Path, tmp_path: Path
) -> None:
    job = Job(source=str(exported), out=str(tmp_path / "out"))
    options = {"policies": ("caught-up",), "lag_time_max_ms": (LAG_MS, 2 * LAG_MS)}
    done = run(spark, job, {"episodes": {}, "what_if": options})
    assert done.rows["episodes"] == 1
    (episode,) = pq.read_table(tmp_path / "out" / "episodes").to_pylist()
    assert (episode["follower"], episode["cause"], episode["ending"]) == (3, "stuck", "rejoined")
    rows = pq.read_table(tmp_path / "out" / "what_if").to_pylist()
    overall = {row["lag_time_max_ms"]: row for row in rows if row["level"] == "all"}
    # Silent for 12 s: out under 10 s, in under 20.
    assert [overall[LAG_MS][name] for name in ("shrinks", "expands", "false_evictions")] == [
        1,
        1,
        0,
    ]
    assert [overall[2 * LAG_MS][name] for name in ("shrinks", "missed")] == [0, 0]
    with pytest.raises(BadOutput, match=r"episodes exists; choose another --out, or --overwrite"):
        run(spark, job, {"episodes": {}})


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_damaged_file_is_named(spark: SparkSession, tmp_path: Path, *, is_cut: bool) -> None:
    """In a line of ours, not in Spark's words."""
    folder = write(tmp_path, record())
    file = folder / "fetches" / "part-00000.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if is_cut else b"not parquet at all")
    with pytest.raises(BadSource, match=r"fetches/part-00000.parquet is damaged, or no Parquet"):
        read_tables(spark, str(folder), needed=["fetches"])


@pytest.mark.long
@pytest.mark.process
def test_telemetry_is_parquet_whatever_the_results_are(spark: SparkSession, tmp_path: Path) -> None:
    """Twice over the same brokers: the second run must not see the first one's rows."""
    tables, out = record(), tmp_path / "out"
    with Cluster(brokers=1, settings=SETTINGS) as cluster:
        topic = Topic(cluster, partitions=1)
        for name in ("appends", "fetches"):
            topic.block(0, name, tables[name])
        job = Job(source=cluster.bootstrap, out=str(out), form="orc", may_overwrite=True)
        for _ in range(2):
            done = run(spark, job, {"lag": {}})
            assert done.rows["telemetry/fetches"] == len(tables["fetches"])
            assert pq.read_table(out / "telemetry" / "fetches").num_rows == len(tables["fetches"])
        assert list((out / "lag").glob("*.orc"))


def test_a_report_is_written_beside_its_tables_also_at_a_url(
    spark: SparkSession, exported: Path, tmp_path: Path
) -> None:
    job = Job(source=str(exported), out=f"file://{tmp_path}/out")
    done = run(spark, job, {"episodes": {}})
    draw(spark, job, done)
    assert done.report == f"file://{tmp_path}/out/report.html"
    page = (tmp_path / "out" / "report.html").read_bytes().decode()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"episodes", "report.html"}


@pytest.mark.parametrize("before", ["file://", "file:", ""])
def test_a_file_is_overwritten_only_with_the_flag(
    spark: SparkSession, tmp_path: Path, before: str
) -> None:
    path = f"{before}{tmp_path}/report.html"
    write_text(spark, path, "one ▲")
    assert (tmp_path / "report.html").read_bytes().decode() == "one ▲"
    with pytest.raises(BadOutput, match=r"report.html exists; choose another --out, or --over"):
        write_text(spark, path, "two")
    write_text(spark, path, "three", may_overwrite=True)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["three"]


def test_unknown_columns_are_ignored_with_a_note(
    spark: SparkSession, exported: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(exported / "appends")
    more = rows.append_column("colour", pa.array(["red"] * rows.num_rows))
    write_table(tmp_path / "appends", more)
    tables = read_tables(spark, str(tmp_path), needed=["appends"])
    assert tables.frames["appends"].columns == list(TABLES["appends"].names)
    assert f"{tmp_path}/appends: ignored the unknown column colour" in tables.notes
    assert tables.frames["fetches"].isEmpty()  # not there, and not needed
    assert f"{tmp_path} has no table fetches: treated as empty" in tables.notes
    assert len(tables.notes) == len(TABLES)


def test_tables_that_cannot_be_used_are_refused(
    spark: SparkSession, exported: Path, tmp_path: Path
) -> None:
    def refused(name: str, rows: pa.Table | None) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        if rows is not None:
            write_table(folder / name, rows)
        with pytest.raises(BadSource) as error:
            read_tables(spark, str(folder), needed=[name])
        return str(error.value).replace(str(folder), "DIR")

    rows = pq.read_table(exported / "appends")
    lacking = rows.drop_columns(["seq", "bytes"])
    assert refused("appends", lacking) == "DIR/appends lacks the column seq, bytes"
    assert refused("appends", rows.slice(0, 0)) == (
        "table appends of DIR is empty: nothing was recorded"
    )
    assert refused("appends", None) == "DIR has no table appends: no Parquet in DIR/appends"
    texts = pa.array([str(value) for value in rows["bytes"].to_pylist()])
    wrong = rows.set_column(rows.column_names.index("bytes"), "bytes", texts)
    assert refused("appends", wrong) == "DIR/appends: column bytes is string; it must be bigint"
    small = rows["bytes"].cast(pa.int32())
    narrow = rows.set_column(rows.column_names.index("bytes"), "bytes", small)
    write_table(tmp_path / "narrow" / "appends", narrow)
    frames = read_tables(spark, str(tmp_path / "narrow"), needed=["appends"]).frames
    assert dict(frames["appends"].dtypes)["bytes"] == "bigint"


def test_changes_of_earlier_versions_have_no_cause(
    spark: SparkSession, exported: Path, tmp_path: Path
) -> None:
    """One file without the columns and one with them, whichever Spark looks at."""
    rows = pq.read_table(exported / "isr")
    causes = pa.array(["lag-time", "caught-up"])
    rows = rows.set_column(rows.column_names.index("cause"), "cause", causes)
    earlier = rows.drop_columns(["cause", "late_ms"])
    for names in (("a", "b"), ("b", "a")):
        folder = tmp_path / names[0]
        (folder / "isr").mkdir(parents=True)
        pq.write_table(earlier, folder / "isr" / f"{names[0]}.parquet")
        pq.write_table(rows, folder / "isr" / f"{names[1]}.parquet")
        frame = read_tables(spark, str(folder), needed=["isr"]).frames["isr"]
        assert frame.columns == list(TABLES["isr"].names)
        changes = [(row["change"], row["cause"]) for row in frame.collect()]
        assert sorted(changes, key=str) == [
            ("expand", "caught-up"),
            ("expand", None),
            ("shrink", "lag-time"),
            ("shrink", None),
        ]
    folder = tmp_path / "earlier"
    write_table(folder / "isr", earlier)
    notes = read_tables(spark, str(folder), needed=["isr"]).notes
    assert f"{folder}/isr: no column cause, late_ms: unknown" in notes
    numbers = pa.array([1, 2])
    write_table(folder / "isr", earlier.append_column("cause", numbers))
    with pytest.raises(BadSource, match="column cause is bigint; it must be string"):
        read_tables(spark, str(folder), needed=["isr"])


def test_an_export_of_an_earlier_version_gives_the_same_results(
    spark: SparkSession, exported: Path, tmp_path: Path
) -> None:
    earlier = write(tmp_path / "earlier", record())
    changes = pq.read_table(earlier / "isr").drop_columns(["cause", "late_ms"])
    write_table(earlier / "isr", changes)
    options = {"policies": ("caught-up",), "lag_time_max_ms": (LAG_MS,)}
    results = []
    for source in (exported, earlier):
        out = tmp_path / f"of-{source.name}"
        job = Job(source=str(source), out=str(out))
        run(spark, job, {"episodes": {}, "lag": {}, "what_if": options})
        results.append([pq.read_table(out / each).to_pylist() for each in ("episodes", "what_if")])
    assert results[0] == results[1]
    (episode,) = results[1][0]
    assert (episode["cause"], episode["reason"]) == ("stuck", None)
