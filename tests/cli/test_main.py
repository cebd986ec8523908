"""The command for people and scripts: output, exit codes, one line for an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Group

from insync import __version__
from insync.cli import main as cli
from insync.cli.answer import Answer
from insync.cli.sheet import line
from insync.scenarios import library

INSYNC = Path(sys.executable).with_name("insync")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"insync {__version__}\n", "")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "explain" in out
    assert "demo" in out


def test_without_a_command_the_help_is_shown_and_it_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (2, "")
    assert "Commands" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explian"], 2, "No such command 'explian'"),
        (["explain", "--jsn"], 2, "No such option: --jsn"),
        (["explain", "a", "b"], 2, "unexpected extra argument"),
        (["explain", "nope"], 1, "there is no scenario 'nope'"),
        (["explain", "./nowhere.txt"], 1, "No such file"),
        (["explain", "/"], 1, "Is a directory"),
    ],
)
def test_an_error_is_one_line_on_stderr(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    exit_code, out, err = run(capsys, *arguments)
    assert (exit_code, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_explain_lists_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain")
    assert code == 0
    assert all(name in out for name in library.names())
    _, out, _ = run(capsys, "explain", "--json")
    assert [row["name"] for row in json.loads(out)] == list(library.names())


def test_explain_plays_one_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", "kip-501")
    assert code == 0
    assert "caught-up" in out
    assert "pending-reads" in out
    assert "1002 leaves" in out


def test_explain_in_json_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", "kip-501", "--json")
    (timeline,) = json.loads(out)
    leaving = [row for row in timeline["rows"] if row["at_ms"] == 10_001 and row["cells"]]
    assert leaving[0]["cells"]["caught-up"]["isr"] == [1001]
    assert leaving[0]["cells"]["caught-up"]["decisions"] == ["1002 leaves", "1003 leaves"]
    assert leaving[0]["cells"]["pending-reads"]["isr"] == [1001, 1002, 1003]


def test_a_name_prefix_plays_all_matching_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", "kip-16", "--json")
    assert len(json.loads(out)) == 4


def test_a_scenario_file_of_the_user(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text(
        "title T\ndocument D\ncolumns caught-up\nreplicas 1 2\n0 append 1\n0 expect all end=2\n"
    )
    code, out, _ = run(capsys, "explain", str(mine))
    assert code == 1
    assert "1 of 1 statements do not hold" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "not UTF-8"), (b"#" * (2 << 20), "larger than"), (b"", "no line 'title'")],
)
def test_a_file_that_is_not_a_scenario(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    code, _, err = run(capsys, "explain", str(tmp_path / "bad.txt"))
    assert code == 1
    assert message in err


@pytest.mark.process
def test_the_demo_checks_every_statement_and_loses_nothing() -> None:
    done = subprocess.run([INSYNC, "demo"], capture_output=True, text=True, check=True, timeout=120)
    text = " ".join(done.stdout.split())
    assert f"{len(library.names())} scenarios" in text
    assert "128 statements, 0 wrong. 60,000 records acknowledged" in text
    assert "across the death of their leader, 0 lost" in text
    assert [f"Act {number} of 4: " in text for number in (1, 2, 3, 4)] == [True] * 4
    assert "Try next insync explain" in text


@pytest.mark.long
@pytest.mark.process
def test_the_demo_for_scripts() -> None:
    done = subprocess.run(
        [INSYNC, "demo", "--json"], capture_output=True, text=True, check=True, timeout=120
    )
    result = json.loads(done.stdout)
    assert len(result["scenarios"]) == len(library.names())
    assert result["cluster"]["lost"] == 0
    assert result["cluster"]["leader_after"] != result["cluster"]["leader_before"]
    assert [shown["seen"] for shown in result["in_sync"]] == [
        "3 leaves",
        "none leaves",
        "2, 3 leave",
        "2, 3 leave",
        "none leaves, broker 1 hands over",
    ]
    assert result["moved"]["throttles_left"] == 0
    assert result["moved"]["bytes_moved"] > 0


@pytest.mark.process
def test_the_installed_command() -> None:
    done = subprocess.run([INSYNC, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"insync {__version__}\n"


@pytest.mark.process
def test_it_refuses_to_run_with_assertions_disabled() -> None:
    done = subprocess.run(
        [sys.executable, "-O", INSYNC, "demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "insync: refuses to run under python -O: its assertions are part of it\n"
    )


@pytest.mark.process
def test_a_closed_pipe_prints_no_traceback() -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{INSYNC}' explain kip | head -n 1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_ctrl_c_is_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "play", interrupt)
    assert run(capsys, "explain", "kip-501") == (130, "", "")
    monkeypatch.setattr(cli, "import_module", interrupt)
    assert run(capsys, "explain", "kip-501") == (130, "", "")


@pytest.mark.parametrize("columns", [None, "80"])
def test_a_line_longer_than_the_page_is_printed_whole(
    columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/home/" + "folder/" * 40 + "report.html"
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    assert cli.render(Answer(data={}, view=Group(line(f"report  {path}")), as_json=False)) == 0
    assert path in capsys.readouterr().out
