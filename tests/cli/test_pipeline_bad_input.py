"""`insync pipeline` over damaged exports: refused in one line, or counted and noted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from insync.cli.main import main
from insync.pipeline.io import session
from support.pipeline.exported_tables import record, write

pytestmark = pytest.mark.spark

Harm = Callable[[Path], object]
LAG = ("lag",)
WHAT_IF = ("what-if", "--policies", "caught-up", "--lag-time-max-ms", "10000")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions, each in files of its own."""
    folder = write(tmp_path_factory.mktemp("exported"), record())
    for table in folder.iterdir():
        rows = pq.read_table(table / "part-00000.parquet")
        others = rows.slice(0, 0)
        if "partition" in rows.column_names:
            others = replaced(rows, "partition", [1] * rows.num_rows)
        pq.write_table(others, table / "part-00001.parquet")
    return folder


@pytest.fixture
def exported(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "exported"))


@pytest.fixture(
    params=[
        pytest.param("spark", marks=pytest.mark.long),
        pytest.param("local", marks=pytest.mark.local),
    ]
)
def pipeline(
    request: pytest.FixtureRequest,
    exported: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """The command, in the session that all tests share and without any."""
    if request.param == "spark":
        spark = request.getfixturevalue("spark")

        @contextmanager
        def shared(**_: object) -> Iterator[SparkSession]:
            yield spark

        monkeypatch.setattr(session, "session", shared)

    def run(*command: str) -> tuple[int, str, str]:
        out = exported.parent / "out"
        options = ["--source", str(exported), "--out", str(out), "--json"]
        code = main(["pipeline", *command, *options, "--engine", request.param])
        printed = capsys.readouterr()
        return code, printed.out, printed.err.replace(str(exported.parent), "")

    return run


def replaced(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = rows.schema.field(name)
    return rows.set_column(rows.column_names.index(name), field, pa.array(values, field.type))


def as_texts(rows: pa.Table, name: str) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.string()))


def edited(table: str, change: Callable[[pa.Table], pa.Table], *, files: str = "*") -> Harm:
    def harm(folder: Path) -> None:
        for path in (folder / table).glob(f"{files}.parquet"):
            pq.write_table(change(pq.read_table(path)), path)

    return harm


def cut(file: str) -> Harm:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-100])


def overwritten_within(file: str) -> Harm:
    def harm(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[:4] + bytes(300) + data[304:])

    return harm


def no_export(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("not a table")


def nothing(rows: pa.Table) -> pa.Table:
    return rows.slice(0, 0)


FETCHES, APPENDS, ISR, STALLS = (
    f"{table}/part-00001.parquet" for table in ("fetches", "appends", "isr", "stalls")
)


@pytest.mark.parametrize(
    ("command", "harm", "says"),
    [
        pytest.param(
            LAG,
            edited("appends", lambda rows: rows.drop_columns(["seq"])),
            "/exported/appends lacks the column seq",
            id="a column is missing",
        ),
        pytest.param(
            WHAT_IF,
            edited("isr", lambda rows: rows.drop_columns(["reason"])),
            "/exported/isr lacks the column reason",
            id="a column is missing where none is needed",
        ),
        pytest.param(
            LAG,
            edited("appends", lambda rows: as_texts(rows, "seq")),
            "/exported/appends: column seq is string; it must be bigint",
            id="a column has another type",
        ),
        pytest.param(
            LAG, edited("fetches", nothing), "table fetches of /exported is empty", id="no fetches"
        ),
        pytest.param(
            WHAT_IF,
            edited("appends", nothing),
            "table appends of /exported is empty",
            id="no appends",
        ),
        pytest.param(
            LAG,
            lambda folder: shutil.rmtree(folder / "appends"),
            "/exported has no table appends",
            id="a table is missing",
        ),
        pytest.param(
            LAG,
            lambda folder: (folder / FETCHES).unlink(),
            f"/exported lacks {FETCHES}",
            id="a file of fetches is missing",
        ),
        pytest.param(
            WHAT_IF,
            lambda folder: (folder / STALLS).unlink(),
            f"/exported lacks {STALLS}",
            id="a file of stalls is missing",
        ),
        pytest.param(LAG, cut(FETCHES), f"/exported/{FETCHES}", id="fetches are cut"),
        pytest.param(WHAT_IF, cut(ISR), f"/exported/{ISR}", id="changes are cut"),
        pytest.param(WHAT_IF, cut(STALLS), f"/exported/{STALLS}", id="stalls are cut"),
        pytest.param(
            LAG, overwritten_within(APPENDS), f"/exported/{APPENDS}", id="pages are overwritten"
        ),
        pytest.param(LAG, no_export, "/exported has no table", id="no export"),
        pytest.param(
            WHAT_IF,
            lambda folder: (folder.parent / "out" / "what_if").mkdir(parents=True),
            "/out/what_if exists; choose another --out, or --overwrite",
            id="output is there",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(
    command: tuple[str, ...],
    harm: Harm,
    says: str,
    exported: Path,
    pipeline: Callable[..., tuple[int, str, str]],
) -> None:
    harm(exported)
    code, out, err = pipeline(*command)
    assert (code, out) == (1, "")
    assert says in err
    assert err.startswith("insync: ")
    assert err.count("\n") == 1


def second_leader(rows: pa.Table) -> pa.Table:
    return replaced(rows, "leader", [1] * (rows.num_rows - 5) + [2] * 5)


def back_in_time(rows: pa.Table) -> pa.Table:
    times = rows["at_ms"].to_pylist()
    times[100] = times[99] - 1
    return replaced(rows, "at_ms", times)


@pytest.mark.parametrize(
    ("command", "harm", "note"),
    [
        pytest.param(
            LAG,
            edited("appends", lambda rows: rows.append_column("colour", rows["topic"])),
            "appends: ignored the unknown column colour",
            id="a column more",
        ),
        pytest.param(
            LAG,
            edited("appends", second_leader, files="part-00001"),
            "two leaders in one epoch: 5 rows in 1 partitions",
            id="two leaders",
        ),
        pytest.param(
            LAG,
            edited("appends", back_in_time),
            "time runs backwards: 2 rows in 2 partitions",
            id="time runs backwards",
        ),
        pytest.param(
            LAG,
            # Its 200 appends move the end from 1 to 200: the fetches of both followers that saw
            # 2 or more, less the 120 that one of them left out.
            edited("appends", nothing, files="part-00001"),
            "appends are missing: 278 rows in 1 partitions",
            id="a partition's appends are lost",
        ),
        pytest.param(
            WHAT_IF,
            lambda folder: shutil.rmtree(folder / "isr"),
            "has no table isr: treated as empty",
            id="no changes",
        ),
    ],
)
def test_bad_input_that_can_be_skipped_gets_a_note(
    command: tuple[str, ...],
    harm: Harm,
    note: str,
    exported: Path,
    pipeline: Callable[..., tuple[int, str, str]],
) -> None:
    harm(exported)
    code, out, err = pipeline(*command)
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert any(each.endswith(note) for each in summary["notes"]), summary["notes"]
    assert summary["rows"][command[0].replace("-", "_")] > 0
