"""When a member leaves: its policy's deadline, and the two things that may delay it.

A pending read (KIP-501) and the grace after a stall of the leader both keep a member in. Neither
admits a follower: joining, and the pseudo-ISR, ask the policy alone.
"""

from __future__ import annotations

from insync.rules.follower import Follower
from insync.rules.policy import LeaderLog, Policy


def evicted_at_ms(
    policy: Policy,
    member: Follower,
    log: LeaderLog,
    *,
    session_fetched_at_ms: int,
    drained_at_ms: int,
    fetch_wait_max_ms: int,
) -> int | None:
    """The first millisecond at which this member is to leave if nothing more happens.

    None: no deadline, because it is caught up or a read for it is pending. `drained_at_ms`
    is when the leader had read all that waited in its sockets after its latest stall.
    """
    if policy.pending_reads and member.reads.hold:
        return None
    leaves_at_ms = policy.leaves_at_ms(member, log, session_fetched_at_ms=session_fetched_at_ms)
    if leaves_at_ms is not None and member.is_graced:
        return max(leaves_at_ms, drained_at_ms + fetch_wait_max_ms)
    return leaves_at_ms
