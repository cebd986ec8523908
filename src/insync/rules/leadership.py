"""One partition under one leader for one leader epoch: what the leader knows and has promised.

This is the state of the leader's state machine (`leader_machine.py`), and how each event changes
it. Nothing here waits, stores or sends. The state also answers questions, without changing: which
members are due to leave, what keeps a follower out, when to look again.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from insync.rules import isr as isr_rules
from insync.rules import membership
from insync.rules.append_times import AppendTimes
from insync.rules.eviction import evicted_at_ms
from insync.rules.follower import Fetch, Follower
from insync.rules.isr import Isr, Stable
from insync.rules.membership import Obstacle
from insync.rules.policy import (
    LeaderLog,
    Policy,
    half_period_check_at_ms,
    holds_watermark_until_ms,
    in_sync,
)
from insync.rules.resignation import resigns_at_ms
from insync.rules.stalls import Stall
from insync.rules.values import (
    FIRST_OFFSET,
    NEVER_MS,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
)

NO_SESSIONS: Final[Mapping[BrokerId, int]] = {}
NO_WAKE_MS: Final = 1 << 62
"""Later than any time: no deadline is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """By what a leader decides. The last two are for replays and scenarios of other systems."""

    policy: Policy
    fetch_wait_max_ms: int
    process_time_max_ms: int | None = None  # KIP-501, solution 2; None: a slow leader stays
    process_time_includes_stalls: bool = False  # the leader's own, while a read is pending
    checks_from_ms: int | None = None  # look for laggards every T/2 from then on, as Kafka does
    ignored_obstacles: frozenset[Obstacle] = frozenset()  # a follower joins in spite of these


