"""A model of a partition that trusts no broker: whole logs, a store that may not respond, kills.

A record is a leader epoch and a log is a list of them, so two logs agree where their lists do. The
rules only see what a broker would see; `check` sees everything.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from insync.rules import election, reassignment
from insync.rules.isr import Expanding, IsrChange, Stable, committed, maximal, proposed
from insync.rules.leader_machine import (
    Appended,
    BrokersChanged,
    ConnectionClosed,
    Event,
    LeaderStalled,
    PartitionStateRead,
    ProposalRefused,
    ProposeIsr,
    ReadServed,
    ReadStarted,
    SessionFetched,
    SocketsDrained,
    Woken,
    start,
    step,
)
from insync.rules.leadership import Draining, Leadership, Rule
from insync.rules.partition_state import PartitionState
from insync.rules.policy import CaughtUp, LagBegin, Messages, Policy, TrueLag, in_sync
from insync.rules.refusals import NothingToCancel, WouldLoseData
from insync.rules.stalls import Stall
from insync.rules.values import NEVER_MS, BrokerId, Incarnation, LeaderEpoch, Offset

REPLICAS = (BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(4))
LIMIT_MS = 100
WAIT_MS = 20
POLICIES: tuple[Policy, ...] = (
    Messages(lag_time_max_ms=LIMIT_MS, lag_max_messages=5),
    LagBegin(lag_time_max_ms=LIMIT_MS),
    CaughtUp(lag_time_max_ms=LIMIT_MS),
    TrueLag(lag_time_max_ms=LIMIT_MS),
    CaughtUp(lag_time_max_ms=LIMIT_MS, pending_reads=True),
    TrueLag(lag_time_max_ms=LIMIT_MS, pending_reads=True),
)


def common_prefix(one: list[int], other: list[int]) -> list[int]:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


class PartitionWorld:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now_ms = 0
        self.logs: dict[BrokerId, list[int]] = {broker: [] for broker in REPLICAS}
        self.known_watermarks = dict.fromkeys(REPLICAS, 0)
        self.live = dict.fromkeys(REPLICAS, Incarnation(1))
        self.incarnation_numbers = dict.fromkeys(REPLICAS, 1)
        self.acknowledged: list[int] = []
        self.store = PartitionState(
            replicas=REPLICAS, isr=REPLICAS, leader=REPLICAS[0], leader_epoch=LeaderEpoch(0)
        )
        self.store_version = 0
        self.begin_term()

    def begin_term(self) -> None:
        self.known_version = self.store_version
        self.reads: dict[BrokerId, tuple[Offset, Offset]] = {}  # (leader's end, own offset)
        self.sessions: dict[BrokerId, int] = {}
        # Proposals of this term on their way to the store, with the incarnation that would join.
        self.in_flight: list[tuple[IsrChange, Incarnation | None]] = []
        self.state_read = self.store
        self.term: Leadership | None = None
        leader = self.store.leader
        if leader is None:
            return
        end = len(self.logs[leader])
        self.term = Leadership.begin(
            rule=Rule(policy=self.policy, fetch_wait_max_ms=WAIT_MS),
            leader=leader,
            epoch=self.store.leader_epoch,
            replicas=self.store.replicas,
            members=frozenset(self.store.isr),
            end=Offset(end),
            high_watermark=Offset(min(end, self.known_watermarks[leader])),
            registered=dict(self.live),
            now_ms=self.now_ms,
            version=self.store_version,
        )
        self.term, _ = start(self.term, now_ms=self.now_ms)
        self.watermark_before = self.term.high_watermark

    def is_follower(self, broker: BrokerId) -> bool:
        return self.term is not None and broker in self.term.followers and broker in self.live

    def report(self, event: Event) -> None:
        """Drive the machine; the store takes a proposal when the test says so, or never."""
        assert self.term is not None
        self.term, effects = step(
            self.term, event, now_ms=self.now_ms, session_fetched_at_ms=self.sessions
        )
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                change, joining = effect.change, None
                if isinstance(change, Expanding):
                    joining = self.term.followers[change.joining].incarnation
                self.in_flight.append((change, joining))

    # Traffic.

    def append(self, count: int) -> None:
        if self.term is None:
            return
        self.logs[self.term.leader].extend([self.term.epoch] * count)
        self.report(Appended(Offset(self.term.end + count)))

    def read_begins(self, broker: BrokerId) -> None:
        if self.term is None or not self.is_follower(broker) or broker in self.reads:
            return
        leader_log = self.logs[self.term.leader]
        self.logs[broker] = common_prefix(self.logs[broker], leader_log)  # KIP-101
        offset = Offset(len(self.logs[broker]))
        self.reads[broker] = (self.term.end, offset)
        self.report(
            ReadStarted(
                follower=broker,
                read_id=broker,
                connection=broker,
                offset=offset,
                parsed_at_ms=self.now_ms,
            )
        )

    def read_is_served(self, broker: BrokerId, taken: int) -> None:
        read = self.reads.pop(broker, None)
        if self.term is None or read is None or not self.is_follower(broker):
            return
        leader_end, offset = read
        self.known_watermarks[broker] = min(self.term.high_watermark, offset)
        self.report(
            ReadServed(
                follower=broker,
                read_id=broker,
                leader_end=leader_end,
                incarnation=self.live[broker],
            )
        )
        self.logs[broker] = self.logs[self.term.leader][: min(leader_end, offset + taken)]

    def fetch(self, broker: BrokerId, taken: int) -> None:
        self.read_begins(broker)
        self.read_is_served(broker, taken)

    def session_fetches(self, broker: BrokerId) -> None:
        """A fetch session that does not list this partition, whose follower is level."""
        if self.term is None or not self.is_follower(broker):
            return
        if self.term.followers[broker].end == self.term.end:
            self.sessions[broker] = self.now_ms

    def session_lists(self, broker: BrokerId) -> None:
        if self.term is not None and self.is_follower(broker) and broker in self.sessions:
            self.report(SessionFetched(broker, self.sessions.pop(broker)))

    def connection_closes(self, broker: BrokerId) -> None:
        if self.reads.pop(broker, None) is not None and self.term is not None:
            self.report(ConnectionClosed(broker, broker))

    # Time.

    def time_passes(self, by_ms: int) -> None:
        """The leader checks each deadline as it passes."""
        until_ms = self.now_ms + by_ms
        self.drain()
        while self.term is not None and self.term.wake_at_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.term.wake_at_ms)
            self.report(Woken())
        self.now_ms = until_ms

    def leader_stalls(self, stall_ms: int) -> None:
        """What comes next, until it has drained its sockets, was waiting there meanwhile."""
        if self.term is None:
            return
        stall = Stall(began_at_ms=self.now_ms, ended_at_ms=self.now_ms + stall_ms)
        self.now_ms = stall.ended_at_ms
        self.report(LeaderStalled(stall))

    def drain(self) -> None:
        if self.term is not None and self.term.draining is not Draining.NO:
            self.report(SocketsDrained())

    # The store.

    def store_takes_the_change(self, *, is_answered: bool) -> None:
        """The oldest proposal on its way arrives, though its leader may have moved on since."""
        if self.term is None or not self.in_flight:
            return
        change, joining = self.in_flight.pop(0)
        is_alive = not isinstance(change, Expanding) or self.live.get(change.joining) == joining
        if change.version == self.store_version and is_alive:
            # The write is conditional on both (design).
            isr = tuple(broker for broker in self.store.replicas if broker in proposed(change))
            self.store = replace(self.store, isr=isr)
            self.store_version += 1
        elif is_answered:
            self.report(ProposalRefused(change))
        if is_answered:
            self.leader_reads_store()

    def leader_reads_store(self) -> None:
        """Replicas and ISR are one value, read in one go."""
        if self.term is None:
            return
        self.known_version = self.store_version
        self.state_read = self.store
        self.leader_reads_the_same_state_again()

    def leader_reads_the_same_state_again(self) -> None:
        """As after its disk refused something: a pending change can still be committed."""
        if self.term is not None:
            state = self.state_read
            self.report(
                PartitionStateRead(self.known_version, state.replicas, frozenset(state.isr))
            )

    # Failures, seen by the controller at once.

    def broker_dies(self, broker: BrokerId) -> None:
        if broker not in self.live or len(self.live) == 1:
            return
        del self.live[broker]
        self.forget(broker)
        self.change(election.broker_gone(self.store, broker, live=frozenset(self.live)))

    def broker_returns(self, broker: BrokerId) -> None:
        if broker in self.live:
            return
        self.incarnation_numbers[broker] += 1
        self.live[broker] = Incarnation(self.incarnation_numbers[broker])
        self.change(election.elect(self.store, live=frozenset(self.live)))

    def broker_restarts_at_once(self, broker: BrokerId) -> None:
        """A new incarnation before the end of the old one was noticed."""
        if broker not in self.live:
            return
        self.incarnation_numbers[broker] += 1
        self.live[broker] = Incarnation(self.incarnation_numbers[broker])
        self.forget(broker)
        self.change(election.broker_gone(self.store, broker, live=frozenset(self.live)))

    def forget(self, broker: BrokerId) -> None:
        self.reads.pop(broker, None)
        self.sessions.pop(broker, None)

    # Moves.

    def move_starts(self, target: tuple[BrokerId, ...]) -> None:
        known, live = frozenset(REPLICAS), frozenset(self.live)
        with suppress(WouldLoseData):
            self.change(reassignment.start(self.store, target, known=known, live=live))

    def move_completes(self) -> None:
        live = frozenset(self.live)
        self.change(reassignment.complete(self.store, min_insync_replicas=1, live=live))

    def move_is_cancelled(self) -> None:
        with suppress(WouldLoseData, NothingToCancel):
            live = frozenset(self.live)
            self.change(reassignment.cancel(self.store, live=live, unclean=False))

    def change(self, state: PartitionState) -> None:
        is_new_term = state.leader_epoch != self.store.leader_epoch
        has_moved = state.replicas != self.store.replicas
        self.store = state
        self.store_version += 1
        if is_new_term:
            self.begin_term()
        elif self.term is not None:
            self.report(BrokersChanged(dict(self.live)))
            if has_moved:
                for broker in set(self.term.followers) - set(state.replicas):
                    self.forget(broker)
                self.leader_reads_store()

    # What must hold after every step.

    def check(self) -> None:
        self.guarantee_3_the_watermark_never_falls_within_a_term()
        self.guarantee_4_every_possible_member_has_all_below_the_watermark()
        self.guarantee_1_a_pseudo_isr_member_holds_the_watermark()
        self.guarantee_2_a_lagging_member_is_evicted()
        self.nothing_acknowledged_is_lost()

    def guarantee_3_the_watermark_never_falls_within_a_term(self) -> None:
        if self.term is not None:
            assert self.term.high_watermark >= self.watermark_before
            self.watermark_before = self.term.high_watermark

    def guarantee_4_every_possible_member_has_all_below_the_watermark(self) -> None:
        """Of the leader's ISR, of the proposed one, and of the store's."""
        if self.term is None:
            return
        leader_log = self.logs[self.term.leader]
        committed_records = leader_log[: self.term.high_watermark]
        for broker in sorted(maximal(self.term.isr).union(self.store.isr)):
            has = common_prefix(self.logs[broker], committed_records)
            assert len(has) == self.term.high_watermark

    def guarantee_1_a_pseudo_isr_member_holds_the_watermark(self) -> None:
        """It did not move past a replica that is in sync but for the watermark."""
        if self.term is None:
            return
        for broker in self.term.pseudo_isr(now_ms=self.now_ms) - {self.term.leader}:
            follower = self.term.followers[broker]
            if follower.end < self.term.high_watermark:
                assert broker not in committed(self.term.isr)
                assert self.term.with_watermark(now_ms=self.now_ms) == self.term

    def guarantee_2_a_lagging_member_is_evicted(self) -> None:
        """At its deadline, unless a pending read or the grace after a stall delays it."""
        if self.term is None or not isinstance(self.term.isr, Stable):
            return
        leaving = self.term.leaving(now_ms=self.now_ms, session_fetched_at_ms=self.sessions)
        grace_ends_ms = self.term.drained_at_ms + WAIT_MS
        for broker in committed(self.term.isr) - {self.term.leader}:
            follower = self.term.followers[broker]
            is_held = self.policy.pending_reads and follower.reads.hold
            is_graced = follower.is_graced and self.now_ms < grace_ends_ms
            is_in = in_sync(
                self.policy,
                follower,
                self.term.log,
                now_ms=self.now_ms,
                session_fetched_at_ms=self.sessions.get(broker, NEVER_MS),
            )
            assert (broker in leaving) == (not is_in and not is_held and not is_graced)

    def nothing_acknowledged_is_lost(self) -> None:
        """It is in the log of the leader, and of every replica that may be the next."""
        for broker in self.store.isr:
            assert self.logs[broker][: len(self.acknowledged)] == self.acknowledged
        if self.term is None:
            return
        leader_log = self.logs[self.term.leader]
        assert leader_log[: len(self.acknowledged)] == self.acknowledged
        if self.term.high_watermark > len(self.acknowledged):
            self.acknowledged = leader_log[: self.term.high_watermark]
