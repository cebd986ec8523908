"""What is refused before Spark starts: a line and exit code 1, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.cli.main import main
from insync.pipeline.io.session import NoSpark, check_java


def java(folder: Path, words: str, *, code: int = 0) -> Path:
    """A java that says only this."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder


def test_versions_of_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(words: str) -> str:
        home = java(tmp_path / str(len(list(tmp_path.iterdir()))), words)
        monkeypatch.setenv("JAVA_HOME", str(home))
        try:
            check_java()
        except NoSpark as refusal:
            return str(refusal).replace(str(home), "HOME")
        return "fine"

    assert checked('openjdk version "17.0.15" 2025-04-15') == "fine"
    assert checked('openjdk version "21" 2023-09-19') == "fine"
    needs = "Spark needs Java 17 or newer; HOME/bin/java"
    assert checked('java version "1.8.0_392"').startswith(f"{needs} is Java 8. Set JAVA_HOME")
    assert checked('openjdk version "11.0.2"').startswith(f"{needs} is Java 11.")
    assert checked("what?") == f"{needs} prints no version: what?"


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSpark, match="there is no java on the PATH; install one or set JAVA_HOME"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoSpark, match=r"JAVA_HOME is .*, but .*/bin/java does not run"):
        check_java()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["episodes", "--source", "nowhere"],
            1,
            "there is no folder nowhere, and it is no HOST:PORT",
        ),
        (["lag", "--source", "."], 1, "/taken/lag exists; choose another --out, or --overwrite"),
        (["raw", "--source", "."], 1, "Spark needs Java 17"),
        (["report", "--source", "127.0.0.1:1"], 1, "/taken/telemetry exists; choose another --out"),
        (["lag", "--source", ".", "--format", "csv"], 2, "--format is csv; it is one of parquet"),
        (["what-if", "--source", ".", "--lag-time-max-ms", "1s"], 2, "no list of whole numbers"),
        (["episodes", "--source", ".", "--conf", "x"], 2, "--conf: 'x' is not KEY=VALUE"),
        (["stream", "--source", "nowhere"], 2, "'nowhere' is not HOST:PORT; a stream"),
        (["episodes", "--source", ".", "--engine", "spark"], 1, "Spark needs Java 17"),
        (["episodes", "--source", ".", "--master", "local[1]"], 1, "Spark needs Java 17"),
        # The local engine needs no Java: it gets as far as the tables.
        (["episodes", "--source", "."], 1, ". has no table fetches"),
        (
            ["lag", "--source", "127.0.0.1:1", "--engine", "local", "--overwrite"],
            1,
            "run insync telemetry export",
        ),
    ],
)
def test_refused_before_spark_starts(
    *,
    arguments: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "taken"
    for name in ("lag", "telemetry"):
        (out / name).mkdir(parents=True)
    assert main(["pipeline", *arguments, "--out", str(out)]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