class Draining(Enum):
    """After a stall nothing is due until the leader has read what waited in its sockets."""

    NO = "the leader runs"
    AFTER_SHORT_STALL = "the stall was too short to count under this lag limit"
    AFTER_STALL = "the stall moved the followers' times, and they get grace from the drain on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """One leader's view of its partition in one epoch. A transition returns the next value.

    - The leader is a member of its ISR, and not one of its followers.
    - The high watermark never falls and never passes the log end offset. It advances only to what
      every member of the maximal ISR and of the pseudo-ISR has.
    - At most one ISR change is pending. A replica that it removes still holds the high watermark
      back until the store has committed the change.
    - Times are milliseconds of this leader's monotonic clock.
    """

    rule: Rule
    leader: BrokerId
    epoch: LeaderEpoch
    isr: Isr
    log: LeaderLog  # append times are recorded only for a policy that reads them
    high_watermark: Offset  # never falls while this leader leads
    followers: Mapping[BrokerId, Follower]  # every other replica, in assignment order
    registered: Mapping[BrokerId, Incarnation]  # the live brokers
    drained_at_ms: int = NEVER_MS  # when the sockets were read after the latest stall
    draining: Draining = Draining.NO
    resigns_from_ms: int = NEVER_MS  # the leader asks to resign no sooner than this
    wake_at_ms: int = NO_WAKE_MS  # when the machine wants to be woken; never later than needed

    @classmethod
    def begin(
        cls,
        *,
        rule: Rule,
        leader: BrokerId,
        epoch: LeaderEpoch,
        replicas: tuple[BrokerId, ...],
        members: AbstractSet[BrokerId],
        end: Offset,
        high_watermark: Offset,
        registered: Mapping[BrokerId, Incarnation],
        now_ms: int,
        version: int = 0,
    ) -> Leadership:
        """Begin to lead: members stay in sync, and the clock of every follower starts now."""
        assert leader in members, "only an in-sync replica leads"
        assert high_watermark <= end, "a watermark beyond the log"
        followers = {
            broker: Follower.member(epoch_started_at_ms=now_ms)
            if broker in members
            else Follower.outsider()
            for broker in replicas
            if broker != leader
        }
        begun = cls(
            rule=rule,
            leader=leader,
            epoch=epoch,
            isr=isr_rules.settled(members, version),
            log=LeaderLog(
                end=end,
                append_times=AppendTimes(epoch_start=end, epoch_started_at_ms=now_ms),
            ),
            high_watermark=high_watermark,
            followers=followers,
            registered=registered,
        )
        return begun.with_watermark(now_ms=now_ms)

    @property
    def policy(self) -> Policy:
        return self.rule.policy

    @property
    def fetch_wait_max_ms(self) -> int:
        return self.rule.fetch_wait_max_ms

    @property
    def end(self) -> Offset:
        return self.log.end

    @property
    def epoch_start(self) -> Offset:
        return self.log.append_times.epoch_start

    @property
    def serves_latest(self) -> bool:
        """KIP-207: until then "latest" could be lower than what an earlier leader answered."""
        return self.high_watermark >= self.epoch_start

    # How each event changes the state.

    def append(
        self,
        *,
        end: Offset,
        now_ms: int,
        session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS,
    ) -> Leadership:
        before = self.log.end
        assert end > before, "an append adds something"
        append_times = self.log.append_times
        policy = self.rule.policy
        if policy.reads_append_times:
            append_times = append_times.append(
                end=end, at_ms=now_ms, lag_time_max_ms=policy.lag_time_max_ms
            )
        followers = {
            broker: follower.on_session_fetch(
                leader_end=before,
                session_fetched_at_ms=session_fetched_at_ms.get(broker, NEVER_MS),
            )
            for broker, follower in self.followers.items()
        }
        return self._advance(
            LeaderLog(end=end, append_times=append_times), followers, now_ms=now_ms
        )

    def fetch(self, broker: BrokerId, fetch: Fetch) -> Leadership:
        """A fetch was read and takes effect now, at `fetch.served_at_ms`."""
        before = self.followers[broker]
        fetched = before.on_fetch(fetch)
        if fetch.offset == before.end:
            return self._replace_follower(
                broker, fetched
            )  # nothing new to commit: an idle fetch costs little
        followers = {**self.followers, broker: fetched}
        return self._advance(self.log, followers, now_ms=fetch.served_at_ms)

    def session_fetched(self, broker: BrokerId, *, at_ms: int) -> Leadership:
        """The follower's fetch session, which does not list this partition, fetched at `at_ms`."""
        follower = self.followers[broker]
        level = follower.on_session_fetch(leader_end=self.end, session_fetched_at_ms=at_ms)
        return self._replace_follower(broker, level)

    def read_began(
        self,
        broker: BrokerId,
        *,
        read_id: int,
        connection: int,
        offset: Offset,
        parsed_at_ms: int,
    ) -> Leadership:
        is_member = broker in isr_rules.committed(self.isr)
        began = self.followers[broker].on_read_began(
            read_id=read_id,
            connection=connection,
            offset=offset,
            parsed_at_ms=parsed_at_ms,
            high_watermark=self.high_watermark if is_member else None,
        )
        return self._replace_follower(broker, began)

    def read_served(
        self,
        broker: BrokerId,
        *,
        read_id: int,
        leader_end: Offset,
        served_at_ms: int,
        incarnation: Incarnation,
        log_start: Offset = FIRST_OFFSET,
    ) -> Leadership:
        """A pending read takes effect, as of when its request was parsed, stalls not counted."""
        read = self.followers[broker].reads.find(read_id)
        if read is None:
            return self  # its connection or its broker's session ended meanwhile
        fetch = Fetch(
            offset=read.offset,
            leader_end=leader_end,
            at_ms=read.parsed_at_ms,
            served_at_ms=served_at_ms,
            log_start=log_start,
            incarnation=incarnation,
        )
        return self.read_failed(broker, read_id=read_id).fetch(broker, fetch)

    def read_failed(self, broker: BrokerId, *, read_id: int) -> Leadership:
        return self._replace_follower(broker, self.followers[broker].on_read_ended(read_id))

    def connection_closed(self, broker: BrokerId, *, connection: int) -> Leadership:
        return self._replace_follower(
            broker, self.followers[broker].on_connection_closed(connection)
        )

    def registration(
        self, registered: Mapping[BrokerId, Incarnation], *, now_ms: int
    ) -> Leadership:
        """Brokers came or went. The reads of a broker whose session ended hold nothing."""
        followers = {
            broker: follower
            if registered.get(broker) == self.registered.get(broker)
            else follower.on_session_ended()
            for broker, follower in self.followers.items()
        }
        known = replace(self, registered=registered, followers=followers)
        return known.with_watermark(now_ms=now_ms)

    def assigned(
        self,
        replicas: tuple[BrokerId, ...],
        *,
        members: AbstractSet[BrokerId],
        now_ms: int,
        version: int = 0,
    ) -> Leadership:
        """A reassignment changed the replicas, and this leader is still one of them.

        Replicas and ISR are read from the store together, so this settles the ISR as well.
        """
        assert self.leader in replicas, "a leader that is no replica has lost its term"
        followers = {
            broker: self.followers.get(broker) or Follower.outsider()
            for broker in replicas
            if broker != self.leader
        }
        return replace(self, followers=followers).settle(members, now_ms=now_ms, version=version)

    def with_rule(self, rule: Rule, *, now_ms: int) -> Leadership:
        """Decide by another rule from now on; what is known of each follower stays.

        A record of append times that was not kept so far begins now: what a follower lacks
        already counts as appended just now, because no earlier time is known.
        """
        append_times = self.log.append_times
        if rule.policy.reads_append_times and not self.policy.reads_append_times:
            append_times = replace(append_times, entries=())
            if self.end > self.epoch_start:
                append_times = append_times.append(
                    end=self.end, at_ms=now_ms, lag_time_max_ms=rule.policy.lag_time_max_ms
                )
        ruled = replace(self, rule=rule, log=LeaderLog(end=self.end, append_times=append_times))
        return ruled.with_watermark(now_ms=now_ms)

    def stalled(
        self, stall: Stall, *, session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS
    ) -> Leadership:
        """This leader did not run. Report it before anything that waited in the sockets."""
        limit_ms = self.policy.lag_time_max_ms
        followers = {}
        for broker, follower in self.followers.items():
            session_ms = session_fetched_at_ms.get(broker, NEVER_MS)
            level = follower.on_session_fetch(leader_end=self.end, session_fetched_at_ms=session_ms)
            followers[broker] = level.on_leader_stall(
                stall,
                forgiven_ms_max=limit_ms,
                was_in_sync=in_sync(self.policy, level, self.log, now_ms=stall.began_at_ms),
            )
        append_times = self.log.append_times.later_by(
            stall.length_ms, not_after_ms=stall.ended_at_ms
        )
        later = replace(
            self,
            log=replace(self.log, append_times=append_times),
            followers=followers,
            drained_at_ms=stall.ended_at_ms,
        )
        # A replica outside the ISR may have stopped holding the watermark during the stall.
        return later.with_watermark(now_ms=stall.ended_at_ms)

    def drained(self, *, now_ms: int) -> Leadership:
        """All that waited in the sockets during a stall has been read."""
        return replace(self, drained_at_ms=now_ms, draining=Draining.NO)

    def propose_join(self, broker: BrokerId) -> Leadership:
        return replace(self, isr=isr_rules.expand(self.isr, broker))

    def propose_leave(self, brokers: AbstractSet[BrokerId]) -> Leadership:
        return replace(self, isr=isr_rules.shrink(self.isr, brokers))

    def settle(
        self, members: AbstractSet[BrokerId], *, now_ms: int, version: int = 0
    ) -> Leadership:
        """The partition state says which replicas are in the ISR, whatever was proposed."""
        settled = replace(self, isr=isr_rules.settled(members, version))
        return settled.with_watermark(now_ms=now_ms)

    def with_watermark(self, *, now_ms: int) -> Leadership:
        # Members count whatever their lag; of the other replicas, those of the pseudo-ISR do.
        outside = self._followers_outside(isr_rules.maximal(self.isr))
        pseudo = self._pseudo_isr(outside, now_ms=now_ms) if outside else ()
        ends = {broker: follower.end for broker, follower in self.followers.items()}
        ends[self.leader] = self.log.end
        high_watermark = membership.high_watermark(
            self.isr, pseudo, ends, current=self.high_watermark
        )
        if high_watermark == self.high_watermark:
            return self
        return self._replace_fields(high_watermark=high_watermark)

    # What follows from the state.

    def obstacles(self, broker: BrokerId, *, now_ms: int) -> tuple[Obstacle, ...]:
        """What keeps a follower out of the ISR, after a fetch; if nothing does, it joins."""
        pending = () if isinstance(self.isr, Stable) else (Obstacle.CHANGE_PENDING,)
        return pending + membership.obstacles(
            self.policy,
            self.followers[broker],
            self.log,
            high_watermark=self.high_watermark,
            registered=self.registered.get(broker),
            now_ms=now_ms,
        )

    def deadlines(
        self, session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS
    ) -> dict[BrokerId, int]:
        """When each member leaves if nothing more happens; a member that stays is not listed.

        While a change is pending no member is due: there is one change at a time.
        """
        deadlines: dict[BrokerId, int] = {}
        if not isinstance(self.isr, Stable):
            return deadlines
        members = self.isr.members
        for broker, follower in self.followers.items():
            if broker not in members:
                continue
            at_ms = evicted_at_ms(
                self.rule.policy,
                follower,
                self.log,
                session_fetched_at_ms=session_fetched_at_ms.get(broker, NEVER_MS),
                drained_at_ms=self.drained_at_ms,
                fetch_wait_max_ms=self.rule.fetch_wait_max_ms,
            )
            if at_ms is not None:
                deadlines[broker] = at_ms
        return deadlines

    def leaving(
        self, *, now_ms: int, session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS
    ) -> tuple[BrokerId, ...]:
        """The members whose deadline has come, in assignment order."""
        if self.rule.checks_from_ms is not None and self._noticed_at_ms(now_ms) != now_ms:
            return ()  # Kafka does not look at this millisecond
        deadlines = self.deadlines(session_fetched_at_ms)
        return tuple(broker for broker, at_ms in deadlines.items() if at_ms <= now_ms)

    def next_deadline_ms(
        self, *, now_ms: int, session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS
    ) -> int | None:
        """When to look again if nothing more happens.

        Either a member is due to leave, or (KAFKA-4485's pseudo-ISR) a replica outside the ISR
        that holds the watermark stops holding it, or a read has taken too long (KIP-501).
        """
        moments = [
            self.noticed_at_ms(at_ms, now_ms=now_ms)
            for at_ms in self.deadlines(session_fetched_at_ms).values()
        ]
        outside = self._followers_outside(isr_rules.committed(self.isr))
        if outside:
            for broker in self._pseudo_isr(outside, now_ms=now_ms) & outside.keys():
                lets_go_at_ms = holds_watermark_until_ms(
                    self.policy, self.followers[broker], self.log
                )
                if lets_go_at_ms is not None:
                    moments.append(lets_go_at_ms)
        resigns_ms = self.resigns_at_ms()
        if resigns_ms is not None:
            moments.append(resigns_ms)
        return min(moments, default=None)

    def resigns_at_ms(self) -> int | None:
        """When a pending read will have taken too long, or it is time to ask again (KIP-501)."""
        if self.rule.process_time_max_ms is None:
            return None
        due_ms = resigns_at_ms(
            self.followers.values(),
            process_time_max_ms=self.rule.process_time_max_ms,
            includes_stalls=self.rule.process_time_includes_stalls,
        )
        return None if due_ms is None else max(due_ms, self.resigns_from_ms)

    def is_read_slow(self, *, now_ms: int) -> bool:
        """Whether a read takes too long without the leader's stalls: then its disk is slow."""
        limit_ms = self.rule.process_time_max_ms
        if limit_ms is None:
            return False
        due_ms = resigns_at_ms(self.followers.values(), process_time_max_ms=limit_ms)
        return due_ms is not None and due_ms <= now_ms

    def was_pending_too_long(self, broker: BrokerId, *, read_id: int, now_ms: int) -> bool:
        """Whether this read took too long with the leader's stalls, by a rule that includes them.

        Deadlines are not met before the sockets are drained, and a read that was done meanwhile
        takes effect before.
        """
        limit_ms = self.rule.process_time_max_ms
        if limit_ms is None or not self.rule.process_time_includes_stalls:
            return False
        read = self.followers[broker].reads.find(read_id)
        if read is None or now_ms < self.resigns_from_ms:
            return False
        return now_ms - read.began_at_ms > limit_ms

    def noticed_at_ms(self, due_ms: int, *, now_ms: int) -> int:
        """When a deadline is acted on: at once, or at Kafka's next check.

        A check precedes all else in its millisecond, so what becomes due now waits for the next.
        """
        if self.rule.checks_from_ms is None:
            return due_ms
        return self._noticed_at_ms(due_ms if due_ms > now_ms else now_ms + 1)

    def pseudo_isr(self, *, now_ms: int) -> frozenset[BrokerId]:
        return self._pseudo_isr(self.followers, now_ms=now_ms)

    def _noticed_at_ms(self, due_ms: int) -> int:
        assert self.rule.checks_from_ms is not None, "only Kafka checks now and then"
        return half_period_check_at_ms(
            due_ms,
            lag_time_max_ms=self.policy.lag_time_max_ms,
            first_check_at_ms=self.rule.checks_from_ms,
        )

    def _pseudo_isr(
        self, among: Mapping[BrokerId, Follower], *, now_ms: int
    ) -> frozenset[BrokerId]:
        return membership.pseudo_isr(
            self.policy, self.leader, among, self.log, registered=self.registered, now_ms=now_ms
        )

    def _followers_outside(self, members: AbstractSet[BrokerId]) -> dict[BrokerId, Follower]:
        """Mostly none, so a question about these alone costs little."""
        return {
            broker: follower for broker, follower in self.followers.items() if broker not in members
        }

    def _advance(
        self, log: LeaderLog, followers: Mapping[BrokerId, Follower], *, now_ms: int
    ) -> Leadership:
        return self._replace_fields(log=log, followers=followers).with_watermark(now_ms=now_ms)

    def _replace_follower(self, broker: BrokerId, follower: Follower) -> Leadership:
        if follower is self.followers[broker]:
            return self
        return self._replace_fields(followers={**self.followers, broker: follower})

    def _replace_fields(
        self,
        *,
        log: LeaderLog | None = None,
        followers: Mapping[BrokerId, Follower] | None = None,
        high_watermark: Offset | None = None,
    ) -> Leadership:
        """As `replace`, at a third of its cost: every append and fetch comes through here."""
        return Leadership(
            rule=self.rule,
            leader=self.leader,
            epoch=self.epoch,
            isr=self.isr,
            log=self.log if log is None else log,
            high_watermark=self.high_watermark if high_watermark is None else high_watermark,
            followers=self.followers if followers is None else followers,
            registered=self.registered,
            drained_at_ms=self.drained_at_ms,
            draining=self.draining,
            resigns_from_ms=self.resigns_from_ms,
            wake_at_ms=self.wake_at_ms,
        )
