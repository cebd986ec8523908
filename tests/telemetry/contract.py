"""The contract of the tables: replayed through the rules they give the brokers' own decisions."""

from __future__ import annotations

from recorded_life import Tables

from insync.telemetry.replay import Decision, Epoch, Replayed, epochs, recorded, replay

STORE_TAKES_MS = 100
"""How long a proposal to a store in trouble may be under way, and then come to nothing."""


def agreed(
    tables: Tables, *, timers_late_ms: int = 0, store_takes_ms: int | None = None
) -> list[Decision]:
    """What was decided; each is the leader's own, at the leader's own millisecond.

    And none is missing, unless the store may refuse: then a leader goes without for a moment.
    """
    decisions: list[Decision] = []
    for epoch in epochs(tables):
        if not epoch.is_whole:
            continue  # rows were dropped, or went with a broker that was killed
        replayed = replay(epoch, tables)
        for each in replayed.unheeded:
            assert each.lasted_ms <= (store_takes_ms or -1), each  # none at all by default
        decisions += _agreed(epoch, replayed, timers_late_ms)
    return decisions


def _agreed(epoch: Epoch, replayed: Replayed, timers_late_ms: int) -> list[Decision]:
    expected = recorded(epoch)
    assert [each.what for each in replayed.decisions] == [each.what for each in expected]
    for ours, theirs in zip(replayed.decisions, expected, strict=True):
        late_ms = theirs.decided_at_ms - ours.decided_at_ms
        waits_ms = STORE_TAKES_MS if _is_behind_another(ours, replayed) else 0
        assert 0 <= late_ms <= timers_late_ms + waits_ms, (ours, late_ms)
    return expected


def _is_behind_another(decision: Decision, replayed: Replayed) -> bool:
    """One proposal is under way at a time, and one that came to nothing is in no table."""
    return any(
        0 <= decision.decided_at_ms - each.decision.decided_at_ms <= STORE_TAKES_MS
        for each in replayed.unheeded
    )
