"""Why an ISR changed, in words and numbers: one line of a broker's log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from insync.rules.leadership import Leadership
from insync.rules.partition_state import PartitionState
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET, BrokerId
from insync.telemetry.recorder import by_controller


def why_leaving(
    term: Leadership,
    leaving: Collection[BrokerId],
    *,
    session_fetched_at_ms: Mapping[BrokerId, int],
    now_ms: int,
) -> str:
    deadlines = term.deadlines(session_fetched_at_ms)
    policy = term.policy
    limit = f"{policy.name}, limit {policy.lag_time_max_ms} ms"
    told = []
    for broker in leaving:
        due_ms = deadlines[broker]
        due = "at once" if due_ms == NEVER_MS else f"{now_ms - due_ms} ms ago"
        told.append(f"{broker} leaves ({limit}; due {due}): {_where(term, broker, now_ms)}")
    return "; ".join(told)


def why_joining(term: Leadership, broker: BrokerId, *, now_ms: int) -> str:
    return f"{broker} joins ({term.policy.name}): {_where(term, broker, now_ms)}"


def why_by_controller(
    term: Leadership | None,  # None: who leads now did not lead before, and knows no followers
    before: AbstractSet[BrokerId],
    state: PartitionState,
    *,
    now_ms: int,
) -> str:
    told = []
    for broker in sorted(before ^ frozenset(state.isr)):
        does = "joins" if broker in state.isr else "leaves"
        why = by_controller(broker, before, state.replicas)
        where = f": {_where(term, broker, now_ms)}" if term and broker in term.followers else ""
        told.append(
            f"{broker} {does} (by the controller, epoch {state.leader_epoch}; {why}){where}"
        )
    return "; ".join(told)


def _where(term: Leadership, broker: BrokerId, now_ms: int) -> str:
    """How far behind, in time and messages, and since when."""
    follower = term.followers[broker]
    lag_ms = follower.lag_ms(leader_end=term.end, now_ms=now_ms)
    if follower.end == UNKNOWN_OFFSET:
        messages = "has not fetched in this epoch"
    else:
        messages = f"lacks {term.end - follower.end} messages of {term.end}"
    return (
        f"{'never level' if lag_ms is None else f'{lag_ms} ms behind'}, {messages}, "
        f"caught up {_ago(follower.caught_up_at_ms, now_ms)}, "
        f"last fetch {_ago(follower.fetched_at_ms, now_ms)}"
    )


def _ago(at_ms: int, now_ms: int) -> str:
    return "never" if at_ms == NEVER_MS else f"{now_ms - at_ms} ms ago"
