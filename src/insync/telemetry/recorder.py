"""What a broker saw, kept in memory until it is published: bounded, and never in the way.

The data path appends one small row (`rows.py`) to a list, nothing more; columns, blocks and
compression come later and elsewhere. A row that finds the buffer full is counted and gone.

A follower that is caught up does not list its partitions: a fetch of its session counts as an idle
fetch of each (`broker.fetch.fetch_sessions`). They are recorded as idle fetches of a partition when
the leader's rules next use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

from insync.rules import isr as isr_rules
from insync.rules.isr import Isr, Shrinking, Stable
from insync.rules.leadership import Leadership
from insync.rules.partition_state import PartitionState
from insync.rules.policy import Messages, Policy
from insync.rules.stalls import Stall
from insync.rules.values import NEVER_MS, NO_BROKERS, UNKNOWN_OFFSET, BrokerId, LeaderEpoch
from insync.telemetry.rows import (
    AppendRow,
    AssignmentRow,
    ConfigRow,
    ElectionRow,
    FetchRow,
    IsrEventRow,
    IsrRow,
    LeaderTermKey,
    PublishKey,
    Row,
    StallRow,
    ThrottleRow,
)
from insync.telemetry.schemas import (
    APPENDS,
    BEGAN,
    BROKER_FROZEN,
    BROKER_GONE,
    CAUGHT_UP,
    CONTROLLER,
    ELECTED,
    EXPAND,
    FETCHES,
    LEADER,
    MERGED_GAP_MS,
    OK,
    PROPOSED,
    REASSIGNMENT,
    REFUSED,
    REPLICA_OFFLINE,
    SHRINK,
    SUPERSEDED,
    TABLES,
    TELEMETRY_TOPIC,
)

ROW_BYTES: Final = 256
"""What a row takes in memory, about: an object of numbers, most of them small or shared."""

Run = tuple[int, int, int, int]
"""Requests of a session close together: first, last, how many, how long they waited in all."""

_FETCHES: Final = FETCHES.name
_APPENDS: Final = APPENDS.name
_SENTENCES: Final = {
    BROKER_GONE: "its session ended",
    BROKER_FROZEN: "its heartbeat stopped, and its session ended",
    REPLICA_OFFLINE: "its log failed or is damaged",
    REASSIGNMENT: "moved away",
    ELECTED: "elected",
}


class Session(Protocol):
    @property
    def fetched_at_ms(self) -> int: ...
    @property
    def runs(self) -> Iterable[Run]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A change of the ISR that this leader has proposed."""

    decided_at_ms: int
    late_ms: int
    reason: str
    term: Leadership  # as it was decided on

    @property
    def sentence(self) -> str:
        late = f"; decided {self.late_ms} ms after the deadline" if self.late_ms else ""
        return self.reason + late

    def cause(self, replica: BrokerId) -> str:
        if replica not in self.term.isr.members:
            return CAUGHT_UP
        return self.term.policy.exceeded(self.term.followers[replica], self.term.log).value


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The brokers that have a replica of a partition, and the topic that it is of."""

    topic_id: UUID
    replicas: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @classmethod
    def of_state(cls, topic_id: UUID, state: PartitionState) -> Assignment:
        return cls(
            topic_id=topic_id,
            replicas=state.replicas,
            adding=state.adding,
            removing=state.removing,
        )


class Recorder:
    def __init__(self, *, broker: BrokerId, anchor_ms: int, buffer_bytes: int) -> None:
        self.broker = broker
        self.anchor_ms = anchor_ms
        self.rows_max = max(1, buffer_bytes // ROW_BYTES)
        self.count = 0  # rows kept
        self.drops = dict.fromkeys(TABLES, 0)  # rows lost since the start
        self.rows: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.round = 0  # rows are taken away between two rounds
        self.is_needed = False  # True once this broker leads a recorded partition
        self._self = PublishKey("", broker)
        self._settings: dict[str, dict[str, str]] = {}  # by scope, as last recorded
        self._stalls: list[Stall] = []  # the sockets are not drained yet

    def add(self, row: Row) -> bool:
        return self.add_to(row.table.name, row)

    def add_to(self, table: str, row: Row) -> bool:
        """As `add`, for the data path, where looking up the table's name costs too much."""
        if self.count >= self.rows_max:
            self.drops[table] += 1
            return False
        self.count += 1
        self.rows[table].append(row)
        return True

    def take(self) -> dict[str, list[Row]]:
        """All rows since the last time, by table."""
        taken, self.rows = self.rows, {name: [] for name in TABLES}
        self.count = 0
        self.round += 1
        return taken

    # Of the broker as a whole.

    def record_stall(self, stall: Stall) -> None:
        self._stalls.append(stall)

    def record_drain(self, *, now_ms: int) -> None:
        """What waited in the sockets is read. The rows of the stalls before it are complete."""
        for stall in self._stalls:
            self.add(
                StallRow(
                    publish_key=self._self,
                    at_ms=stall.began_at_ms,
                    broker=self.broker,
                    stall_ms=stall.length_ms,
                    drained_at_ms=now_ms,
                )
            )
        self._stalls.clear()

    def record_settings(
        self, values: Mapping[str, object], *, now_ms: int, topic: str | None = None
    ) -> None:
        """What holds from now on; only what is new is written down."""
        own = f"broker:{self.broker}"
        scope = own if topic is None else f"{own}/topic:{topic}"
        known = self._settings.setdefault(scope, {})
        general = {} if topic is None else self._settings.get(own, {})
        for name, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if known.get(name, general.get(name)) != text:
                known[name] = text
                row = ConfigRow(
                    publish_key=self._self, at_ms=now_ms, scope=scope, name=name, value=text
                )
                self.add(row)

    def throttled(
        self,
        side: str,
        *,
        limit: int | None,
        size_bytes: int,
        exempt_bytes: int,
        held_back: int,
        lag_bytes: int | None,
        bytes_in: int,
        at_ms: int,
    ) -> None:
        self.add(
            ThrottleRow(
                publish_key=self._self,
                at_ms=at_ms,
                broker=self.broker,
                side=side,
                limit_bytes_per_s=limit,
                bytes=size_bytes,
                exempt_bytes=exempt_bytes,
                held_back_partitions=held_back,
                replica_lag_bytes=lag_bytes,
                bytes_in=bytes_in,
            )
        )

    def elected(
        self,
        key: tuple[str, int],
        *,
        before: BrokerId | None,
        after: BrokerId | None,
        epoch: LeaderEpoch,
        cause: str,
        now_ms: int,
    ) -> None:
        if key[0] != TELEMETRY_TOPIC:
            self.add(
                ElectionRow(
                    publish_key=PublishKey(*key),
                    at_ms=now_ms,
                    leader_before=before,
                    leader_after=after,
                    leader_epoch=epoch,
                    cause=cause,
                )
            )

    # Of a partition led here.

    def lead(self, key: tuple[str, int], epoch: LeaderEpoch) -> PartitionRecord | None:
        """The recorder of a led partition; None for the telemetry topic, which is not recorded."""
        if key[0] == TELEMETRY_TOPIC:
            return None
        self.is_needed = True
        return PartitionRecord(self, key, epoch)


