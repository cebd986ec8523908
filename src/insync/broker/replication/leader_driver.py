"""The driver of the leader's state machine for every partition that this broker leads.

It reports events to the machine (`rules.leader_machine`), stores the new state with the replica,
and performs the effects: answers producers, wakes fetches, sets timers, proposes ISR changes to
the store, asks to resign, and records telemetry. The broker's loop performs them in order after
the callback that reported the event (`broker_loop.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from insync.broker.broker_loop import BrokerLoop
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.replication.isr_commits import IsrCommits
from insync.broker.replication.isr_reasons import why_by_controller, why_proposed
from insync.broker.replication.replica import Replica
from insync.broker.replication.resigning import ResignationRequests
from insync.metadata.offline_replicas import offline_in
from insync.metadata.store import MetadataStore
from insync.rules import isr as isr_rules
from insync.rules.follower import Fetch
from insync.rules.isr import IsrChange
from insync.rules.leader_machine import (
    Appended,
    Committed,
    Effect,
    Event,
    FollowerFetched,
    IsrSettled,
    LeaderStalled,
    PartitionStateRead,
    ProposalRefused,
    ProposeIsr,
    Resign,
    RuleChanged,
    SocketsDrained,
    WakeAt,
    Woken,
    start,
    step,
)
from insync.rules.leadership import Draining, Leadership, Rule
from insync.rules.partition_state import PartitionState
from insync.rules.stalls import Stall, is_stall
from insync.rules.values import NEVER_MS, NO_BROKERS, BrokerId, Incarnation, Offset
from insync.telemetry.recorder import Assignment, Recorder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged:
    """Fetches that wait for the partition hear of it: it grew, more is committed, or the ISR."""

    grew: bool
    committed: bool


class LeaderDriver:
    def __init__(
        self,
        *,
        broker: BrokerId,
        store: MetadataStore,
        view: ClusterView,
        loop: BrokerLoop,
        partitions: Mapping[TopicPartition, Replica],
        silent_after_ms: Callable[[], int],
        recorder: Recorder | None,
    ) -> None:
        self._broker = broker
        self._view = view
        self._loop = loop
        self._recorder = recorder
        self._short_stall: Stall | None = None  # until the sockets are drained
        self._drains: dict[Replica, None] = {}  # nothing is due there until the sockets are drained
        self._commits = IsrCommits(store, view, loop, self._refuse, self.read_state)
        self._resignations = ResignationRequests(
            broker=broker,
            store=store,
            view=view,
            partitions=partitions,
            silent_after_ms=silent_after_ms,
        )

    def registered(self, incarnation: Incarnation) -> None:
        """This broker has registered: from now on it writes in the name of this incarnation."""
        self._commits.incarnation = incarnation
        self._resignations.incarnation = incarnation

    async def stop(self) -> None:
        await self._commits.stop()
        await self._resignations.stop()

    def remove_eligible_if_enough(self, replica: Replica, state: PartitionState) -> None:
        """If the ISR suffices for acks=all, remove the eligible replicas from the state first."""
        if replica.term is not None and state.eligible and len(state.isr) >= replica.min_isr:
            self._commits.remove_eligible(replica)

    # Events.

    def begin(
        self,
        replica: Replica,
        state: PartitionState,
        rule: Rule,
        isr_before: frozenset[BrokerId] | None,
        *,
        now_ms: int,
    ) -> None:
        """Lead the partition in the epoch of this state."""
        isr = frozenset(state.isr)
        if isr_before is not None and isr_before != isr:
            why = why_by_controller(
                None,
                isr_before,
                state,
                offline=self._offline(replica),
                frozen=self._view.frozen,
                now_ms=now_ms,
            )
            _log_isr(replica, isr, why)
        replica.end_term()
        replica.log.begin_epoch(state.leader_epoch)
        term, effects = start(
            Leadership.begin(
                rule=rule,
                leader=self._broker,
                epoch=state.leader_epoch,
                replicas=state.replicas,
                members=isr,
                end=Offset(replica.log.end),
                high_watermark=Offset(replica.high_watermark),
                registered=self._view.incarnations,
                now_ms=now_ms,
                version=self._view.versions[replica.key],
            ),
            now_ms=now_ms,
        )
        record = None if self._recorder is None else self._recorder.lead(replica.key, term.epoch)
        replica.begin_term(term, record)
        self._record_term(replica, term, isr_before, now_ms=now_ms)
        self._record_assignment(replica, state, now_ms=now_ms)
        changed = PartitionChanged(grew=True, committed=True)
        self._queue(replica, term, [Committed(term.high_watermark), changed, *effects], now_ms)

    def on_append(self, replica: Replica, end: int, *, size_bytes: int = 0) -> None:
        """The leader's log ends at `end` now. The append may have blocked, and ended the term."""
        now_ms = self._loop.read_clock()
        self._meet_deadlines(replica, now_ms=now_ms)
        if replica.term is None or end <= replica.term.end:
            return
        if replica.record is not None:
            replica.record_sessions()
            base = replica.term.end
            replica.record.append(base=base, end=end, size_bytes=size_bytes, now_ms=now_ms)
        self.report(replica, Appended(Offset(end)), now_ms=now_ms)

    def on_fetch(
        self,
        replica: Replica,
        follower: BrokerId,
        fetch: Fetch,
        *,
        size_bytes: int = 0,
        is_held_back: bool = False,
    ) -> None:
        """A follower's fetch takes effect, and with it what its session has said before."""
        self._meet_deadlines(replica, now_ms=fetch.served_at_ms)
        term, record = replica.term, replica.record
        if term is None or follower not in term.followers:
            return  # what was due ended the term
        is_member = follower in isr_rules.committed(term.isr)
        session = replica.sessions.get(follower)
        if session is not None and record is not None:
            record.record_session_fetches(term, follower, session)
        self.report(replica, FollowerFetched(follower, fetch), now_ms=fetch.served_at_ms)
        if record is not None:
            record.fetch(
                follower,
                offset=fetch.offset,
                leader_end=fetch.leader_end,
                high_watermark=replica.high_watermark,
                log_start=fetch.log_start,
                size_bytes=size_bytes,
                at_ms=fetch.at_ms,
                is_held_back=is_held_back,
                # Each fetch of a replica outside the ISR may let it in: none is merged.
                merges_within_ms=term.fetch_wait_max_ms if is_member else NEVER_MS,
            )

    def change_rule(self, replica: Replica, rule: Rule, *, now_ms: int) -> None:
        assert replica.term is not None, "only a led partition has a rule"
        before = replica.term.rule
        if rule == before:
            self._record_rule(replica, now_ms=now_ms)  # the minimum of the ISR is no part of it
            return
        if (rule.policy, rule.fetch_wait_max_ms) != (before.policy, before.fetch_wait_max_ms):
            logger.info(
                "%s-%d: the in-sync policy is now %s, limit %d ms",
                *replica.key,
                rule.policy.name,
                rule.policy.lag_time_max_ms,
            )
        self.report(replica, RuleChanged(rule), now_ms=now_ms)
        self._record_rule(replica, now_ms=now_ms)

    def on_stall(self, led: Iterable[Replica], stall: Stall) -> None:
        """This broker did not run. Comes before anything that waited meanwhile.

        Under a lag limit for which the stall is too short it changes no time, and only keeps
        deadlines from being met before the sockets are drained. So a partition hears of it when
        it has a deadline then (`_hold_deadlines`), which few of thousands have.
        """
        limit_by_replica_ms = {
            replica: replica.term.policy.lag_time_max_ms
            for replica in led
            if replica.term is not None
        }
        limits_ms = set(limit_by_replica_ms.values())
        counting_ms = {
            limit_ms
            for limit_ms in limits_ms
            if is_stall(stall.length_ms, lag_time_max_ms=limit_ms)
        }
        if limits_ms - counting_ms:
            self._short_stall = stall
        if not counting_ms:
            return
        self._resignations.on_stall(stall, sorted(counting_ms))
        extended = 0
        for replica, limit_ms in limit_by_replica_ms.items():
            if limit_ms not in counting_ms:
                continue
            self._drains[replica] = None
            self.report(replica, LeaderStalled(stall), now_ms=stall.ended_at_ms)
            if replica.term is not None and replica.term.draining is Draining.AFTER_STALL:
                extended += 1
        if extended:
            logger.info(
                "broker %d: stalled %d ms; eviction deadlines of %d partitions extended",
                self._broker,
                stall.length_ms,
                extended,
            )

    def on_drained(self, *, now_ms: int) -> None:
        """What waited in the sockets is read: from now on deadlines count again."""
        self._short_stall = None
        drains, self._drains = self._drains, {}
        for replica in drains:
            term = replica.term
            if term is not None and term.draining is not Draining.NO:
                recent = self._resignations.stalls_of(term.policy.lag_time_max_ms)
                self.report(replica, SocketsDrained(recent), now_ms=now_ms)

    def _hold_deadlines(self, replica: Replica, term: Leadership, stall: Stall) -> None:
        """Something is due after a stall too short to count: not before the sockets are drained."""
        if not is_stall(stall.length_ms, lag_time_max_ms=term.policy.lag_time_max_ms):
            self._drains[replica] = None
            self.report(replica, LeaderStalled(stall), now_ms=stall.ended_at_ms)

    def report(self, replica: Replica, event: Event, *, now_ms: int | None = None) -> None:
        """Report an event to the machine of a led partition, and perform what follows from it."""
        if now_ms is None:
            now_ms = self._loop.now_ms
        before = replica.term
        if before is None:
            return  # this broker no longer leads it
        if before.wake_at_ms <= now_ms and not isinstance(event, LeaderStalled):
            if self._short_stall is not None and before.draining is Draining.NO:
                self._hold_deadlines(replica, before, self._short_stall)
            if not isinstance(event, Woken):
                self._meet_deadlines(replica, now_ms=now_ms)
            before = replica.term
            if before is None:
                return  # what was due ended the term
        if not isinstance(event, FollowerFetched | Appended):
            replica.record_sessions()
        term, effects = step(
            before, event, now_ms=now_ms, session_fetched_at_ms=replica.session_fetched_at_ms
        )
        replica.store(term)
        grew = term.end != before.end
        committed = term.high_watermark != before.high_watermark
        queued: list[Effect | PartitionChanged] = list(effects)
        if grew or committed or term.isr is not before.isr:
            # Producers hear of it first, then fetches; a `Committed` is the first effect.
            changed = PartitionChanged(grew=grew, committed=committed)
            queued.insert(1 if committed else 0, changed)
        if queued:
            self._queue(replica, term, queued, now_ms)

    def _meet_deadlines(self, replica: Replica, *, now_ms: int) -> None:
        """A deadline precedes what happens now, though its timer is late.

        The machine sees to that itself. Done first, the decision is recorded with the state that
        it was made on.
        """
        if replica.term is not None and replica.term.wake_at_ms <= now_ms:
            self.report(replica, Woken(), now_ms=now_ms)

    def _wake(self, replica: Replica, at_ms: int) -> None:
        if replica.term is not None and replica.term.wake_at_ms == at_ms:
            self.report(replica, Woken())

    def _refuse(self, replica: Replica, change: IsrChange) -> None:
        self.report(replica, ProposalRefused(change))

    def read_state(self, replica: Replica) -> None:
        """Report the partition state of the view, if it is of the epoch that is led here."""
        state = self._view.states.get(replica.key)
        epoch = None if replica.term is None else replica.term.epoch
        if state is not None and state.leader_epoch == epoch:
            version = self._view.versions[replica.key]
            read = PartitionStateRead(version, state.replicas, frozenset(state.isr))
            self.report(replica, read)
            self._record_assignment(replica, state, now_ms=self._loop.now_ms)

    # Effects.

    def _queue(
        self,
        replica: Replica,
        term: Leadership,
        effects: Sequence[Effect | PartitionChanged],
        now_ms: int,
    ) -> None:
        for effect in effects:
            self._loop.then(self._perform, replica, term, effect, now_ms)

    def _perform(
        self, replica: Replica, term: Leadership, effect: Effect | PartitionChanged, now_ms: int
    ) -> None:
        """Perform one effect of `term`, the state that it follows from."""
        if replica.term is None or replica.term.epoch != term.epoch:
            return  # this broker leads it no more, or in another epoch
        match effect:
            case Committed():
                replica.acknowledge()
            case PartitionChanged(grew=grew, committed=committed):
                replica.notify(grew=grew, committed=committed)
            case WakeAt(at_ms):
                delay_s = max(0, at_ms - now_ms) / 1_000
                self._loop.call_later(delay_s, self._wake, replica, at_ms)
            case ProposeIsr():
                self._propose(replica, term, effect, now_ms=now_ms)
            case IsrSettled():
                self._settled(replica, term, effect, now_ms=now_ms)
            case Resign(reason):
                self._resignations.request(replica, term, reason, now_ms=now_ms)

    def _propose(
        self, replica: Replica, term: Leadership, proposal: ProposeIsr, *, now_ms: int
    ) -> None:
        proposed = replace(term, isr=proposal.change)
        self._commits.commit(replica, proposed)
        why = why_proposed(
            proposed,
            proposal.change,
            session_fetched_at_ms=replica.session_fetched_at_ms,
            now_ms=now_ms,
        )
        replica.note_proposal(why)
        if replica.record is not None:
            late_ms = now_ms - proposal.due_at_ms
            replica.record.record_proposal(proposed, why, now_ms=now_ms, late_ms=late_ms)

    def _settled(
        self, replica: Replica, term: Leadership, settled: IsrSettled, *, now_ms: int
    ) -> None:
        before = isr_rules.committed(settled.before)
        state = self._view.states.get(replica.key)
        is_own = isr_rules.proposed(settled.before) == settled.members
        offline = NO_BROKERS if is_own else self._offline(replica)
        frozen = NO_BROKERS if is_own else self._view.frozen
        if replica.record is not None:
            replica.record.record_isr(
                replace(term, isr=settled.before),
                before,
                settled.members,
                replicas=() if state is None else state.replicas,
                offline=offline,
                frozen=frozen,
                version=term.isr.version,
                now_ms=now_ms,
            )
        if before == settled.members or state is None:
            return
        _log_isr(
            replica,
            settled.members,
            replica.proposed_why
            if is_own
            else why_by_controller(
                term, before, state, offline=offline, frozen=frozen, now_ms=now_ms
            ),
        )

    def _offline(self, replica: Replica) -> frozenset[BrokerId]:
        """The live brokers whose replica of the partition failed or is damaged."""
        return offline_in(self._view.store, replica.key, self._view.incarnations).brokers

    # Telemetry.

    def _record_term(
        self,
        replica: Replica,
        term: Leadership,
        isr_before: frozenset[BrokerId] | None,
        *,
        now_ms: int,
    ) -> None:
        record = replica.record
        if record is None:
            return
        self._record_rule(replica, now_ms=now_ms)
        members = isr_rules.committed(term.isr)
        record.record_isr(
            None,
            isr_before or members,
            members,
            replicas=(term.leader, *term.followers),
            offline=self._offline(replica),
            frozen=self._view.frozen,
            version=term.isr.version,
            now_ms=now_ms,
        )
        record.began(term.isr, now_ms=now_ms)
        record.append(base=term.end, end=term.end, size_bytes=0, now_ms=now_ms)

    def _record_assignment(self, replica: Replica, state: PartitionState, *, now_ms: int) -> None:
        if replica.record is not None:
            assignment = Assignment.of_state(replica.topic_id, state)
            version = self._view.versions[replica.key]
            replica.record.record_assignment(assignment, version=version, now_ms=now_ms)

    def record_deletion(self, replica: Replica) -> None:
        """Its topic is deleted. Comes before its term ends."""
        if replica.record is not None and replica.term is not None:
            version, now_ms = replica.term.isr.version, self._loop.now_ms
            replica.record.record_deletion(replica.topic_id, version=version, now_ms=now_ms)

    def _record_rule(self, replica: Replica, *, now_ms: int) -> None:
        if replica.record is not None and replica.term is not None:
            replica.record.record_rule(
                replica.term.policy,
                fetch_wait_max_ms=replica.term.fetch_wait_max_ms,
                min_isr=replica.min_isr,
                now_ms=now_ms,
            )


def _log_isr(replica: Replica, members: Iterable[BrokerId], why: str) -> None:
    isr = ",".join(str(broker) for broker in sorted(members))
    logger.info("%s-%d: ISR is now %s: %s", *replica.key, isr, why)
