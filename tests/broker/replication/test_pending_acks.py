"""Producers that wait for a commit: each is answered once, whatever happens while they are."""

from __future__ import annotations

from insync.broker.replication.pending_acks import PendingAcks
from insync.rules.acknowledgement import Verdict
from insync.rules.isr import Stable
from insync.rules.values import BrokerId

ISR = Stable(frozenset({BrokerId(1), BrokerId(2)}))


class Answers:
    def __init__(self, acks: PendingAcks, *, gives_up_at: int | None = None) -> None:
        self.responses: list[tuple[int, Verdict | None]] = []
        self._acks = acks
        self._gives_up_at = gives_up_at

    def wait_for(self, offset: int, *, deadline_ms: int = 100) -> None:
        self._acks.add(offset, deadline_ms=deadline_ms, on_verdict=lambda v: self._on(offset, v))

    def _on(self, offset: int, verdict: Verdict | None) -> None:
        self.responses.append((offset, verdict))
        if offset == self._gives_up_at:
            for on_verdict in self._acks.give_up():
                on_verdict(None)


def test_committed_offsets_are_answered_in_order() -> None:
    answers = Answers(acks := PendingAcks())
    for offset in (9, 3, 5):
        answers.wait_for(offset)
    acks.acknowledge(ISR, high_watermark=6, min_isr=2)
    assert answers.responses == [(3, Verdict.ENOUGH), (5, Verdict.ENOUGH)]


def test_an_isr_that_became_too_small_fails_pending_acks() -> None:
    answers = Answers(acks := PendingAcks())
    answers.wait_for(3)
    acks.acknowledge(ISR, high_watermark=6, min_isr=3)
    assert answers.responses == [(3, Verdict.NOT_ENOUGH_AFTER_APPEND)]


def test_expire_returns_the_next_deadline() -> None:
    answers = Answers(acks := PendingAcks())
    answers.wait_for(3, deadline_ms=50)
    answers.wait_for(4, deadline_ms=70)
    assert (acks.expire(50), acks.has_timer) == (70, True)
    assert (acks.expire(70), acks.has_timer) == (None, False)
    assert answers.responses == [(3, Verdict.TIMED_OUT), (4, Verdict.TIMED_OUT)]


def test_a_leader_that_is_deposed_while_it_answers_answers_each_producer_once() -> None:
    """An answer may be the first thing after a stall, and find that the session is over."""
    answers = Answers(acks := PendingAcks(), gives_up_at=3)
    for offset in (3, 4, 5):
        answers.wait_for(offset)
    acks.acknowledge(ISR, high_watermark=10, min_isr=1)
    assert answers.responses == [(3, Verdict.ENOUGH), (4, None), (5, None)]
