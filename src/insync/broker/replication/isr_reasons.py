"""Why an ISR changed, in words and numbers: one line of a broker's log."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from insync.rules.isr import Expanding, IsrChange, Stable
from insync.rules.leadership import Leadership
from insync.rules.partition_state import PartitionState
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET, BrokerId
from insync.telemetry.recorder import by_controller


def why_proposed(
    term: Leadership,
    change: IsrChange,
    *,
    session_fetched_at_ms: Mapping[BrokerId, int],
    now_ms: int,
) -> str:
    """The leader's own reason; `term` is the state that it decided on."""
    policy = term.policy
    if isinstance(change, Expanding):
        broker = change.joining
        return f"{broker} joins ({policy.name}): {_where(term, broker, now_ms)}"
    limit = f"{policy.name}, limit {policy.lag_time_max_ms} ms"
    before = replace(term, isr=Stable(change.members))
    reasons = []
    for broker, due_ms in before.deadlines(session_fetched_at_ms).items():
        if broker in change.leaving:
            late = _late(due_ms, now_ms=now_ms)
            reasons.append(f"{broker} leaves ({limit}{late}): {_where(term, broker, now_ms)}")
    return "; ".join(reasons)


def why_by_controller(
    term: Leadership | None,  # None: a new leader, which knows nothing of its followers yet
    before: AbstractSet[BrokerId],
    state: PartitionState,
    *,
    offline: AbstractSet[BrokerId],
    frozen: AbstractSet[BrokerId],
    now_ms: int,
) -> str:
    reasons = []
    for broker in sorted(before ^ frozenset(state.isr)):
        does = "joins" if broker in state.isr else "leaves"
        why = by_controller(broker, before, state.replicas, offline, frozen)
        where = f": {_where(term, broker, now_ms)}" if term and broker in term.followers else ""
        epoch = state.leader_epoch
        reasons.append(f"{broker} {does} (not proposed by the leader, epoch {epoch}; {why}){where}")
    return "; ".join(reasons)


def _where(term: Leadership, broker: BrokerId, now_ms: int) -> str:
    """How far behind, in time and messages, and since when."""
    follower = term.followers[broker]
    lag_ms = follower.lag_ms(leader_end=term.end, now_ms=now_ms)
    if follower.end == UNKNOWN_OFFSET:
        messages = "has not fetched in this epoch"
    else:
        messages = f"lacks {term.end - follower.end} messages (leader's log end offset {term.end})"
    return (
        f"{'lag unknown' if lag_ms is None else f'{lag_ms} ms behind'}, {messages}, "
        f"caught up {_ago(follower.caught_up_at_ms, now_ms)}, "
        f"last fetch {_ago(follower.fetched_at_ms, now_ms)}"
    )


def _ago(at_ms: int, now_ms: int) -> str:
    return "never" if at_ms == NEVER_MS else f"{now_ms - at_ms} ms ago"


def _late(due_at_ms: int, *, now_ms: int) -> str:
    if due_at_ms == NEVER_MS:
        return "; at once"
    return f"; {now_ms - due_at_ms} ms after its deadline" if now_ms > due_at_ms else ""
