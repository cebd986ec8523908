"""acks=all, by the design ("Membership and watermark") and kafka-facts section 1 ("acks=all")."""

from __future__ import annotations

import pytest

from insync.rules.acknowledgement import Verdict, after_append, before_append, effective_min_isr
from insync.rules.isr import Expanding, Isr, Shrinking, Stable
from insync.rules.values import BrokerId, Offset
from support.rules.partition_states import among

ONE = Stable(among(1))
TWO = Stable(among(1, 2))
GROWING = Expanding(among(1), BrokerId(2))  # committed 1, maximal 2
LEAVING = Shrinking(among(1, 2), among(2))  # committed 2, proposed 1


@pytest.mark.parametrize(
    ("min_insync_replicas", "replication_factor", "expected"),
    [(1, 3, 1), (2, 3, 2), (3, 3, 3), (3, 2, 2), (2, 1, 1)],
)
def test_kafka_effective_min_isr_is_the_smaller_of_min_isr_and_factor(
    min_insync_replicas: int, replication_factor: int, expected: int
) -> None:
    assert expected == effective_min_isr(
        min_insync_replicas=min_insync_replicas, replication_factor=replication_factor
    )


@pytest.mark.parametrize(
    ("isr", "min_isr", "expected"),
    [
        pytest.param(ONE, 1, Verdict.ENOUGH, id="just enough"),
        pytest.param(TWO, 1, Verdict.ENOUGH, id="more than enough"),
        pytest.param(ONE, 2, Verdict.NOT_ENOUGH, id="too few"),
        pytest.param(GROWING, 2, Verdict.NOT_ENOUGH, id="a pending expand does not count yet"),
        pytest.param(LEAVING, 2, Verdict.ENOUGH, id="a pending shrink has not happened yet"),
    ],
)
def test_kafka_before_the_append_min_isr_is_checked_against_the_committed_isr(
    isr: Isr, min_isr: int, expected: Verdict
) -> None:
    assert before_append(isr, min_isr=min_isr) is expected


LAST_OFFSET = Offset(9)
DEADLINE_MS = 1_000


@pytest.mark.parametrize(
    ("isr", "high_watermark", "now_ms", "expected"),
    [
        pytest.param(TWO, 10, 500, Verdict.ENOUGH, id="watermark past the last offset"),
        pytest.param(TWO, 9, 500, Verdict.WAITING, id="watermark at the last offset"),
        pytest.param(TWO, 9, 1_001, Verdict.TIMED_OUT, id="watermark not there in time"),
        pytest.param(ONE, 9, 500, Verdict.WAITING, id="too few, and not committed yet"),
        pytest.param(ONE, 10, 500, Verdict.NOT_ENOUGH_AFTER_APPEND, id="too few by then"),
        pytest.param(
            GROWING, 10, 500, Verdict.NOT_ENOUGH_AFTER_APPEND, id="committed counts, not maximal"
        ),
        pytest.param(LEAVING, 10, 500, Verdict.ENOUGH, id="committed counts, not proposed"),
        pytest.param(TWO, 10, 1_001, Verdict.ENOUGH, id="safe in the moment of the timeout"),
    ],
)
def test_design_after_the_append_with_a_min_isr_of_two(
    isr: Isr, high_watermark: int, now_ms: int, expected: Verdict
) -> None:
    verdict = after_append(
        isr,
        last_offset=LAST_OFFSET,
        high_watermark=Offset(high_watermark),
        min_isr=2,
        deadline_ms=DEADLINE_MS,
        now_ms=now_ms,
    )
    assert verdict is expected


def test_every_verdict_has_its_own_message() -> None:
    assert len({verdict.value for verdict in Verdict}) == len(Verdict) == 5
