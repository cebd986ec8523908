"""The state machine of a leader: events in, the next state and effects out.

    step(state, event, now_ms=...) -> (state, effects)

Every rule about the ISR, the high watermark and resigning meets here, for one partition and one
leader epoch. `Leadership` is the state. A driver (a broker, a scenario, a replay of recorded
telemetry, a what-if) reports each event when it happens, stores the new state and then performs
the effects in order. It decides nothing itself.

Time is an event too. The machine asks to be woken (`WakeAt`), and the driver reports `Woken` then.
If another event comes first, the machine acts on the deadline before that event: a deadline was
due when its millisecond began. The one exception is a stall of the leader itself. From the stall
until the sockets are drained (`SocketsDrained`), nothing is due.

A proposal is pending from `ProposeIsr` until the driver reports a later version of the partition
state, or that the store refused this very proposal. An outcome settles only the proposal that it
belongs to (`isr.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from insync.rules.follower import Fetch
from insync.rules.isr import Expanding, Isr, IsrChange, Shrinking, Stable
from insync.rules.leadership import NO_SESSIONS, NO_WAKE_MS, Draining, Leadership, Rule
from insync.rules.stalls import Stall, StallRecord, is_stall
from insync.rules.values import FIRST_OFFSET, BrokerId, Incarnation, Offset

RESIGN_AGAIN_MS: Final = 1_000
"""No other replica could take over, or the store was unavailable: that may have changed."""


# Effects: what the driver has to do.


@dataclass(frozen=True, slots=True)
class Committed:
    """Every record below this offset is committed: acknowledge it, and let consumers read it."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Write this ISR to the store, on condition that the state is at `change.version`."""

    change: IsrChange
    due_at_ms: int  # when it was due; the leader may be late


@dataclass(frozen=True, slots=True)
class IsrSettled:
    """No change is pending now, and these are the members; `before` may be a proposal."""

    before: Isr
    members: frozenset[BrokerId]


class ResignReason(Enum):
    SLOW_READ = "a read for a follower takes too long"
    PENDING_IN_STALL = "a follower's fetch took too long, the leader's own stall included"
    STALLED = "the leader stalled for more than half of the last 2 T"


@dataclass(frozen=True, slots=True)
class Resign:
    """Ask the controller to hand the partition over, if another replica can lead it."""

    reason: ResignReason


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Report `Woken` then, unless the state has another `wake_at_ms` by that time."""

    at_ms: int


Effect = Committed | ProposeIsr | IsrSettled | Resign | WakeAt


@dataclass(slots=True)
class Moment:
    """When an event happens, what fetch sessions have said by then, and what follows from it."""

    now_ms: int
    session_fetched_at_ms: Mapping[BrokerId, int]
    effects: list[Effect]


# Events: what happened, and how it changes the state.


@dataclass(frozen=True, slots=True)
class Appended:
    """The leader's log ends at `end` now."""

    end: Offset

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        if self.end <= state.end:
            return state
        return state.append(
            end=self.end,
            now_ms=moment.now_ms,
            session_fetched_at_ms=moment.session_fetched_at_ms,
        )


@dataclass(frozen=True, slots=True)
class FollowerFetched:
    """A fetch of a follower was read and takes effect now."""

    follower: BrokerId
    fetch: Fetch

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        session_ms = moment.session_fetched_at_ms.get(self.follower)
        if session_ms is not None:
            state = state.session_fetched(self.follower, at_ms=session_ms)
        return _join(state.fetch(self.follower, self.fetch), self.follower, moment)


