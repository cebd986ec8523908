"""The contract of the tables: replayed through the rules they give the brokers' own decisions."""

from __future__ import annotations

from recorded_life import Tables

from insync.telemetry.replay import Decision, Epoch, Replayed, epochs, recorded, replay
from insync.telemetry.schemas import SHRINK

WHOLE_MS = 5
"""Times are recorded in whole milliseconds, and a timer is armed between two of them."""
STORE_TAKES_MS = 100
"""How long a proposal to a store in trouble may be under way, and then come to nothing."""


def agreed(
    tables: Tables, *, loops_are_late: bool = False, store_takes_ms: int | None = None
) -> list[Decision]:
    """What was decided; each is the leader's own, at the leader's own millisecond.

    In a process the loop comes to a deadline when it can: as late as it said, not later.
    And none is missing, unless the store may refuse: then a leader goes without for a moment.
    """
    decisions: list[Decision] = []
    for epoch in epochs(tables):
        if not epoch.is_whole:
            continue  # rows were dropped, or went with a broker that was killed
        replayed = replay(epoch, tables)
        for each in replayed.unheeded:
            assert each.lasted_ms <= (store_takes_ms or -1), each  # none at all by default
        decisions += _agreed(epoch, replayed, loops_are_late=loops_are_late)
    return decisions


def _agreed(epoch: Epoch, replayed: Replayed, *, loops_are_late: bool) -> list[Decision]:
    expected = recorded(epoch)
    assert [each.what for each in replayed.decisions] == [each.what for each in expected]
    for ours, theirs in zip(replayed.decisions, expected, strict=True):
        late_ms = theirs.decided_at_ms - ours.decided_at_ms
        waits_ms = STORE_TAKES_MS if _is_behind_another(ours, replayed) else 0
        if loops_are_late and theirs.change == SHRINK:  # one joins at its own fetch
            waits_ms += theirs.late_ms + WHOLE_MS
        assert 0 <= late_ms <= waits_ms, (ours, theirs)
    return expected


def _is_behind_another(decision: Decision, replayed: Replayed) -> bool:
    """One proposal is under way at a time, and one that came to nothing is in no table."""
    return any(
        0 <= decision.decided_at_ms - each.decision.decided_at_ms <= STORE_TAKES_MS
        for each in replayed.unheeded
    )
