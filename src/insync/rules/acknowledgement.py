"""How a Produce with acks=all is answered, before its append and after it."""

from __future__ import annotations

from enum import Enum

from insync.rules.isr import Isr, committed
from insync.rules.values import Offset


class Verdict(Enum):
    """The answer to one acks=all append."""

    ENOUGH = "acknowledged: every in-sync replica has it, and there are enough of them"
    WAITING = "appended, and not yet on every in-sync replica"
    NOT_ENOUGH = "refused before the append: too few replicas are in sync"
    NOT_ENOUGH_AFTER_APPEND = "appended, but too few replicas are in sync to promise it stays"
    TIMED_OUT = "appended, and not on every in-sync replica in time"


def effective_min_isr(*, min_insync_replicas: int, replication_factor: int) -> int:
    """A topic with fewer replicas than `min.insync.replicas` can never ask for more than all."""
    return min(min_insync_replicas, replication_factor)


def before_append(isr: Isr, *, min_isr: int) -> Verdict:
    return Verdict.ENOUGH if len(committed(isr)) >= min_isr else Verdict.NOT_ENOUGH


def after_append(
    isr: Isr,
    *,
    last_offset: Offset,
    high_watermark: Offset,
    min_isr: int,
    deadline_ms: int,
    now_ms: int,
) -> Verdict:
    """Success wins over a deadline that passed in the same moment: the records are safe."""
    if high_watermark > last_offset:
        is_enough = len(committed(isr)) >= min_isr
        return Verdict.ENOUGH if is_enough else Verdict.NOT_ENOUGH_AFTER_APPEND
    return Verdict.TIMED_OUT if now_ms >= deadline_ms else Verdict.WAITING
