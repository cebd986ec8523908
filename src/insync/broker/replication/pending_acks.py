"""Produce requests with acks=all that wait until their records are committed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from insync.rules.acknowledgement import Verdict, after_append
from insync.rules.isr import Isr
from insync.rules.values import Offset

OnVerdict = Callable[[Verdict | None], None]
"""Called once for each request; None if this broker no longer leads the partition."""


class PendingAcks:
    """The waiting requests of one partition."""

    __slots__ = ("_heap", "_order", "has_timer")

    def __init__(self) -> None:
        # (last offset, order of arrival, deadline, callback): the lowest offset is first.
        self._heap: list[tuple[int, int, int, OnVerdict]] = []
        self._order = count()  # requests for one offset are answered in the order they came
        self.has_timer = False  # a timer will call `expire`

    def add(self, last_offset: int, *, deadline_ms: int, on_verdict: OnVerdict) -> None:
        heapq.heappush(self._heap, (last_offset, next(self._order), deadline_ms, on_verdict))

    def acknowledge(self, isr: Isr, *, high_watermark: int, min_isr: int) -> None:
        """Answer the requests whose records are committed."""
        while self._heap and self._heap[0][0] < high_watermark:
            last_offset, _, deadline_ms, on_verdict = heapq.heappop(self._heap)
            on_verdict(
                after_append(
                    isr,
                    last_offset=Offset(last_offset),
                    high_watermark=Offset(high_watermark),
                    min_isr=min_isr,
                    deadline_ms=deadline_ms,
                    now_ms=deadline_ms,  # does not matter: a committed record is never late
                )
            )

    def expire(self, now_ms: int) -> int | None:
        """Answer the requests whose time is up; returns when to call this again."""
        expired = [ack for ack in self._heap if ack[2] <= now_ms]
        if expired:
            self._heap = [ack for ack in self._heap if ack[2] > now_ms]
            heapq.heapify(self._heap)
            for *_, on_verdict in expired:
                on_verdict(Verdict.TIMED_OUT)
        self.has_timer = bool(self._heap)
        return min((ack[2] for ack in self._heap), default=None)

    def give_up(self) -> list[OnVerdict]:
        """Remove every request that waits; the caller answers them, in this order."""
        heap, self._heap = self._heap, []
        return [on_verdict for *_, on_verdict in sorted(heap, key=lambda ack: ack[:2])]
