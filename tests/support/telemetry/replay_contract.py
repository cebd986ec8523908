"""The contract of the tables: replayed through the rules they give the brokers' own decisions."""

from __future__ import annotations

from collections.abc import Sequence

from insync.rules.stalls import STALL_MS_MIN
from insync.telemetry.replay.contract import (
    Decision,
    epochs,
    recorded,
    recorded_proposals,
    replay,
)
from support.telemetry.recorded_runs import Tables

PAUSE_MS_MAX = STALL_MS_MIN - 1
"""A loop may be late by this much without a stall: its timers run by another clock, or it did not
run. A longer time without a callback is a stall, and what is due then waits for its end."""


def agreed(tables: Tables, *, late_ms_max: int | None = 0) -> list[Decision]:
    """What was decided; each is the leader's own, due at the leader's own millisecond.

    The leader's loop came to it when it could: `late_ms` after that, as it recorded. None: that of
    a process, which others may keep from running.
    """
    decisions: list[Decision] = []
    for epoch in epochs(tables):
        if not epoch.is_whole:
            continue  # rows were dropped, or went with a broker that was killed
        replayed = replay(epoch, tables)
        assert not replayed.unmatched, f"no leader proposed {replayed.unmatched}"
        _agree(replayed.proposals, recorded_proposals(epoch), late_ms_max)
        decisions += _agree(replayed.decisions, recorded(epoch), late_ms_max)
    return decisions


def _agree(
    replayed: Sequence[Decision], expected: Sequence[Decision], late_ms_max: int | None
) -> Sequence[Decision]:
    assert [each.identity for each in replayed] == [each.identity for each in expected]
    for ours, theirs in zip(replayed, expected, strict=True):
        assert ours.decided_at_ms == theirs.due_at_ms, (ours, theirs)
        assert theirs.late_ms >= 0, theirs
        assert late_ms_max is None or theirs.late_ms <= late_ms_max, theirs
    return expected
