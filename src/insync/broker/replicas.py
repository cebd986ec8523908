"""The partitions of this broker: made, led, followed and dropped as the store says.

Decisions are the rules'; this module carries them out. A change of the ISR is one step of the
store, conditional on the state's version, on this broker's own registration and on that of
whoever joins. If the step fails the leader stays on its maximal ISR until it has read the state
that won.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from insync.broker.awake import Awake
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.counts import Counts
from insync.broker.in_sync import Rules
from insync.broker.isr_reasons import why_by_controller, why_joining, why_leaving
from insync.broker.replica import Replica, Told
from insync.broker.resigning import Resigning
from insync.broker.settings import Settings
from insync.metadata import paths
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.records import encode_state
from insync.metadata.store import Check, MetadataStore, Operation, Write
from insync.rules import isr as isr_rules
from insync.rules.acknowledgement import effective_min_isr
from insync.rules.follower import Fetch
from insync.rules.isr import Stable
from insync.rules.leadership import Leadership
from insync.rules.partition_state import PartitionState
from insync.rules.policy import Policy
from insync.rules.reassignment import origin
from insync.rules.stalls import Stall, is_stall
from insync.rules.values import NEVER_MS, BrokerId, Incarnation, Offset
from insync.storage.directory import LogDirectory
from insync.storage.errors import StorageRefusal
from insync.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

COMMIT_RETRY_MS = 50
AFTER_DRAINING_MS = 10
NO_STALL = Stall(began_at_ms=0, ended_at_ms=0)
STORAGE_RETRY_MS = 500


class Replicas:
    """Every partition this broker holds, by topic and number."""

    def __init__(
        self,
        *,
        broker: BrokerId,
        settings: Settings,
        store: MetadataStore,
        view: ClusterView,
        directory: LogDirectory,
        awake: Awake,
        wall_ms: Callable[[], int],
        recorder: Recorder | None = None,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.store = store
        self.view = view
        self.directory = directory
        self.clock_ms = awake.now_ms  # monotonic: decides
        self.wall_ms = wall_ms  # like the timestamps in records: only says how old files are
        self.incarnation = Incarnation(-1)
        self.counts = Counts()
        self.held: dict[TopicPartition, Replica] = {}
        self.on_following: Callable[[Replica], None] = lambda _replica: None
        self.has_dropped = asyncio.Event()  # files wait to be removed
        self._recorder = recorder
        self._watermarks = directory.read_watermarks()
        self._commits: set[asyncio.Task[None]] = set()
        self._awake = awake
        self._stall = NO_STALL  # the latest
        self._put_off: dict[Replica, None] = {}  # to be looked at when the sockets are read
        awake.on_stall = self._on_stall
        awake.on_drained = self._on_drained
        self._refused: set[TopicPartition] = set()  # by the disk; tried again
        self._rules = Rules()
        self._resigning = Resigning(broker=broker, store=store, view=view)

    def start(self, incarnation: Incarnation) -> None:
        """Take up every partition the store gives this broker, and follow changes from now on."""
        self.incarnation = incarnation
        if self._on_change not in self.view.listeners:
            self.view.listeners.append(self._on_change)
        for key in sorted(self.view.states):
            self._take_up(key)
        for key in sorted(self.directory.logs.keys() - self.held.keys()):
            logger.info("%s-%d: deleted, or moved away, while this broker was down", *key)
            self.directory.delete(*key)
            self.has_dropped.set()

    def leader_of(self, key: TopicPartition) -> Replica | None:
        """The replica, if this broker leads it and may still speak for its session."""
        now_ms = self.clock_ms()  # first: waking from a stall may end a term
        found = self.held.get(key)
        if found is None or found.term is None or not self.store.is_alive(now_ms):
            return None
        return found

    # As the store changes.

    def _on_change(self, partitions: AbstractSet[TopicPartition], brokers: object) -> None:
        now_ms = self.clock_ms()
        for key in sorted(partitions):
            self._take_up(key)
        if brokers:
            self._take_up_what_waits()
            registered = self.view.incarnations
            for found in self.held.values():
                if found.term is not None and found.term.registered != registered:
                    found.advance(found.term.registration(registered, now_ms=now_ms))
                    self._arm(found)

    def settings_changed(self, topics: AbstractSet[str] | None) -> None:
        """Go by the settings of these topics, or (None) of all, as they are now."""
        now_ms = self.clock_ms()
        self._rules = Rules()  # what there is to say about the new ones is to be said again
        for found in list(self.held.values()):
            state = self.view.states.get(found.key)
            if state is None or (topics is not None and found.key[0] not in topics):
                continue
            settings = self._settings_of(found.key[0])
            self._take_limits(found, state, settings)
            if found.term is not None:
                self._go_by(found, self._policy(found, settings), settings, now_ms=now_ms)
                self._arm(found)

    def _go_by(self, found: Replica, policy: Policy, settings: Settings, *, now_ms: int) -> None:
        assert found.term is not None, "only what is led"
        wait_ms = settings.integer("replica.fetch.wait.max.ms")
        if (policy, wait_ms) != (found.term.policy, found.term.fetch_wait_max_ms):
            limit_ms = policy.lag_time_max_ms
            logger.info("%s-%d: in sync now by %s, %d ms", *found.key, policy.name, limit_ms)
            found.note_sessions()
            ruled = found.term.with_rule(policy, fetch_wait_max_ms=wait_ms, now_ms=now_ms)
            found.advance(ruled)
            self._record_rule(found, now_ms=now_ms)

    def _settings_of(self, topic: str) -> Settings:
        return self.settings.for_stored_topic(self.view.topic_configs.get(topic, {}))

    def _take_limits(self, found: Replica, state: PartitionState, settings: Settings) -> None:
        found.min_isr = effective_min_isr(
            min_insync_replicas=settings.integer("min.insync.replicas"),
            # Replicas that a move is still adding are not missed yet: a topic of one replica does
            # not become unwritable because it gets a second.
            replication_factor=len(origin(state)),
        )
        found.batch_bytes_max = settings.integer("message.max.bytes")

    def _take_up_what_waits(self) -> None:
        waiting = [f.key for f in self.held.values() if f.leader == self.broker and f.term is None]
        if waiting and self.may_lead():
            for key in sorted(waiting):
                self._take_up(key)

    def may_lead(self) -> bool:
        """A state that names this broker may mean a former incarnation of it.

        That one's epoch was its own: it may have written what this one lost. Once a controller
        has dealt with this incarnation, every state that names it means this one.
        """
        if self.store.session != str(self.incarnation):
            return False  # lost: what the store says of it, it says of the past
        seen = self.store.get(paths.broker_seen(self.broker))
        return seen is not None and int(seen.value) == self.incarnation

    def _take_up(self, key: TopicPartition) -> None:
        """Be to this partition what the store says; a disk that refuses is asked again later."""
        try:
            self._take_up_now(key)
        except StorageRefusal as refusal:
            logger.warning("%s-%d: %s", *key, refusal)
            if key not in self._refused:
                self._refused.add(key)
                delay_s = STORAGE_RETRY_MS / 1_000
                asyncio.get_running_loop().call_later(delay_s, self._take_up_again, key)

    def _take_up_again(self, key: TopicPartition) -> None:
        self._refused.discard(key)
        if self.store.session is not None:  # else all is taken up anew with the next one
            self._take_up(key)

    def _take_up_now(self, key: TopicPartition) -> None:
        state = self.view.states.get(key)
        topic = self.view.topics.get(key[0])
        if state is None or topic is None or self.broker not in state.replicas:
            self._drop(key)
            return
        found = self.held.get(key)
        if found is None or found.topic_id != topic.topic_id:
            self._drop(key)
            log = self.directory.create(*key, topic_id=topic.topic_id, now_ms=self.wall_ms())
            known = self._watermarks.get(key, 0)
            found = self.held[key] = Replica(key, topic.topic_id, log, high_watermark=known)
        self._set_role(found, state)

    def _set_role(self, found: Replica, state: PartitionState) -> None:
        now_ms = self.clock_ms()
        is_new_epoch = state.leader_epoch != found.epoch
        found.epoch, found.leader = state.leader_epoch, state.leader
        members_before, found.members = found.members, frozenset(state.isr)
        settings = self._settings_of(found.key[0])
        self._take_limits(found, state, settings)
        if state.leader != self.broker or not self.may_lead():
            if found.is_leader:
                found.abandon()
            self.on_following(found)
            return
        members = frozenset(state.isr)
        if members_before not in {None, members} and not _is_own_change(found.term, state):
            why = why_by_controller(found.term, members_before, state, now_ms=now_ms)
            _log_isr(found, members, why)
        if is_new_epoch or found.term is None:
            found.abandon()
            found.log.begin_epoch(state.leader_epoch)
            found.advance(self._begin(found, state, settings, now_ms=now_ms))
            self._record_term(found, members_before, now_ms=now_ms)
            self.on_following(found)
            self._arm(found)
            return
        self._record_isr(found, members, now_ms=now_ms)
        if {found.term.leader, *found.term.followers} != set(state.replicas):
            found.advance(found.term.assigned(state.replicas, members=members, now_ms=now_ms))
        else:
            found.advance(found.term.settle(members, now_ms=now_ms))
        self._arm(found)

    def _begin(
        self, found: Replica, state: PartitionState, settings: Settings, *, now_ms: int
    ) -> Leadership:
        found.asks_again_at_ms = NEVER_MS
        return Leadership.begin(
            policy=self._policy(found, settings),
            fetch_wait_max_ms=settings.integer("replica.fetch.wait.max.ms"),
            leader=self.broker,
            epoch=state.leader_epoch,
            replicas=state.replicas,
            members=frozenset(state.isr),
            end=Offset(found.log.end),
            high_watermark=Offset(found.high_watermark),
            registered=self.view.incarnations,
            now_ms=now_ms,
        )

    def _policy(self, found: Replica, settings: Settings) -> Policy:
        """The policy that its topic's settings ask for, and with it how long a read may take."""
        rule = self._rules.of_topic(found.key[0], settings, self.settings)
        found.process_time_max_ms = rule.process_time_max_ms
        return rule.policy

    def _record_term(
        self, found: Replica, members_before: frozenset[BrokerId] | None, *, now_ms: int
    ) -> None:
        term = found.term
        assert term is not None, "a leader's"
        record = None if self._recorder is None else self._recorder.lead(found.key, term.epoch)
        found.record, members = record, isr_rules.committed(term.isr)
        if record is None:
            return
        self._record_rule(found, now_ms=now_ms)
        version = self.view.versions[found.key]
        record.settled(
            None,
            members_before or members,
            members,
            replicas=self._replicas_of(found),
            version=version,
            now_ms=now_ms,
        )
        record.append(base=term.end, end=term.end, size_bytes=0, now_ms=now_ms)

    def _record_rule(self, found: Replica, *, now_ms: int) -> None:
        term = found.term
        if found.record is not None and term is not None:
            found.record.rule(
                term.policy,
                fetch_wait_max_ms=term.fetch_wait_max_ms,
                min_isr=found.min_isr,
                now_ms=now_ms,
            )

    def _record_isr(self, found: Replica, members: frozenset[BrokerId], *, now_ms: int) -> None:
        term = found.term
        if found.record is not None and term is not None:
            before, version = isr_rules.committed(term.isr), self.view.versions[found.key]
            found.record.settled(
                term,
                before,
                members,
                replicas=self._replicas_of(found),
                version=version,
                now_ms=now_ms,
            )

    def _replicas_of(self, found: Replica) -> tuple[BrokerId, ...]:
        state = self.view.states.get(found.key)
        return () if state is None else state.replicas

    def _drop(self, key: TopicPartition) -> None:
        found = self.held.pop(key, None)
        if found is not None:
            found.abandon()
            found.leader = None
            self.on_following(found)
            self.directory.delete(*key)
            self.has_dropped.set()

    # What followers bring.

    def appended(self, found: Replica, end: int, *, size_bytes: int = 0) -> None:
        """The leader's log ends at `end` now, unless writing took so long that it is known."""
        now_ms = self.clock_ms()
        self.look_if_due(found, now_ms=now_ms)
        if found.term is None or end <= found.term.end:
            return
        if found.record is not None:
            found.note_sessions()
            base = found.term.end
            found.record.append(base=base, end=end, size_bytes=size_bytes, now_ms=now_ms)
        found.advance(
            found.term.append(
                end=Offset(end),
                now_ms=now_ms,
                session_fetched_at_ms=found.session_fetched_at_ms,
            )
        )
        self._arm(found)

    def fetched(
        self,
        found: Replica,
        follower: BrokerId,
        fetch: Fetch,
        *,
        size_bytes: int = 0,
        is_held_back: bool = False,
    ) -> None:
        """A follower's fetch took effect, as all that its session said before."""
        assert found.term is not None, "only a leader is fetched from"
        self.look_if_due(found, now_ms=fetch.served_at_ms)
        term, record = found.term, found.record
        is_member = follower in isr_rules.committed(term.isr)
        session = found.sessions.get(follower)
        if session is not None:
            if record is not None:
                record.carried(term, follower, session)
            term = term.session_fetched(follower, at_ms=session.fetched_at_ms)
        effect = term.fetch(follower, fetch)
        self.took_effect(found, follower, effect, at_ms=fetch.served_at_ms)
        if record is not None:
            record.fetch(
                follower,
                offset=fetch.offset,
                leader_end=fetch.leader_end,
                high_watermark=found.high_watermark,
                log_start=fetch.log_start,
                size_bytes=size_bytes,
                at_ms=fetch.at_ms,
                is_held_back=is_held_back,
                # Each fetch of one outside may let it in: none is merged with another.
                merges_within_ms=term.fetch_wait_max_ms if is_member else NEVER_MS,
            )

    def took_effect(
        self, found: Replica, follower: BrokerId, term: Leadership, *, at_ms: int
    ) -> None:
        """After a fetch: it may be the one that lets its follower in, at its own millisecond."""
        found.advance(term)
        if found.term is None:
            return
        term = found.term
        is_member = follower in isr_rules.committed(term.isr)
        if not is_member and not term.obstacles(follower, now_ms=at_ms):
            why = why_joining(term, follower, now_ms=at_ms)
            proposal = term.propose_join(follower)
            if found.record is not None:
                found.record.decided(proposal, why, now_ms=at_ms)
            self._propose(found, proposal, why)
        self._arm(found)

    def took_note(self, found: Replica, term: Leadership) -> None:
        """Something that lets nobody in, but may move a deadline."""
        found.advance(term)
        self._arm(found)

    def await_commit(
        self, found: Replica, last_offset: int, *, timeout_ms: int, told: Told
    ) -> None:
        """Tell when every in-sync replica has this offset, or when the time is up."""
        if found.term is None:
            told(None)
            return
        deadline_ms = self.clock_ms() + max(0, timeout_ms)
        if found.await_commit(last_offset, deadline_ms=deadline_ms, told=told):
            self._expire_later(found, deadline_ms)

    def _expire_later(self, found: Replica, deadline_ms: int) -> None:
        """One timer per partition that has somebody waiting; it looks again by itself."""
        delay_s = max(0, deadline_ms - self.clock_ms()) / 1_000
        asyncio.get_running_loop().call_later(delay_s, self._expire, found)

    def _expire(self, found: Replica) -> None:
        now_ms = self.clock_ms()
        if self._awake.is_draining:
            self._expire_later(found, now_ms + AFTER_DRAINING_MS)
            return
        next_ms = found.expire(now_ms)
        if next_ms is not None:
            self._expire_later(found, next_ms)

    # What time brings.

    def _arm(self, found: Replica) -> None:
        """One timer per partition at most, set no earlier than needed: it looks again by itself."""
        now_ms = self.clock_ms()
        if found.term is None:
            return
        due_ms = found.term.next_deadline_ms(
            now_ms=now_ms, session_fetched_at_ms=found.session_fetched_at_ms
        )
        resigns_at_ms = self._resigning.due_ms(found)
        if resigns_at_ms is not None and (due_ms is None or resigns_at_ms < due_ms):
            due_ms = resigns_at_ms
        due_ms = None if due_ms is None else max(due_ms, now_ms)
        if due_ms is None or (found.timer_at_ms is not None and found.timer_at_ms <= due_ms):
            return
        found.timer_at_ms = due_ms
        delay_s = (due_ms - now_ms) / 1_000
        asyncio.get_running_loop().call_later(delay_s, self._look, found, due_ms)

    def look_if_due(self, found: Replica, *, now_ms: int) -> None:
        """A deadline that has come is before whatever happens now, though its timer is late."""
        if found.timer_at_ms is not None and found.timer_at_ms <= now_ms:
            self._look(found, found.timer_at_ms)

    def _look(self, found: Replica, armed_for_ms: int) -> None:
        if found.timer_at_ms != armed_for_ms:
            return  # another timer has taken over
        found.timer_at_ms = None
        now_ms = self.clock_ms()
        if found.term is None:
            return
        if self._awake.is_draining:
            self._put_off[found] = None
            return
        found.note_sessions()
        found.advance(found.term.with_watermark(now_ms=now_ms))
        leaving = found.term.leaving(
            now_ms=now_ms, session_fetched_at_ms=found.session_fetched_at_ms
        )
        if leaving:
            why = why_leaving(
                found.term,
                leaving,
                session_fetched_at_ms=found.session_fetched_at_ms,
                now_ms=now_ms,
            )
            proposal = found.term.propose_leave(frozenset(leaving))
            if found.record is not None:
                late_ms = now_ms - armed_for_ms
                found.record.decided(proposal, why, now_ms=now_ms, late_ms=late_ms)
            self._propose(found, proposal, why)
        self._resigning.look(found, incarnation=self.incarnation, now_ms=now_ms)
        self._arm(found)

    # What this broker missed.

    def _on_stall(self, stall: Stall) -> None:
        """Nothing ran here for a while. Whether this broker still leads comes first."""
        if self._recorder is not None:
            self._recorder.stalled(stall)
        self.store.catch_up()
        if not self.store.is_alive(stall.ended_at_ms):
            return  # whoever asks hears that it leads nothing
        shaken = self._shaken_by(stall)
        limits_ms = {f.term.policy.lag_time_max_ms for f in shaken if f.term is not None}
        self._resigning.stalled(stall, limits_ms)
        for found in shaken:
            assert found.term is not None, "only what is led"
            logger.info("%s-%d: this leader stalled for %d ms", *found.key, stall.length_ms)
            found.note_sessions()
            found.advance(
                found.term.stalled(stall, session_fetched_at_ms=found.session_fetched_at_ms)
            )
        self._stall = stall

    def _on_drained(self) -> None:
        """What waited in the sockets is read: who has not asked by now is looked at again."""
        now_ms = self.clock_ms()
        for found in self._shaken_by(self._stall):
            assert found.term is not None, "only what is led"
            found.advance(found.term.drained(now_ms=now_ms))
            self._resigning.look_at_stalls(found, incarnation=self.incarnation, now_ms=now_ms)
            self._put_off[found] = None
        put_off, self._put_off = self._put_off, {}
        for found in put_off:
            self._arm(found)

    def _shaken_by(self, stall: Stall) -> list[Replica]:
        """What is led here with a limit so tight that the stall could matter to it."""
        return [
            found
            for found in self.held.values()
            if found.term is not None
            and is_stall(stall.length_ms, lag_time_max_ms=found.term.policy.lag_time_max_ms)
        ]

    # Taking a decision to the store.

    def _propose(self, found: Replica, term: Leadership, why: str) -> None:
        found.advance(term)
        task = asyncio.get_running_loop().create_task(self._commit(found, term, why))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit(self, found: Replica, term: Leadership, why: str) -> None:
        """Until the store took it, or holds something else."""
        while found.term is not None and found.term.epoch == term.epoch:
            if isinstance(found.term.isr, Stable):  # the outcome was seen already
                if found.term.isr == isr_rules.settled(isr_rules.proposed(term.isr)):
                    _log_isr(found, isr_rules.proposed(term.isr), why)
                return
            step = self._step(found, term)
            if step is None:
                break
            try:
                await self.store.commit(*step)
            except Conflict:
                break
            except SessionEnded:
                return  # a new term will be begun, or this broker stays silent
            except Unavailable:
                await asyncio.sleep(COMMIT_RETRY_MS / 1_000)
            else:
                _log_isr(found, isr_rules.proposed(term.isr), why)
                return
        self._reread(found)

    def _step(self, found: Replica, term: Leadership) -> list[Operation] | None:
        state = self.view.states.get(found.key)
        if state is None or state.leader_epoch != term.epoch:
            return None
        if frozenset(state.isr) != isr_rules.committed(term.isr):
            return None
        wanted = isr_rules.proposed(term.isr)
        kept = tuple(broker for broker in state.isr if broker in wanted)
        joining = tuple(broker for broker in sorted(wanted) if broker not in kept)
        checks: list[Operation] = [
            Check(paths.broker_incarnation(self.incarnation)),
            Check(paths.topic_id(found.topic_id)),
        ]
        for broker in joining:
            incarnation = term.followers[broker].incarnation
            if self.view.incarnations.get(broker) != incarnation:
                return None
            checks.append(Check(paths.broker_incarnation(incarnation)))
        path = paths.partition_state(*found.key)
        value = encode_state(replace(state, isr=(*kept, *joining)))
        return [Write(path, value, self.view.versions[found.key]), *checks]

    def _reread(self, found: Replica) -> None:
        now_ms = self.clock_ms()
        state = self.view.states.get(found.key)
        if state is not None and found.term is not None and state.leader_epoch == found.epoch:
            self._record_isr(found, frozenset(state.isr), now_ms=now_ms)
            found.advance(found.term.settle(frozenset(state.isr), now_ms=now_ms))
            self._arm(found)

    # Old files.

    def apply_retention(self) -> None:
        """Delete what is too old or too much, never anything that is not committed."""
        now_ms = self.wall_ms()
        for found in list(self.held.values()):
            try:
                found.log.apply_retention(now_ms, up_to=found.high_watermark)
            except StorageRefusal as refusal:
                logger.warning("%s-%d: %s", *found.key, refusal)

    def checkpoint(self) -> None:
        """Write the watermarks if they changed. May run in another thread: too low does no harm."""
        watermarks = {key: found.high_watermark for key, found in list(self.held.items())}
        self.directory.write_watermarks(watermarks)

    # Ending.

    def abandon(self) -> None:
        """This broker's session is gone: it leads nothing until it has registered again."""
        for found in self.held.values():
            found.abandon()

    async def stop(self) -> None:
        for task in list(self._commits):
            task.cancel()
        await asyncio.gather(*self._commits, return_exceptions=True)
        await self._resigning.stop()
        self.abandon()


def _is_own_change(term: Leadership | None, state: PartitionState) -> bool:
    """Whether the ISR is what this leader asked for, or knew already."""
    if term is None or term.epoch != state.leader_epoch:
        return False
    return isr_rules.proposed(term.isr) == frozenset(state.isr)


def _log_isr(found: Replica, members: Iterable[BrokerId], why: str) -> None:
    isr = ",".join(str(broker) for broker in sorted(members))
    logger.info("%s-%d: ISR is now %s: %s", *found.key, isr, why)