class PartitionRecord(LeaderTermKey):
    """One partition in the hands of one leader, as it is written down."""

    __slots__ = (
        "_assignment",
        "_decision",
        "_idle",
        "_idle_round",
        "_isr_events",
        "_recorded_until_ms",
        "_recorder",
        "seq",
    )

    def __init__(self, recorder: Recorder, key: tuple[str, int], epoch: LeaderEpoch) -> None:
        super().__init__(*key, leader=recorder.broker, leader_epoch=epoch)
        self.seq = 0
        self._recorder = recorder
        self._idle: dict[int, FetchRow] = {}  # the last row of a follower, if it was idle
        self._idle_round = -1
        self._recorded_until_ms: dict[
            int, int
        ] = {}  # until when its session's requests are recorded
        self._decision: Decision | None = None
        self._isr_events = 0
        self._assignment: Assignment | None = None  # as last recorded

    def _next(self) -> int:
        """A number is used up even if its row is dropped: the gap shows."""
        seq = self.seq
        self.seq = seq + 1
        return seq

    def began(self, isr: Isr, *, now_ms: int) -> None:
        """The leader begins with this ISR."""
        self._record_isr_event(isr, BEGAN, now_ms=now_ms)

    def record_assignment(self, assignment: Assignment, *, version: int, now_ms: int) -> None:
        """The replicas from now on, if they are others than those that are recorded."""
        if assignment == self._assignment:
            return
        self._assignment = assignment
        self._recorder.add(
            AssignmentRow(
                publish_key=self,
                at_ms=now_ms,
                version=version,
                topic_id=str(assignment.topic_id),
                replicas=assignment.replicas,
                adding=sorted(assignment.adding),
                removing=sorted(assignment.removing),
            )
        )

    def record_deletion(self, topic_id: UUID, *, version: int, now_ms: int) -> None:
        """The topic is deleted, and has no replicas any more."""
        self.record_assignment(Assignment(topic_id=topic_id), version=version, now_ms=now_ms)

    def append(self, *, base: int, end: int, size_bytes: int, now_ms: int) -> None:
        row = AppendRow()
        row.publish_key = self
        row.at_ms = now_ms
        row.seq = seq = self.seq
        self.seq = seq + 1
        row.base_offset = base
        row.end_offset = end
        row.bytes = size_bytes
        self._recorder.add_to(_APPENDS, row)

    def fetch(
        self,
        follower: int,
        *,
        offset: int,
        leader_end: int,
        high_watermark: int,
        log_start: int,
        size_bytes: int,
        at_ms: int,
        read_ms: int = 0,
        outcome: str = OK,
        is_held_back: bool = False,
        merges_within_ms: int = 0,
    ) -> None:
        """One fetch; merged with the one before it if both are idle and close together."""
        is_idle = size_bytes == 0 and offset == leader_end and read_ms == 0 and outcome is OK
        if is_idle and self._is_merged(follower, offset, high_watermark, at_ms, merges_within_ms):
            return
        row = FetchRow()
        row.publish_key = self
        row.at_ms = row.last_at_ms = at_ms
        row.seq = seq = self.seq
        self.seq = seq + 1
        row.follower = follower
        row.offset = offset
        row.leader_end_low = row.leader_end_high = leader_end
        row.high_watermark = high_watermark
        row.log_start = log_start
        row.bytes = size_bytes
        row.read_ms = read_ms
        row.wait_ms = 0 if size_bytes else None
        row.outcome = outcome
        row.throttled = is_held_back
        row.repeats = 1
        recorder = self._recorder
        if recorder.count >= recorder.rows_max:
            recorder.drops[_FETCHES] += 1
        else:  # as `Recorder.add`, without its call
            recorder.count += 1
            recorder.rows[_FETCHES].append(row)
            if is_idle:
                self._idle[follower] = row
                return
        if self._idle:
            self._idle.pop(follower, None)

    def record_wait(self, follower: int, wait_ms: int) -> None:
        """How long its idle fetch waited for more, unless its row is on its way already."""
        if self._idle_round == self._recorder.round:
            row = self._idle.get(follower)
            if row is not None:
                row.wait_ms = (row.wait_ms or 0) + wait_ms

    def _is_merged(
        self, follower: int, offset: int, high_watermark: int, at_ms: int, within_ms: int
    ) -> bool:
        if self._idle_round != self._recorder.round:
            self._idle.clear()  # those rows are on their way
            self._idle_round = self._recorder.round
        last = self._idle.pop(follower, None)
        if (
            last is None
            or last.offset != offset
            or last.high_watermark != high_watermark
            or not last.last_at_ms < at_ms <= last.last_at_ms + within_ms + MERGED_GAP_MS
        ):
            return False
        last.repeats += 1
        last.last_at_ms = at_ms
        self._idle[follower] = last
        return True

    def record_session_fetches(
        self, term: Leadership, follower: BrokerId, session: Session
    ) -> None:
        """What its session said for this partition, if it is caught up and there is more of it."""
        known = term.followers.get(follower)
        if known is None or known.end != term.end:
            return
        since_ms = max(known.fetched_at_ms, self._recorded_until_ms.get(follower, NEVER_MS))
        until_ms = session.fetched_at_ms
        if until_ms <= since_ms:
            return
        self._recorded_until_ms[follower] = until_ms
        self._idle.pop(follower, None)
        runs: list[tuple[int, int, int, int | None]] = [
            part for run in session.runs if (part := _after(run, since_ms)) is not None
        ]
        # The watermark of those moments is not known any more.
        for first_ms, last_ms, repeats, wait_ms in runs or [(until_ms, until_ms, 1, None)]:
            row = FetchRow()
            row.publish_key = self
            row.at_ms, row.last_at_ms = first_ms, last_ms
            row.seq = self._next()
            row.follower = follower
            row.offset = known.end
            row.leader_end_low = row.leader_end_high = term.end
            row.high_watermark = None
            row.log_start = known.log_start
            row.bytes = row.read_ms = 0
            row.wait_ms = wait_ms
            row.outcome = OK
            row.throttled = False
            row.repeats = repeats
            self._recorder.add(row)

    def record_proposal(self, term: Leadership, why: str, *, now_ms: int, late_ms: int = 0) -> None:
        """A change of the ISR was proposed; it counts once it is committed.

        One that the store did not take, and that is proposed again before anything else is, was
        decided the first time, and was as late as it was then.
        """
        self._record_isr_event(
            term.isr,
            PROPOSED,
            now_ms=now_ms,
            late_ms=late_ms if isinstance(term.isr, Shrinking) else None,
        )
        first = self._decision
        decision = Decision(decided_at_ms=now_ms, late_ms=late_ms, reason=why, term=term)
        if first is not None and _is_same_change(first.term.isr, term.isr):
            again = f"; proposed again {now_ms - first.decided_at_ms} ms later"
            decision = replace(first, reason=why + again, term=term)
        self._decision = decision

    def record_isr(
        self,
        term: Leadership | None,
        before: AbstractSet[BrokerId],
        after: AbstractSet[BrokerId],
        *,
        replicas: Collection[BrokerId],
        offline: AbstractSet[BrokerId] = NO_BROKERS,
        frozen: AbstractSet[BrokerId] = NO_BROKERS,
        version: int,
        now_ms: int,
    ) -> None:
        """The ISR in the store changed: as this leader proposed, or otherwise."""
        isr = None if term is None else term.isr
        if isr is not None and not isinstance(isr, Stable) and isr_rules.proposed(isr) != after:
            event = REFUSED if isr.version == version else SUPERSEDED
            self._record_isr_event(isr, event, now_ms=now_ms)
        if before == after:
            return
        decision, self._decision = self._decision, None
        is_ours = term is not None and isr_rules.proposed(term.isr) == after
        if not is_ours:
            decision = None
        decision_term = term if decision is None else decision.term
        for replica in sorted(before ^ after):
            follower = None if decision_term is None else decision_term.followers.get(replica)
            cause, late_ms, reason = None, None, ""
            if decision is not None:
                cause, reason = decision.cause(replica), decision.sentence
                late_ms = decision.late_ms if replica in before else None
            elif not is_ours:
                cause = controller_cause(replica, before, replicas, offline, frozen)
            replica_end = None if follower is None else follower.end
            caught_up_at_ms = None if follower is None else follower.caught_up_at_ms
            self._recorder.add(
                IsrRow(
                    publish_key=self,
                    at_ms=now_ms,
                    decided_at_ms=None if decision is None else decision.decided_at_ms,
                    decided_by=LEADER if is_ours else CONTROLLER,
                    version=version,
                    isr_before=sorted(before),
                    isr_after=sorted(after),
                    replica=replica,
                    change=EXPAND if replica in after else SHRINK,
                    reason=reason or by_controller(replica, before, replicas, offline, frozen),
                    replica_end=None if replica_end == UNKNOWN_OFFSET else replica_end,
                    leader_end=None if decision_term is None else decision_term.end,
                    caught_up_at_ms=None if caught_up_at_ms == NEVER_MS else caught_up_at_ms,
                    seq=self.seq,
                    cause=cause,
                    late_ms=late_ms,
                )
            )

    def _record_isr_event(
        self, isr: Isr, event: str, *, now_ms: int, late_ms: int | None = None
    ) -> None:
        number = self._isr_events
        self._isr_events = number + 1  # used up even if the row is dropped
        self._recorder.add(
            IsrEventRow(
                publish_key=self,
                at_ms=now_ms,
                number=number,
                event=event,
                version=isr.version,
                isr_before=sorted(isr.members),
                isr_after=sorted(isr_rules.proposed(isr)),
                late_ms=late_ms,
                seq=self.seq,
            )
        )

    def record_rule(
        self, policy: Policy, *, fetch_wait_max_ms: int, min_isr: int, now_ms: int
    ) -> None:
        """The rule that decides here from now on."""
        values: dict[str, object] = {
            "replica.in.sync.policy": policy.name.removesuffix("+pending-reads"),
            "replica.lag.time.max.ms": policy.lag_time_max_ms,
            "replica.fetch.wait.max.ms": fetch_wait_max_ms,
            "follower.fetch.pending.reads.insync.enable": policy.pending_reads,
            "min.insync.replicas": min_isr,
        }
        if isinstance(policy, Messages):
            values["replica.lag.max.messages"] = policy.lag_max_messages
        self._recorder.record_settings(values, now_ms=now_ms, topic=self.topic)


