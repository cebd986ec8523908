"""Whoever creates `/controller` is the controller, for as long as its session lasts.

Its work is one rule applied to every partition: a broker's incarnation ended, so it leaves the
ISRs that can spare it and leads no longer. The step that applies it is conditional on the
controller's epoch and on every state it changes, and repeating it changes nothing; so each new
controller begins with it, and a deposed one achieves nothing.

Incarnations that were dealt with are remembered in the store: one that came back at once, before
anybody saw it go, is found by its new incarnation. Whoever is made leader is checked to be the same
incarnation still: another may lack the tail of the log that it was trusted for.

Moves complete when they can; a throttle that came with them ends with them, and one that a tool
holds ends when it is not renewed (`moves.py`). Leaders that ask to resign are relieved
(`resignations.py`), and from time to time leadership goes back to preferred replicas
(`preferred.py`). Neither takes anybody who is cooling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from insync.controller.countdown import Countdown
from insync.controller.moves import Leases, Moving, completions
from insync.controller.preferred import Rebalance, leaderships_to_return
from insync.controller.resignations import hand_overs
from insync.metadata import paths
from insync.metadata.cooling import cooling_by_state
from insync.metadata.dealt_with import brokers_seen, dealt_with
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
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
from insync.rules import election
from insync.rules.election import NOBODY
from insync.rules.partition_state import PartitionState
from insync.rules.resignation import COOLDOWN_MS_DEFAULT
from insync.rules.values import BrokerId, Incarnation
from insync.telemetry.schemas import REPLICAS_MOVED

RETRY_MS = 50
CONCERNS = (paths.CONTROLLER, paths.BROKER_IDS, paths.RESIGNATIONS, paths.COOLING)
UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
BROKER_GONE, PREFERRED = "a broker came or went", "back to the preferred replica"
RESIGNED, NO_ELECTION = "its leader resigned", ""

logger = logging.getLogger(__name__)

# A partition's leader changed, for a cause: told once the store has it.
OnElection = Callable[[tuple[str, int], PartitionState, PartitionState, str], None]
Changed = Mapping[str, tuple[PartitionState, int]]  # a state to be, and the version it builds on


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
        self._moving = Moving(store)
        self._wake = asyncio.Event()
        self._leases = Leases(store, wake=self._wake.set)
        self._is_dealing_due = True  # which goes through every partition
        self._epoch_version: int | None = None  # of the epoch node, while this is the controller
        self._unwatch = store.watch(self._on_changes)
        self._rebalance = rebalance  # None: leadership stays where it is
        self._is_rebalance_due = False
        self._cool_down = Countdown[str](cooldown_ms, wake=self._wake.set)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run())]
        if rebalance is not None:
            self._tasks.append(loop.create_task(self._remember_to_rebalance(rebalance)))

    def change(
        self,
        *,
        unclean_default: bool,
        rebalance: Rebalance | None,
        min_isr_default: int = 1,
        cooldown_ms: int = COOLDOWN_MS_DEFAULT,
    ) -> None:
        """Settings were changed at run time: what they allow now is looked for now."""
        self._cool_down.last(cooldown_ms)
        if min_isr_default != self._min_isr_default:
            self._min_isr_default = min_isr_default
            self._moving.look_at_all()
            self._wake.set()
        if unclean_default != self._unclean_default:
            self._unclean_default = unclean_default
            self._wake_to_deal()
        if rebalance != self._rebalance:
            self._rebalance = rebalance
            run, *reminders = self._tasks
            for task in reminders:
                task.cancel()
            self._tasks = [run]
            if rebalance is not None:
                remembering = self._remember_to_rebalance(rebalance)
                self._tasks.append(asyncio.get_running_loop().create_task(remembering))

    async def stop(self) -> None:
        self._unwatch()
        self._cool_down.forget()
        self._leases.forget()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_allowed = change.path.startswith(paths.TOPIC_CONFIGS) and _may_allow_unclean(change)
            if is_allowed or change.path.startswith(CONCERNS):
                self._wake_to_deal()
        if self._moving.on_changes(changes):
            self._wake.set()

    def _wake_to_deal(self) -> None:
        self._is_dealing_due = True
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                if await self._is_controller():
                    await self._deal_with_brokers()
                    await self._end_cool_downs()
                    await self._relieve_leaders()
                    await self._complete_moves()
                    await self._end_leases()
                    await self._return_leaderships()
                else:
                    self._is_rebalance_due = False
                    self._cool_down.forget()
                    self._leases.forget()
            except Conflict as conflict:
                logger.debug("a step came too late: %s", conflict)
                self._wake.set()
                await asyncio.sleep(0)
            except (SessionEnded, Unavailable) as error:
                logger.info("controller: %s", error)
                await asyncio.sleep(RETRY_MS / 1_000)
                self._wake.set()
            await self._wake.wait()

    async def _is_controller(self) -> bool:
        """True if this broker is the controller, or has just become it."""
        entry = self._store.get(paths.CONTROLLER)
        if entry is not None:
            is_mine = entry.session is not None and entry.session == self._store.session
            return is_mine and self._epoch_version is not None
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
        self._epoch_version = 0 if epoch is None else epoch.version + 1
        self._moving.look_at_all()
        self._is_dealing_due = True
        logger.info("broker %d is the controller, epoch %s", self._broker, value.decode())
        return True

    async def _deal_with_brokers(self) -> None:
        """Bring every partition in line with the brokers that live now, if that is due."""
        if not self._is_dealing_due:
            return  # a move woke us
        self._is_dealing_due = False
        try:
            live, seen = self._live(), brokers_seen(self._store)
            ended = [broker for broker in seen if live.get(broker) != seen[broker]]
            changed = self._after(frozenset(live), ended)
            await self._commit(changed, live, marks=self._marks(live, seen), cause=BROKER_GONE)
        except BaseException:
            self._is_dealing_due = True
            raise
        if changed:
            logger.info("controller: %d partitions follow brokers %s", len(changed), sorted(live))

    async def _remember_to_rebalance(self, rebalance: Rebalance) -> None:
        while True:
            await asyncio.sleep(rebalance.interval_s)
            self._is_rebalance_due = True
            self._wake_to_deal()

    async def _return_leaderships(self) -> None:
        """Give preferred replicas their leadership back, if that is due."""
        if self._rebalance is None or not self._is_rebalance_due:
            return
        live = self._live()
        states, versions = {}, {}
        for entry in self._store.under(paths.TOPICS):
            if paths.partition_of(entry.path) is not None:
                states[entry.path] = decode_state(entry.value)
                versions[entry.path] = entry.version
        returned = leaderships_to_return(
            states,
            live=self._dealt_with(live),
            percentage_max=self._rebalance.percentage_max,
            cooling=cooling_by_state(self._store),
        )
        changed = {path: (state, versions[path]) for path, state in returned.items()}
        await self._commit(changed, live, cause=PREFERRED)
        self._is_rebalance_due = False
        if changed:
            logger.info("controller: %d partitions are led by their first again", len(changed))

    async def _relieve_leaders(self) -> None:
        """Let those who ask hand over, each with its cooling in the same step."""
        live = self._live()
        found = hand_overs(self._store, live=self._dealt_with(live))
        await self._commit(
            found.changed, live, marks=found.refused, beside=found.beside, cause=RESIGNED
        )
        for line in found.lines:
            logger.info("controller: %s", line)

    async def _end_cool_downs(self) -> None:
        """By this controller's own clock since it first saw them: at least as long as asked."""
        over = self._cool_down.over(entry.path for entry in self._store.under(paths.COOLING))
        if over:
            await self._commit({}, {}, marks=[Delete(path) for path in over], cause=NO_ELECTION)
            self._cool_down.ended(over)

    async def _complete_moves(self) -> None:
        due = self._moving.take_due()
        live = self._live()
        try:
            found = completions(
                self._store, due, live=self._dealt_with(live), min_isr_of=self._min_isr
            )
            await self._commit(found.changed, live, beside=found.beside, cause=REPLICAS_MOVED)
        except BaseException:
            self._moving.put_back(due)
            raise
        if found.changed:
            logger.info("controller: %d partitions have moved", len(found.changed))

    async def _end_leases(self) -> None:
        for path, step in self._leases.ended(self._moving):
            await self._commit({}, {}, marks=step, cause=NO_ELECTION)
            logger.info("controller: the throttle of %s ended", path)

    async def _commit(
        self,
        changed: Changed,
        live: Mapping[BrokerId, Incarnation],
        marks: Sequence[Operation] = (),
        beside: Mapping[str, Sequence[Operation]] | None = None,
        *,
        cause: str,
    ) -> None:
        """Write these states in as many steps as it takes, and the marks with the last one.

        What goes `beside` a state is in the same step as that state.
        """
        left = sorted(changed)
        while left or marks:
            now, left = left[:STATES_PER_STEP_MAX], left[STATES_PER_STEP_MAX:]
            states = {path: changed[path][0] for path in now}
            leaders = {state.leader for state in states.values() if state.leader is not None}
            step: list[Operation] = [self._still_controller()]
            step += [Check(paths.session(live[leader])) for leader in sorted(leaders)]
            step += [
                Write(path, encode_state(state), changed[path][1]) for path, state in states.items()
            ]
            step += [operation for path in now for operation in (beside or {}).get(path, ())]
            if not left:
                step += marks  # only with the last partition is a broker dealt with
                marks = ()
            before = {path: self._store.get(path) for path in now}
            await self._store.commit(*step)
            self._tell_of_elections(before, states, cause)

    def _tell_of_elections(
        self, before: Mapping[str, Entry | None], after: Mapping[str, PartitionState], cause: str
    ) -> None:
        for path, state in after.items():
            entry, partition = before[path], paths.partition_of(path)
            if entry is not None and partition is not None:
                earlier = decode_state(entry.value)
                if earlier.leader_epoch != state.leader_epoch:
                    self._on_election(partition, earlier, state, cause)

    def _live(self) -> dict[BrokerId, Incarnation]:
        found = {}
        for name in self._store.children(paths.BROKER_IDS):
            entry = self._store.get(f"{paths.BROKER_IDS}/{name}")
            if entry is not None:
                record = BrokerRecord.decode(int(name), entry.value)
                found[record.broker] = record.incarnation
        return found

    def _dealt_with(self, live: Mapping[BrokerId, Incarnation]) -> frozenset[BrokerId]:
        return dealt_with(live, brokers_seen(self._store))

    def _still_controller(self) -> Operation:
        return Check(paths.CONTROLLER_EPOCH, self._epoch_version)

    def _marks(
        self, live: Mapping[BrokerId, Incarnation], seen: Mapping[BrokerId, Incarnation]
    ) -> list[Operation]:
        marks: list[Operation] = []
        for broker, incarnation in sorted(live.items()):
            path, value = paths.broker_seen(broker), str(incarnation).encode()
            entry = self._store.get(path)
            if entry is None:
                marks.append(Create(path, value))
            elif seen[broker] != incarnation:
                marks.append(Write(path, value, entry.version))
        return marks

    def _after(
        self, live: frozenset[BrokerId], ended: Sequence[BrokerId]
    ) -> dict[str, tuple[PartitionState, int]]:
        """Every state that is different once these incarnations have ended, with its version."""
        changed: dict[str, tuple[PartitionState, int]] = {}
        all_cooling = cooling_by_state(self._store)
        for entry in self._store.under(paths.TOPICS):
            partition = paths.partition_of(entry.path)
            if partition is None:
                continue
            state = before = decode_state(entry.value)
            unclean = self._is_unclean(partition[0])
            cooling = all_cooling.get(entry.path, NOBODY)
            for broker in ended:
                state = election.broker_gone(
                    state, broker, live=live, cooling=cooling, unclean=unclean
                )
            state = election.elect(state, live=live, cooling=cooling, unclean=unclean)
            led_by_ended = before.leader in ended
            # A state that an ended incarnation led gets a new version even if nothing else
            # changes, so that no write of that incarnation can still succeed.
            if state != before or led_by_ended:
                changed[entry.path] = (state, entry.version)
        return changed

    def _is_unclean(self, topic: str) -> bool:
        setting = self._topic_setting(topic, UNCLEAN)
        return self._unclean_default if setting is None else setting.lower() == "true"

    def _min_isr(self, topic: str) -> int:
        setting = self._topic_setting(topic, MIN_ISR)
        return self._min_isr_default if setting is None else int(setting)

    def _topic_setting(self, topic: str, name: str) -> str | None:
        entry = self._store.get(paths.topic_config(topic))
        return None if entry is None else decode_config(entry.value).get(name)


def _may_allow_unclean(change: Change) -> bool:
    return change.after is not None and UNCLEAN.encode() in change.after.value
