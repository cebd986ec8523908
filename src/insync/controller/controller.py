"""The broker that creates `/controller` is the controller, for as long as its session lasts.

When a broker's incarnation ends, the controller applies one rule to every partition: the broker
leaves each ISR that has another member, and leads no longer. The step is conditional on the
controller's epoch and on every state it changes, and repeating it changes nothing. So each new
controller begins with it, and steps of a deposed one fail. The same rule goes for a live broker
that reports a replica as failed or damaged (`metadata.offline_replicas`).

The store keeps the incarnation of each broker that a controller handled last. So a broker that
restarted before its session ended is detected by its new incarnation. A step that makes a broker
leader checks that its incarnation is still live: a later one may lack the tail of the log.

The controller completes moves; a throttle that came with them ends with them, and one that a tool
holds ends when it is not renewed (`moves.py`). It grants resignations of leaders
(`resignations.py`), and periodically elects preferred leaders (`preferred.py`). Neither elects a
broker in its cool-down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from insync.controller.expiry_timers import ExpiryTimers
from insync.controller.moves import Leases, MovingPartitions, find_completions
from insync.controller.preferred import Rebalance, preferred_elections
from insync.controller.resignations import decide_resignations
from insync.metadata import paths
from insync.metadata.cooldowns import cooldowns_by_state_path
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.handled_incarnations import electable_brokers, handled_incarnations
from insync.metadata.offline_replicas import (
    ALL_ONLINE,
    ElectableBrokers,
    offline_by_state_path,
    offline_in,
)
from insync.metadata.records import BrokerRecord, decode_config, decode_state, encode_state
from insync.metadata.store import (
    STATES_PER_STEP_MAX,
    Change,
    Check,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    Write,
)
from insync.metadata.topic_checks import check_topics
from insync.rules import election
from insync.rules.acknowledgement import effective_min_isr
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import replicas_before_move
from insync.rules.resignation import COOLDOWN_MS_DEFAULT
from insync.rules.values import NO_BROKERS, BrokerId, Incarnation
from insync.telemetry.schemas import REPLICAS_MOVED

RETRY_MS = 50
GIVEN_UP_MS = 1_000  # after an unexpected error; other brokers take the role within 50 ms
BROKER_CHECK_PATHS = (
    paths.CONTROLLER,
    paths.BROKER_IDS,
    paths.FAILED_REPLICAS,
    paths.DAMAGED_REPLICAS,
)
WAKING_PATHS = (paths.RESIGNATIONS, paths.COOLING)  # which concern no other partition
UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
NO_CONFIG: Mapping[str, str] = {}
LISTED_MAX = 20  # names in one log line
BROKERS_CHANGED, PREFERRED = "a broker came or went", "back to the preferred replica"
RESIGNED, NO_ELECTION = "its leader resigned", ""

logger = logging.getLogger(__name__)

# Called with partition, state before and after, and cause, once the store has the new leader.
OnElection = Callable[[tuple[str, int], PartitionState, PartitionState, str], None]
ChangedStates = Mapping[
    str, tuple[PartitionState, int]
]  # by path: the new state, and the version it builds on


class Controller:
    def __init__(
        self,
        *,
        broker: BrokerId,
        store: MetadataStore,
        unclean_default: bool = False,
        min_isr_default: int = 1,
        rebalance: Rebalance | None = None,
        cooldown_ms: int = COOLDOWN_MS_DEFAULT,
        on_election: OnElection = lambda *_: None,
    ) -> None:
        self._on_election = on_election
        self._broker = broker
        self._store = store
        self._unclean_default = unclean_default
        self._min_isr_default = min_isr_default
        self._decoded_config: tuple[Entry, Mapping[str, str]] | None = None  # the last one
        self._moving = MovingPartitions(store)
        self._wake = asyncio.Event()
        self._leases = Leases(store, wake=self._wake.set)
        self._is_broker_check_due = True  # which reads the state of every partition
        self._epoch_version: int | None = None  # of the epoch node, while this is the controller
        self._unwatch = store.watch(self._on_changes)
        self._rebalance = rebalance  # None: no elections of preferred leaders
        self._is_rebalance_due = False
        self._cooldowns = ExpiryTimers[str](cooldown_ms, wake=self._wake.set)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run())]
        if rebalance is not None:
            self._tasks.append(loop.create_task(self._request_rebalances(rebalance)))

    def apply_settings(
        self,
        *,
        unclean_default: bool,
        rebalance: Rebalance | None,
        min_isr_default: int = 1,
        cooldown_ms: int = COOLDOWN_MS_DEFAULT,
    ) -> None:
        """Apply settings changed at run time, and check at once what they now allow."""
        self._cooldowns.set_duration(cooldown_ms)
        if min_isr_default != self._min_isr_default:
            self._min_isr_default = min_isr_default
            self._moving.mark_all_due()
            self._wake.set()
        if unclean_default != self._unclean_default:
            self._unclean_default = unclean_default
            self._request_broker_check()
        if rebalance != self._rebalance:
            self._rebalance = rebalance
            run, *rebalance_tasks = self._tasks
            for task in rebalance_tasks:
                task.cancel()
            self._tasks = [run]
            if rebalance is not None:
                requesting = self._request_rebalances(rebalance)
                self._tasks.append(asyncio.get_running_loop().create_task(requesting))

    async def stop(self) -> None:
        self._unwatch()
        self._cooldowns.clear()
        self._leases.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_allowed = change.path.startswith(paths.TOPIC_CONFIGS) and _may_allow_unclean(change)
            if is_allowed or change.path.startswith(BROKER_CHECK_PATHS):
                self._request_broker_check()
            elif change.path.startswith(WAKING_PATHS):
                self._wake.set()
        if self._moving.on_changes(changes):
            self._wake.set()

    def _request_broker_check(self) -> None:
        self._is_broker_check_due = True
        self._wake.set()

    async def _run(self) -> None:
        logged = ""  # the last error: each is logged once until the store answers
        while True:
            self._wake.clear()
            try:
                if await self._is_controller():
                    await self._handle_broker_changes()
                    await self._end_cooldowns()
                    await self._grant_resignations()
                    await self._complete_moves()
                    await self._end_leases()
                    await self._elect_preferred_leaders()
                else:
                    self._is_rebalance_due = False
                    self._cooldowns.clear()
                    self._leases.clear()
                logged = ""
            except Conflict as conflict:
                logger.debug("controller: another change came first, trying again: %s", conflict)
                self._wake.set()
                await asyncio.sleep(0)
            except (SessionEnded, Unavailable) as error:
                if str(error) != logged:
                    logger.info("controller: %s; trying again every %d ms", error, RETRY_MS)
                logged = str(error)
                await asyncio.sleep(RETRY_MS / 1_000)
                self._wake.set()
            except Exception:
                logger.exception(
                    "controller: an unexpected error; another broker may take over, this one tries"
                    " again in %d ms",
                    GIVEN_UP_MS,
                )
                await self._give_up_role()
                await asyncio.sleep(GIVEN_UP_MS / 1_000)
                self._request_broker_check()
            await self._wake.wait()

    async def _give_up_role(self) -> None:
        """Let another broker be the controller: this one cannot do what it is there for."""
        self._is_rebalance_due = False
        entry = self._store.get(paths.CONTROLLER)
        if entry is not None and entry.session is not None and entry.session == self._store.session:
            with contextlib.suppress(Conflict, SessionEnded, Unavailable):
                await self._store.commit(Delete(paths.CONTROLLER, entry.version))

    async def _is_controller(self) -> bool:
        """True if this broker is the controller, or has just become it."""
        entry = self._store.get(paths.CONTROLLER)
        if entry is not None:
            is_mine = entry.session is not None and entry.session == self._store.session
            if is_mine and self._epoch_version is None:
                self._begin_as_controller()  # the step was made, and its answer was lost
            return is_mine
        self._epoch_version = None
        if self._store.get(paths.broker_id(self._broker)) is None:
            return False  # not registered yet
        epoch = self._store.get(paths.CONTROLLER_EPOCH)
        value = str(0 if epoch is None else int(epoch.value) + 1).encode()
        try:
            await self._store.commit(
                Create(paths.CONTROLLER, str(self._broker).encode(), ephemeral=True),
                Create(paths.CONTROLLER_EPOCH, value)
                if epoch is None
                else Write(epoch.path, value, epoch.version),
            )
        except Conflict:
            self._wake.set()
            return False
        self._begin_as_controller()
        return True

    def _begin_as_controller(self) -> None:
        """Begin as controller: the store has this broker's node, and the epoch of its step."""
        epoch = self._store.get(paths.CONTROLLER_EPOCH)
        assert epoch is not None, "written in the step that made this broker the controller"
        self._epoch_version = epoch.version
        self._moving.mark_all_due()
        self._is_broker_check_due = True
        logger.info(
            "controller: broker %d is the controller, epoch %s", self._broker, epoch.value.decode()
        )

    async def _handle_broker_changes(self) -> None:
        """Update every partition for the brokers that are live now, if brokers changed."""
        if not self._is_broker_check_due:
            return  # woken for a move
        self._is_broker_check_due = False
        try:
            live, handled = self._live_brokers(), handled_incarnations(self._store)
            ended = [broker for broker in handled if live.get(broker) != handled[broker]]
            changed = self._states_after(live, ended)
            await self._commit(
                changed,
                live,
                final_operations=self._mark_handled(live, handled),
                cause=BROKERS_CHANGED,
            )
        except BaseException:
            self._is_broker_check_due = True
            raise
        if changed:
            logger.info(
                "controller: live brokers are now %s; changed the leader or ISR of %d partitions",
                sorted(live),
                len(changed),
            )

    async def _request_rebalances(self, rebalance: Rebalance) -> None:
        while True:
            await asyncio.sleep(rebalance.interval_s)
            self._is_rebalance_due = True
            self._request_broker_check()

    async def _elect_preferred_leaders(self) -> None:
        """Elect preferred replicas as leaders, if a rebalance is due."""
        if self._rebalance is None or not self._is_rebalance_due:
            return
        live = self._live_brokers()
        states, versions = {}, {}
        all_offline = offline_by_state_path(self._store, live)
        for entry in self._store.under(paths.TOPICS):
            if paths.partition_of(entry.path) is not None:
                states[entry.path] = decode_state(entry.value)
                versions[entry.path] = entry.version
        elected = preferred_elections(
            states,
            live=self._electable(live),
            percentage_max=self._rebalance.percentage_max,
            cooling=cooldowns_by_state_path(self._store),
            offline={path: offline.brokers for path, offline in all_offline.items()},
        )
        changed = {path: (state, versions[path]) for path, state in elected.items()}
        await self._commit(changed, live, cause=PREFERRED)
        self._is_rebalance_due = False
        if changed:
            logger.info("controller: elected the preferred leader of %d partitions", len(changed))

    async def _grant_resignations(self) -> None:
        """Grant or refuse resignations. A cool-down starts in the step that grants."""
        live = self._live_brokers()
        decisions = decide_resignations(self._store, live=self._electable_in(live))
        await self._commit(
            decisions.changed,
            live,
            final_operations=decisions.refused,
            operations_by_state=decisions.operations_by_state,
            cause=RESIGNED,
        )
        for line in decisions.lines[:LISTED_MAX]:
            logger.info("%s", line)
        if len(decisions.lines) > LISTED_MAX:
            logger.info(
                "controller: decided %d more resignations",
                len(decisions.lines) - LISTED_MAX,
            )

    async def _end_cooldowns(self) -> None:
        """By this controller's clock since it first saw them: at least as long as configured."""
        expired = self._cooldowns.expired(entry.path for entry in self._store.under(paths.COOLING))
        if expired:
            await self._commit(
                {}, {}, final_operations=[Delete(path) for path in expired], cause=NO_ELECTION
            )
            self._cooldowns.remove(expired)

    async def _complete_moves(self) -> None:
        due = self._moving.remove_due()
        live = self._live_brokers()
        try:
            completions = find_completions(
                self._store, due, live=self._electable_in(live), min_isr_of=self._min_isr
            )
            await self._commit(
                completions.changed,
                live,
                operations_by_state=completions.operations_by_state,
                cause=REPLICAS_MOVED,
            )
        except BaseException:
            self._moving.put_back(due)
            raise
        if completions.changed:
            logger.info(
                "controller: completed the reassignment of %d partitions", len(completions.changed)
            )

    async def _end_leases(self) -> None:
        for lease, step in self._leases.find_ended(self._moving):
            await self._commit({}, {}, final_operations=step, cause=NO_ELECTION)
            logger.info(
                "controller: ended the throttle of brokers %s for replicas of topics %s; restored"
                " the settings before it",
                _listed(lease.brokers),
                _listed(lease.topics),
            )

    async def _commit(
        self,
        changed: ChangedStates,
        live: Mapping[BrokerId, Incarnation],
        final_operations: Sequence[Operation] = (),
        operations_by_state: Mapping[str, Sequence[Operation]] | None = None,
        *,
        cause: str,
    ) -> None:
        """Write these states, in several steps if they are many.

        They were computed from the store as it is now, so the topics are those of now.

        The operations of `operations_by_state` are in the step that writes their state, those of
        `final_operations` in the last step.
        """
        left = sorted(changed)
        topic_of = {path: _topic_of(path) for path in left}
        topics = check_topics(self._store, topic_of.values())
        while left or final_operations:
            now, left = left[:STATES_PER_STEP_MAX], left[STATES_PER_STEP_MAX:]
            states = {path: changed[path][0] for path in now}
            leaders = {state.leader for state in states.values() if state.leader is not None}
            step: list[Operation] = [self._check_still_controller()]
            step += [Check(paths.session(live[leader])) for leader in sorted(leaders)]
            names = sorted({topic_of[path] for path in now})
            step += [topics[name] for name in names if name in topics]
            step += [
                Write(path, encode_state(state), changed[path][1]) for path, state in states.items()
            ]
            step += [
                operation for path in now for operation in (operations_by_state or {}).get(path, ())
            ]
            if not left:
                step += final_operations  # a broker is handled once its last partition is
                final_operations = ()
            before = {path: self._store.get(path) for path in now}
            await self._store.commit(*step)
            self._report_elections(before, states, cause)

    def _report_elections(
        self, before: Mapping[str, Entry | None], after: Mapping[str, PartitionState], cause: str
    ) -> None:
        for path, state in after.items():
            entry, partition = before[path], paths.partition_of(path)
            if entry is not None and partition is not None:
                earlier = decode_state(entry.value)
                if earlier.leader_epoch != state.leader_epoch:
                    self._on_election(partition, earlier, state, cause)

    def _live_brokers(self) -> dict[BrokerId, Incarnation]:
        incarnations = {}
        for name in self._store.children(paths.BROKER_IDS):
            entry = self._store.get(f"{paths.BROKER_IDS}/{name}")
            if entry is not None:
                record = BrokerRecord.decode(int(name), entry.value)
                incarnations[record.broker] = record.incarnation
        return incarnations

    def _electable(self, live: Mapping[BrokerId, Incarnation]) -> frozenset[BrokerId]:
        return electable_brokers(live, handled_incarnations(self._store))

    def _electable_in(self, live: Mapping[BrokerId, Incarnation]) -> ElectableBrokers:
        """The brokers that can lead, by partition: those without its offline replicas."""
        electable = self._electable(live)
        return lambda key: electable - offline_in(self._store, key, live).brokers

    def _check_still_controller(self) -> Operation:
        return Check(paths.CONTROLLER_EPOCH, self._epoch_version)

    def _mark_handled(
        self, live: Mapping[BrokerId, Incarnation], handled: Mapping[BrokerId, Incarnation]
    ) -> list[Operation]:
        marks: list[Operation] = []
        for broker, incarnation in sorted(live.items()):
            path, value = paths.broker_seen(broker), str(incarnation).encode()
            entry = self._store.get(path)
            if entry is None:
                marks.append(Create(path, value))
            elif handled[broker] != incarnation:
                marks.append(Write(path, value, entry.version))
        return marks

    def _states_after(
        self, live: Mapping[BrokerId, Incarnation], ended: Sequence[BrokerId]
    ) -> dict[str, tuple[PartitionState, int]]:
        """Every state that changes because these incarnations ended, with its current version."""
        changed: dict[str, tuple[PartitionState, int]] = {}
        cooldowns = cooldowns_by_state_path(self._store)
        all_offline = offline_by_state_path(self._store, live)
        for entry in self._store.under(paths.TOPICS):
            partition = paths.partition_of(entry.path)
            if partition is None:
                continue
            before = decode_state(entry.value)
            offline = all_offline.get(entry.path, ALL_ONLINE)
            state = election.brokers_changed(
                before,
                ended=ended,
                live=frozenset(live),
                failed=offline.failed,
                damaged=offline.damaged,
                cooling=cooldowns.get(entry.path, NO_BROKERS),
                unclean=self._is_unclean(partition[0]),
                min_isr=effective_min_isr(
                    min_insync_replicas=self._min_isr(partition[0]),
                    replication_factor=len(replicas_before_move(before)),
                ),
            )
            led_by_ended = before.leader in ended
            # A state that an ended incarnation led gets a new version even if nothing else
            # changes, so that no write of that incarnation can still succeed.
            if state != before or led_by_ended:
                changed[entry.path] = (state, entry.version)
        return changed

    def _is_unclean(self, topic: str) -> bool:
        setting = self._topic_config(topic).get(UNCLEAN)
        return self._unclean_default if setting is None else setting.lower() == "true"

    def _min_isr(self, topic: str) -> int:
        setting = self._topic_config(topic).get(MIN_ISR)
        return self._min_isr_default if setting is None else int(setting)

    def _topic_config(self, topic: str) -> Mapping[str, str]:
        """Decoded once for all partitions of a topic: a throttled-replica list names each."""
        entry = self._store.get(paths.topic_config(topic))
        if entry is None:
            return NO_CONFIG
        if self._decoded_config is None or self._decoded_config[0] is not entry:
            self._decoded_config = entry, decode_config(entry.value)
        return self._decoded_config[1]


def _may_allow_unclean(change: Change) -> bool:
    return change.after is not None and UNCLEAN.encode() in change.after.value


def _topic_of(state_path: str) -> str:
    partition = paths.partition_of(state_path)
    assert partition is not None, f"{state_path} is no partition state"
    return partition[0]


def _listed(names: Sequence[object]) -> str:
    """Names for a log line; of many, the first ones and how many more there are."""
    shown = ",".join(str(name) for name in names[:LISTED_MAX]) or "(none)"
    more = len(names) - LISTED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
