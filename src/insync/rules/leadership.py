"""One partition in the hands of one leader for one epoch: the rules put together.

Events go in and the next state comes out; nothing here waits, stores or sends. The shell around
it (a broker, a simulation, a replay of recorded telemetry, a scenario) does three things:

1. It reports what happened: `append`, `fetch`, reads, sessions, stalls, registrations, replicas.
2. After a fetch it asks `obstacles`, and with none in the way it proposes to let that replica in.
   At `next_deadline_ms` it brings the watermark up to date (`with_watermark`), asks who is
   `leaving`, and proposes to let those go.
3. It takes each proposal to the metadata store and reports the outcome: `settle`.

An event and a deadline that fall into the same millisecond: the deadline comes first. It was due
when that millisecond began.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from insync.rules import isr as isr_rules
from insync.rules import membership
from insync.rules.append_times import AppendTimes
from insync.rules.eviction import evicted_at_ms
from insync.rules.follower import Fetch, Follower
from insync.rules.isr import Isr, Stable
from insync.rules.membership import Obstacle
from insync.rules.policy import LeaderLog, Policy, in_sync
from insync.rules.stalls import Stall
from insync.rules.values import (
    FIRST_OFFSET,
    NEVER_MS,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
)

NO_SESSIONS: Mapping[BrokerId, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What the leader knows and promises."""

    policy: Policy
    fetch_wait_max_ms: int
    leader: BrokerId
    epoch: LeaderEpoch
    isr: Isr
    log: LeaderLog  # its append times are kept up only for a policy that reads them
    high_watermark: Offset  # never falls while this leader leads
    followers: Mapping[BrokerId, Follower]  # every other replica, in assignment order
    registered: Mapping[BrokerId, Incarnation]  # brokers that live now
    drained_at_ms: int = NEVER_MS

    @classmethod
    def begin(
        cls,
        *,
        policy: Policy,
        fetch_wait_max_ms: int,
        leader: BrokerId,
        epoch: LeaderEpoch,
        replicas: tuple[BrokerId, ...],
        members: AbstractSet[BrokerId],
        end: Offset,
        high_watermark: Offset,
        registered: Mapping[BrokerId, Incarnation],
        now_ms: int,
    ) -> Leadership:
        """Take over a partition: whoever is in sync stays so, and everybody's clock starts anew."""
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
            policy=policy,
            fetch_wait_max_ms=fetch_wait_max_ms,
            leader=leader,
            epoch=epoch,
            isr=isr_rules.settled(members),
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
    def end(self) -> Offset:
        return self.log.end

    @property
    def epoch_start(self) -> Offset:
        return self.log.append_times.epoch_start

    @property
    def serves_latest(self) -> bool:
        """KIP-207: until then "latest" could go back on what an earlier leader showed."""
        return self.high_watermark >= self.epoch_start

    # What happened.

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
        if self.policy.reads_append_times:
            append_times = append_times.append(
                end=end, at_ms=now_ms, lag_time_max_ms=self.policy.lag_time_max_ms
            )
        followers = {
            broker: follower.on_session_fetch(
                leader_end=before,
                session_fetched_at_ms=session_fetched_at_ms.get(broker, NEVER_MS),
            )
            for broker, follower in self.followers.items()
        }
        return self._next(LeaderLog(end=end, append_times=append_times), followers, now_ms=now_ms)

    def fetch(self, broker: BrokerId, fetch: Fetch) -> Leadership:
        """A fetch was read and takes effect now, at `fetch.served_at_ms`."""
        before = self.followers[broker]
        fetched = before.on_fetch(fetch)
        if fetch.offset == before.end:
            return self._with(broker, fetched)  # nothing new to commit: idle and stuck cost little
        followers = {**self.followers, broker: fetched}
        return self._next(self.log, followers, now_ms=fetch.served_at_ms)

    def session_fetched(self, broker: BrokerId, *, at_ms: int) -> Leadership:
        """Its fetch session, which stops speaking for this partition, last asked at `at_ms`."""
        follower = self.followers[broker]
        level = follower.on_session_fetch(leader_end=self.end, session_fetched_at_ms=at_ms)
        return self._with(broker, level)

    def read_began(
        self,
        broker: BrokerId,
        *,
        read_id: int,
        connection: int,
        offset: Offset,
        parsed_at_ms: int,
    ) -> Leadership:
        began = self.followers[broker].on_read_began(
            read_id=read_id, connection=connection, offset=offset, parsed_at_ms=parsed_at_ms
        )
        return self._with(broker, began)

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
        """A read that was begun takes effect, as of when it was parsed, stalls not counted."""
        read = self.followers[broker].reads.find(read_id)
        if read is None:
            return self  # its connection or session ended meanwhile
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
        return self._with(broker, self.followers[broker].on_read_ended(read_id))

    def connection_closed(self, broker: BrokerId, *, connection: int) -> Leadership:
        return self._with(broker, self.followers[broker].on_connection_closed(connection))

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
        self, replicas: tuple[BrokerId, ...], *, members: AbstractSet[BrokerId], now_ms: int
    ) -> Leadership:
        """A move: the partition has other replicas now, and this leader is still one of them.

        Replicas and ISR are read from the store together, so this settles the ISR as well.
        """
        assert self.leader in replicas, "a leader that is no replica has lost its term"
        followers = {
            broker: self.followers.get(broker) or Follower.outsider()
            for broker in replicas
            if broker != self.leader
        }
        return replace(self, followers=followers).settle(members, now_ms=now_ms)

    def with_rule(self, policy: Policy, *, fetch_wait_max_ms: int, now_ms: int) -> Leadership:
        """Decide by another rule from now on; what is known of everybody stays.

        A record of append times that was not kept so far begins now: what a follower lacks
        already counts as appended just now, for no earlier time is known.
        """
        append_times = self.log.append_times
        if policy.reads_append_times and not self.policy.reads_append_times:
            append_times = replace(append_times, entries=())
            if self.end > self.epoch_start:
                append_times = append_times.append(
                    end=self.end, at_ms=now_ms, lag_time_max_ms=policy.lag_time_max_ms
                )
        ruled = replace(
            self,
            policy=policy,
            fetch_wait_max_ms=fetch_wait_max_ms,
            log=LeaderLog(end=self.end, append_times=append_times),
        )
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
        # Who held the watermark from outside may have let go of it meanwhile: nobody looked then.
        return later.with_watermark(now_ms=stall.ended_at_ms)

    def drained(self, *, now_ms: int) -> Leadership:
        """All that waited in the sockets during a stall has been read."""
        return replace(self, drained_at_ms=now_ms)

    # What to do about it.

    def obstacles(self, broker: BrokerId, *, now_ms: int) -> tuple[Obstacle, ...]:
        """Ask after each fetch of a replica outside the ISR; nothing in the way: it joins."""
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
        """When each member leaves if nothing more happens; who is not listed stays.

        While a change is pending nobody is due: there is one change at a time.
        """
        deadlines: dict[BrokerId, int] = {}
        if not isinstance(self.isr, Stable):
            return deadlines
        members = self.isr.members
        for broker, follower in self.followers.items():
            if broker not in members:
                continue
            at_ms = evicted_at_ms(
                self.policy,
                follower,
                self.log,
                session_fetched_at_ms=session_fetched_at_ms.get(broker, NEVER_MS),
                drained_at_ms=self.drained_at_ms,
                fetch_wait_max_ms=self.fetch_wait_max_ms,
            )
            if at_ms is not None:
                deadlines[broker] = at_ms
        return deadlines

    def leaving(
        self, *, now_ms: int, session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS
    ) -> tuple[BrokerId, ...]:
        """The members whose deadline has come, in assignment order."""
        deadlines = self.deadlines(session_fetched_at_ms)
        return tuple(broker for broker, at_ms in deadlines.items() if at_ms <= now_ms)

    def next_deadline_ms(
        self, *, now_ms: int, session_fetched_at_ms: Mapping[BrokerId, int] = NO_SESSIONS
    ) -> int | None:
        """When to look again if nothing more happens: a member leaves, or the watermark is freed.

        The second is KAFKA-4485's pseudo-ISR: a replica outside the ISR that is close holds the
        watermark, and lets go of it once its lag is past the limit.
        """
        moments = list(self.deadlines(session_fetched_at_ms).values())
        outside = self._followers_outside(isr_rules.committed(self.isr))
        for broker in self._pseudo_isr(outside, now_ms=now_ms) & outside.keys():
            lets_go_at_ms = self.policy.leaves_at_ms(
                self.followers[broker], self.log, session_fetched_at_ms=NEVER_MS
            )
            if lets_go_at_ms is not None:
                moments.append(lets_go_at_ms)
        return min(moments, default=None)

    def propose_join(self, broker: BrokerId) -> Leadership:
        return replace(self, isr=isr_rules.expand(self.isr, broker))

    def propose_leave(self, brokers: AbstractSet[BrokerId]) -> Leadership:
        return replace(self, isr=isr_rules.shrink(self.isr, brokers))

    def settle(self, members: AbstractSet[BrokerId], *, now_ms: int) -> Leadership:
        """The store's own word on who is in the ISR, whatever became of our proposal."""
        return replace(self, isr=isr_rules.settled(members)).with_watermark(now_ms=now_ms)

    def pseudo_isr(self, *, now_ms: int) -> frozenset[BrokerId]:
        return self._pseudo_isr(self.followers, now_ms=now_ms)

    def _pseudo_isr(
        self, among: Mapping[BrokerId, Follower], *, now_ms: int
    ) -> frozenset[BrokerId]:
        return membership.pseudo_isr(
            self.policy, self.leader, among, self.log, registered=self.registered, now_ms=now_ms
        )

    def _followers_outside(self, members: AbstractSet[BrokerId]) -> dict[BrokerId, Follower]:
        """Usually nobody, so whoever asks only about these asks about few."""
        return {
            broker: follower for broker, follower in self.followers.items() if broker not in members
        }

    def with_watermark(self, *, now_ms: int) -> Leadership:
        # Members count whatever they are; among the others, those of the pseudo-ISR do.
        outside = self._followers_outside(isr_rules.maximal(self.isr))
        pseudo = self._pseudo_isr(outside, now_ms=now_ms) if outside else ()
        ends = {broker: follower.end for broker, follower in self.followers.items()}
        ends[self.leader] = self.log.end
        high_watermark = membership.high_watermark(
            self.isr, pseudo, ends, current=self.high_watermark
        )
        if high_watermark == self.high_watermark:
            return self
        return self._but(high_watermark=high_watermark)

    def _next(
        self, log: LeaderLog, followers: Mapping[BrokerId, Follower], *, now_ms: int
    ) -> Leadership:
        return self._but(log=log, followers=followers).with_watermark(now_ms=now_ms)

    def _with(self, broker: BrokerId, follower: Follower) -> Leadership:
        if follower is self.followers[broker]:
            return self
        return self._but(followers={**self.followers, broker: follower})

    def _but(
        self,
        *,
        log: LeaderLog | None = None,
        followers: Mapping[BrokerId, Follower] | None = None,
        high_watermark: Offset | None = None,
    ) -> Leadership:
        """As `replace`, at a third of its price: every append and fetch comes through here."""
        return Leadership(
            policy=self.policy,
            fetch_wait_max_ms=self.fetch_wait_max_ms,
            leader=self.leader,
            epoch=self.epoch,
            isr=self.isr,
            log=self.log if log is None else log,
            high_watermark=self.high_watermark if high_watermark is None else high_watermark,
            followers=self.followers if followers is None else followers,
            registered=self.registered,
            drained_at_ms=self.drained_at_ms,
        )