@dataclass(frozen=True, slots=True)
class SessionFetched:
    """The latest request, at `at_ms`, of a fetch session that covers this partition unlisted."""

    follower: BrokerId
    at_ms: int

    def apply(self, state: Leadership, _moment: Moment) -> Leadership:
        if self.follower not in state.followers:
            return state  # a reassignment has removed it
        return state.session_fetched(self.follower, at_ms=self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStarted:
    """The records of a follower's fetch are not in memory: a read from disk began (KIP-501)."""

    follower: BrokerId
    read_id: int
    connection: int
    offset: Offset
    parsed_at_ms: int

    def apply(self, state: Leadership, _moment: Moment) -> Leadership:
        return state.read_began(
            self.follower,
            read_id=self.read_id,
            connection=self.connection,
            offset=self.offset,
            parsed_at_ms=self.parsed_at_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadServed:
    """A read from disk is done, and its fetch takes effect now."""

    follower: BrokerId
    read_id: int
    leader_end: Offset
    incarnation: Incarnation
    log_start: Offset = FIRST_OFFSET

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        now_ms = moment.now_ms
        if state.was_pending_too_long(self.follower, read_id=self.read_id, now_ms=now_ms):
            state = _resign(state, moment)
        served = state.read_served(
            self.follower,
            read_id=self.read_id,
            leader_end=self.leader_end,
            served_at_ms=now_ms,
            incarnation=self.incarnation,
            log_start=self.log_start,
        )
        return _join(served, self.follower, moment)


@dataclass(frozen=True, slots=True)
class ReadFailed:
    follower: BrokerId
    read_id: int

    def apply(self, state: Leadership, _moment: Moment) -> Leadership:
        return state.read_failed(self.follower, read_id=self.read_id)


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The reads that this connection of the follower waits for hold nothing any more."""

    follower: BrokerId
    connection: int

    def apply(self, state: Leadership, _moment: Moment) -> Leadership:
        return state.connection_closed(self.follower, connection=self.connection)


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """Brokers registered, or their sessions ended."""

    registered: Mapping[BrokerId, Incarnation]

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        return state.registration(self.registered, now_ms=moment.now_ms)


@dataclass(frozen=True, slots=True)
class PartitionStateRead:
    """The partition state in the store, of this leader's epoch."""

    version: int
    replicas: tuple[BrokerId, ...]
    isr: frozenset[BrokerId]

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        before = state.isr
        if self.version <= before.version:
            return state  # known already; a pending change can still be committed
        if {state.leader, *state.followers} == set(self.replicas):
            state = state.settle(self.isr, now_ms=moment.now_ms, version=self.version)
        else:
            state = state.assigned(
                self.replicas, members=self.isr, now_ms=moment.now_ms, version=self.version
            )
        moment.effects.append(IsrSettled(before, self.isr))
        return state


@dataclass(frozen=True, slots=True)
class ProposalRefused:
    """The store refused this very change, and the state it builds on is still in force."""

    change: IsrChange

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        before = state.isr
        if before != self.change:
            return state  # this proposal is settled already; another may be pending
        moment.effects.append(IsrSettled(before, before.members))
        return state.settle(before.members, now_ms=moment.now_ms, version=before.version)


@dataclass(frozen=True, slots=True)
class RuleChanged:
    rule: Rule

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        return state.with_rule(self.rule, now_ms=moment.now_ms)


@dataclass(frozen=True, slots=True)
class HighWatermarkRecorded:
    """In a replay: the watermark of the recorded leader was at least this."""

    high_watermark: Offset

    def apply(self, state: Leadership, _moment: Moment) -> Leadership:
        return replace(state, high_watermark=max(state.high_watermark, self.high_watermark))


@dataclass(frozen=True, slots=True)
class LeaderStalled:
    """The leader's event loop did not run. Comes before anything that waited meanwhile."""

    stall: Stall
    recorded_ms: int = 0  # in a replay: its whole length, where the end of the epoch cuts it

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        length_ms = max(self.stall.length_ms, self.recorded_ms)
        if is_stall(length_ms, lag_time_max_ms=state.policy.lag_time_max_ms):
            state = state.stalled(self.stall, session_fetched_at_ms=moment.session_fetched_at_ms)
            return replace(state, draining=Draining.AFTER_STALL)
        if state.draining is Draining.NO:
            return replace(state, draining=Draining.AFTER_SHORT_STALL)
        return state


@dataclass(frozen=True, slots=True)
class SocketsDrained:
    """What waited in the sockets during a stall is read; `recent` has the latest stalls."""

    recent: StallRecord | None = None

    def apply(self, state: Leadership, moment: Moment) -> Leadership:
        if state.draining is Draining.AFTER_STALL:
            state = state.drained(now_ms=moment.now_ms)
            if self.recent is not None and self.recent.exceeds_half(now_ms=moment.now_ms):
                moment.effects.append(Resign(ResignReason.STALLED))
        # The wake-up that was set may have come while nothing was due.
        return replace(state, draining=Draining.NO, wake_at_ms=NO_WAKE_MS)


@dataclass(frozen=True, slots=True)
class Woken:
    """A wake-up has come. What is due is met before any event; what is not is asked for again.

    A timer may be early by a millisecond: loops measure time with another clock.
    """

    def apply(self, state: Leadership, _moment: Moment) -> Leadership:
        return replace(state, wake_at_ms=NO_WAKE_MS)


Event = (
    Appended
    | FollowerFetched
    | SessionFetched
    | ReadStarted
    | ReadServed
    | ReadFailed
    | ConnectionClosed
    | BrokersChanged
    | PartitionStateRead
    | ProposalRefused
    | RuleChanged
    | HighWatermarkRecorded
    | LeaderStalled
    | SocketsDrained
    | Woken
)


def start(state: Leadership, *, now_ms: int) -> tuple[Leadership, list[Effect]]:
    """A leader that has just begun: when it wants to be woken."""
    moment = Moment(now_ms, NO_SESSIONS, [])
    return _schedule(state, moment), moment.effects


def step(
    state: Leadership,
    event: Event,
    *,
    now_ms: int,
    session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS,
    meets_deadlines: bool = True,
) -> tuple[Leadership, list[Effect]]:
    """The state after the event, and what to do about it, in order.

    `session_fetched_at_ms` has the last request of each fetch session that covers this partition.
    A replay of what a leader did sets `meets_deadlines` to False: there only `Woken` meets them,
    because the record says when that leader looked.
    """
    moment = Moment(now_ms, session_fetched_at_ms, [])
    watermark = state.high_watermark
    is_due = state.wake_at_ms <= now_ms and state.draining is Draining.NO
    looks = isinstance(event, Woken) or (meets_deadlines and not isinstance(event, LeaderStalled))
    if is_due and looks:
        state = _meet_deadlines(state, moment)
    state = event.apply(state, moment)
    if state.high_watermark != watermark:
        moment.effects.insert(0, Committed(state.high_watermark))
    return _schedule(state, moment), moment.effects


def _meet_deadlines(state: Leadership, moment: Moment) -> Leadership:
    due_at_ms, now_ms = state.wake_at_ms, moment.now_ms
    state = replace(state, wake_at_ms=NO_WAKE_MS).with_watermark(now_ms=now_ms)
    leaving = state.leaving(now_ms=now_ms, session_fetched_at_ms=moment.session_fetched_at_ms)
    if leaving:
        deadlines = state.deadlines(moment.session_fetched_at_ms)
        state = state.propose_leave(frozenset(leaving))
        assert isinstance(state.isr, Shrinking)
        # A wake-up may be earlier than needed, and what is due at once is due since it was set.
        due_at_ms = max(due_at_ms, min(deadlines[broker] for broker in leaving))
        moment.effects.append(ProposeIsr(state.isr, due_at_ms))
    resigns_at_ms = state.resigns_at_ms()
    if resigns_at_ms is not None and resigns_at_ms <= now_ms:
        state = _resign(state, moment)
    return state


def _resign(state: Leadership, moment: Moment) -> Leadership:
    is_slow = state.is_read_slow(now_ms=moment.now_ms)
    reason = ResignReason.SLOW_READ if is_slow else ResignReason.PENDING_IN_STALL
    moment.effects.append(Resign(reason))
    return replace(state, resigns_from_ms=moment.now_ms + RESIGN_AGAIN_MS)


def _join(state: Leadership, follower: BrokerId, moment: Moment) -> Leadership:
    """Propose to let a follower in that has just fetched, if nothing keeps it out."""
    if follower in state.isr.members or not isinstance(state.isr, Stable):
        return state
    obstacles = state.obstacles(follower, now_ms=moment.now_ms)
    if not state.rule.ignored_obstacles.issuperset(obstacles):
        return state
    state = state.propose_join(follower)
    assert isinstance(state.isr, Expanding)
    moment.effects.append(ProposeIsr(state.isr, moment.now_ms))
    return state


def _schedule(state: Leadership, moment: Moment) -> Leadership:
    """Ask to be woken for the next deadline, unless an earlier wake-up is set: it looks again."""
    if state.draining is not Draining.NO:
        return state
    due_ms = state.next_deadline_ms(
        now_ms=moment.now_ms, session_fetched_at_ms=moment.session_fetched_at_ms
    )
    if due_ms is None:
        return state
    due_ms = max(due_ms, moment.now_ms)
    if state.wake_at_ms <= due_ms:
        return state
    moment.effects.append(WakeAt(due_ms))
    return replace(state, wake_at_ms=due_ms)