def _is_same_change(one: Isr, other: Isr) -> bool:
    """The same ISR proposed again, though the version it builds on may be another."""
    return (one.members, isr_rules.proposed(one)) == (other.members, isr_rules.proposed(other))


def controller_cause(
    replica: BrokerId,
    before: AbstractSet[BrokerId],
    replicas: Collection[BrokerId],
    offline: AbstractSet[BrokerId],
    frozen: AbstractSet[BrokerId],
) -> str:
    """Why the ISR changed, though no leader had proposed it.

    The controller made the change, or a broker that elects or cancels a reassignment for a client.

    `offline` are the registered brokers that reported their replica as failed or damaged, `frozen`
    those whose last session ended because their heartbeats stopped.
    """
    if replica not in before:
        return ELECTED
    if replica not in replicas:
        return REASSIGNMENT
    if replica in offline:
        return REPLICA_OFFLINE
    return BROKER_FROZEN if replica in frozen else BROKER_GONE


def by_controller(
    replica: BrokerId,
    before: AbstractSet[BrokerId],
    replicas: Collection[BrokerId],
    offline: AbstractSet[BrokerId],
    frozen: AbstractSet[BrokerId],
) -> str:
    """The cause of such a change in words."""
    return _SENTENCES[controller_cause(replica, before, replicas, offline, frozen)]


def _after(run: Run, since_ms: int) -> Run | None:
    """The part of a run that is later; their even spacing says how many that were."""
    first_ms, last_ms, count, wait_ms = run
    if last_ms <= since_ms:
        return None
    if first_ms > since_ms or count == 1:
        return run
    gap_ms = max(1, (last_ms - first_ms) // (count - 1))
    later = max(1, min(count, (last_ms - since_ms - 1) // gap_ms + 1))
    return last_ms - (later - 1) * gap_ms, last_ms, later, wait_ms * later // count
