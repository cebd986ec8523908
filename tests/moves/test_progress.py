"""Progress and stuck moves, from samples of sizes; the numbers are the issue's own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from insync.moves.progress import (
    CopySample,
    History,
    MoveProgress,
    Sample,
    rate_text,
    size_text,
)
from insync.rules.values import BrokerId
from support.moves.admin_in_memory import partition

MB = 1_000_000
ONE, THREE, FOUR = BrokerId(1), BrokerId(3), BrokerId(4)


def copy(
    leader_mb: float, own_mb: float | None, *, level: bool = False, moving: bool = True
) -> CopySample:
    return CopySample(
        leader=ONE,
        leader_bytes=int(leader_mb * MB),
        own_bytes=None if own_mb is None else int(own_mb * MB),
        is_caught_up=level,
        is_moving=moving,
    )


def sample(at_s: float, copies: Mapping[BrokerId, CopySample], **more: object) -> Sample:
    return Sample(
        at_ms=int(at_s * 1_000),
        copies={(partition(0), broker): each for broker, each in copies.items()},
        **more,  # type: ignore[arg-type]
    )


def test_rate_and_end_of_a_move() -> None:
    history = History(stuck_after_ms=30_000)
    first = history.add(sample(0, {THREE: copy(300, 0)}))
    assert (first.left_bytes, first.left_ms, first.rate_bytes_per_s) == (300 * MB, None, None)
    progress = history.add(sample(5, {THREE: copy(300, 50)}))
    assert (progress.done_bytes, progress.left_bytes) == (50 * MB, 250 * MB)
    assert progress.rate_bytes_per_s == 10 * MB
    assert progress.left_ms == 25_000


def test_a_move_ends_later_with_produce() -> None:
    """Quota minus inbound: 10 MB/s of which 2 are new."""
    history = History(stuck_after_ms=30_000)
    history.add(sample(0, {THREE: copy(300, 0)}))
    progress = history.add(sample(10, {THREE: copy(320, 100)}))
    assert progress.brokers[0].inbound_bytes_per_s == 2 * MB
    assert progress.left_ms == 27_500


def test_the_slowest_broker_determines_the_end_of_a_move() -> None:
    history = History(stuck_after_ms=30_000)
    history.add(sample(0, {THREE: copy(100, 0), FOUR: copy(100, 0)}))
    progress = history.add(sample(10, {THREE: copy(100, 50), FOUR: copy(100, 20)}))
    assert [each.left_ms for each in progress.brokers] == [10_000, 40_000]
    assert progress.left_ms == 40_000
    done = history.add(sample(20, {THREE: copy(100, 100, moving=False), FOUR: copy(100, 40)}))
    assert [each.moving for each in done.brokers] == [0, 1]
    assert done.left_bytes == 60 * MB


def test_a_caught_up_replica_lacks_nothing_whatever_the_sizes() -> None:
    """Each replica deletes old segments by itself."""
    progress = History(stuck_after_ms=1).add(sample(0, {THREE: copy(100, 60, level=True)}))
    assert (progress.left_bytes, progress.left_ms) == (0, 0)
    uneven = History(stuck_after_ms=1).add(sample(0, {THREE: copy(100, 120)}))
    assert uneven.left_bytes == 1, "not level, so something is missing"


def stuck_progress(samples: list[Sample], patience_ms: int = 30_000) -> MoveProgress:
    history = History(stuck_after_ms=patience_ms)
    return [history.add(each) for each in samples][-1]


def test_a_move_is_stuck_because_the_inbound_rate_exceeds_the_throttle() -> None:
    """inbound 12 MB/s exceeds the throttle of 10 MB/s on broker 3"""
    samples = [
        sample(second, {THREE: copy(100 + 12 * second, 10 * second)}, limits_in={THREE: 10 * MB})
        for second in range(31)
    ]
    progress = stuck_progress(samples)
    assert progress.stuck is not None
    assert progress.stuck.startswith(
        "SumReplicaLag not falling: inbound 12 MB/s exceeds the throttle of 10 MB/s on broker 3"
    )
    assert "--throttle 24000000" in progress.stuck
    assert stuck_progress(samples[:-1]).stuck is None, "not yet for long enough"


def test_a_move_is_stuck_because_of_a_leaders_throttle() -> None:
    samples = [
        sample(second, {THREE: copy(100 + 2 * second, second)}, limits_out={ONE: MB})
        for second in range(31)
    ]
    assert "exceeds the throttle of 1 MB/s on broker 1" in str(stuck_progress(samples).stuck)


@pytest.mark.parametrize("side", ["limits_in", "limits_out"])
def test_a_move_is_stuck_because_the_throttle_is_very_low(side: str) -> None:
    broker = THREE if side == "limits_in" else ONE
    samples = [sample(second, {THREE: copy(100, 0)}, **{side: {broker: 1}}) for second in range(31)]
    answer = str(stuck_progress(samples).stuck)
    assert f"100 MB are left for the throttle of 1 B/s on broker {broker}" in answer
    assert "--throttle 1158 to be done in a day" in answer, "100 MB / 86400 s, rounded up"


def test_a_move_is_stuck_because_a_broker_is_down() -> None:
    samples = [
        sample(second, {THREE: copy(100, None)}, silent={THREE: "is down"}) for second in range(31)
    ]
    assert "broker 3 is down; start it, or cancel the move" in str(stuck_progress(samples).stuck)


def test_a_move_is_stuck_for_an_unknown_reason() -> None:
    samples = [sample(second, {THREE: copy(100, 0)}) for second in range(31)]
    assert "no throttle explains it" in str(stuck_progress(samples).stuck)


def test_a_completed_move_is_not_stuck() -> None:
    samples = [sample(second, {THREE: copy(100, 100, moving=False)}) for second in range(99)]
    progress = stuck_progress(samples)
    assert (progress.stuck, progress.moving, progress.left_bytes) == (None, 0, 0)


def test_a_replica_whose_size_is_not_reported() -> None:
    unknown = CopySample(
        leader=None, leader_bytes=None, own_bytes=None, is_caught_up=False, is_moving=True
    )
    history = History(stuck_after_ms=30_000)
    history.add(sample(0, {THREE: unknown}))
    progress = history.add(sample(1, {THREE: unknown}))
    assert (progress.moving, progress.left_bytes) == (1, 0)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (12_000_000, "12 MB"),
        (1_550_000, "1.6 MB"),
        (125_000_000, "125 MB"),
        (2_500_000_000_000_000, "2500 TB"),
    ],
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert size_text(size) == text
    assert rate_text(size) == f"{text}/s"
