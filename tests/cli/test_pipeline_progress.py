"""The progress line of a Spark job."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple, cast

import pytest

from insync.cli import progress


class Info(NamedTuple):
    numCompletedTasks: int  # noqa: N815 - Spark's words
    numTasks: int  # noqa: N815


class Tracker:
    """Three stages, one of which ends before its progress is read."""

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return [4, 5, 6]

    def getStageInfo(self, stage: int) -> Info | None:  # noqa: N802
        return {4: Info(3, 8), 6: Info(1, 2)}.get(stage)


class Session:
    @property
    def sparkContext(self) -> Session:  # noqa: N802
        return self

    def statusTracker(self) -> Tracker:  # noqa: N802
        return Tracker()


def watched() -> Any:
    return progress.watched(cast("Any", Session()))


def test_a_terminal_shows_progress_and_then_clears_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "CHECK_EVERY_S", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    written = ""
    with watched() as say:
        say("making lag")
        deadline_s = time.monotonic() + 10
        while "tasks" not in written:
            assert time.monotonic() < deadline_s, written
            written += capsys.readouterr().err
    lines = (written + capsys.readouterr().err).split("\r\x1b[K")
    assert "making lag: 4 of 10 tasks" in lines
    assert lines[-1] == ""


def test_the_progress_line_is_cleared_when_the_work_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(ValueError, match="broken"), watched():
        raise ValueError("broken")
    assert capsys.readouterr().err == "\r\x1b[K"


def test_no_progress_is_written_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with watched() as say:
        say("making lag")
    assert capsys.readouterr().err == ""
