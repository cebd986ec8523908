"""Whoever creates `/controller` is the controller, for as long as its session lasts.

Its work is one rule applied to every partition: a broker's incarnation ended, so it leaves the
ISRs that can spare it and leads no longer. The step that applies it is conditional on the
controller's epoch and on every state it changes, and repeating it changes nothing; so each new
controller begins with it, and a deposed one achieves nothing.

Incarnations that were dealt with are remembered in the store: one that came back at once, before
anybody saw it go, is found by its new incarnation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from insync.metadata import paths
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.records import BrokerRecord, decode_config, decode_state, encode_state
from insync.metadata.store import Change, Check, Create, MetadataStore, Operation, Write
from insync.rules import election
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, Incarnation

SEEN = "/brokers/seen"  # the incarnation of each broker that was last dealt with
STEP_MAX = 5_000  # partitions changed in one step: the store's lock is held meanwhile
RETRY_MS = 50

logger = logging.getLogger(__name__)


class Controller:
    def __init__(
        self, *, broker: BrokerId, store: MetadataStore, unclean_default: bool = False
    ) -> None:
        self._broker = broker
        self._store = store
        self._unclean_default = unclean_default
        self._wake = asyncio.Event()
        self._epoch_version: int | None = None  # of the epoch node, while this is the controller
        self._unwatch = store.watch(self._on_changes)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self._unwatch()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.path == paths.CONTROLLER or change.path.startswith(paths.BROKER_IDS):
                self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                if await self._is_controller():
                    await self._deal_with_brokers()
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
        logger.info("broker %d is the controller, epoch %s", self._broker, value.decode())
        return True

    async def _deal_with_brokers(self) -> None:
        """Bring every partition in line with the brokers that live now."""
        live = self._live()
        seen = {
            BrokerId(int(name)): Incarnation(int(entry.value))
            for name in self._store.children(SEEN)
            if (entry := self._store.get(f"{SEEN}/{name}")) is not None
        }
        ended = [broker for broker in seen if live.get(broker) != seen[broker]]
        changed = self._after(frozenset(live), ended)
        marks = self._marks(live, seen)
        paths_changed = sorted(changed)
        while paths_changed or marks:
            now, paths_changed = paths_changed[:STEP_MAX], paths_changed[STEP_MAX:]
            step: list[Operation] = [self._still_controller()]
            step += [Write(path, encode_state(changed[path][0]), changed[path][1]) for path in now]
            if not paths_changed:
                step += marks  # only with the last partition is a broker dealt with
                marks = []
            await self._store.commit(*step)
        if changed:
            logger.info("controller: %d partitions follow brokers %s", len(changed), sorted(live))

    def _live(self) -> dict[BrokerId, Incarnation]:
        found = {}
        for name in self._store.children(paths.BROKER_IDS):
            entry = self._store.get(f"{paths.BROKER_IDS}/{name}")
            if entry is not None:
                record = BrokerRecord.decode(int(name), entry.value)
                found[record.broker] = record.incarnation
        return found

    def _still_controller(self) -> Operation:
        return Check(paths.CONTROLLER_EPOCH, self._epoch_version)

    def _marks(
        self, live: Mapping[BrokerId, Incarnation], seen: Mapping[BrokerId, Incarnation]
    ) -> list[Operation]:
        marks: list[Operation] = []
        for broker, incarnation in sorted(live.items()):
            path, value = f"{SEEN}/{broker}", str(incarnation).encode()
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
        for entry in self._store.under(paths.TOPICS):
            partition = paths.partition_of(entry.path)
            if partition is None:
                continue
            state = before = decode_state(entry.value)
            unclean = self._is_unclean(partition[0])
            for broker in ended:
                state = election.broker_gone(state, broker, live=live, unclean=unclean)
            state = election.elect(state, live=live, unclean=unclean)
            led_by_ended = before.leader in ended
            # A state that an ended incarnation led gets a new version even if nothing else
            # changes, so that no write of that incarnation can still succeed.
            if state != before or led_by_ended:
                changed[entry.path] = (state, entry.version)
        return changed

    def _is_unclean(self, topic: str) -> bool:
        entry = self._store.get(paths.topic_config(topic))
        config = {} if entry is None else decode_config(entry.value)
        setting = config.get("unclean.leader.election.enable")
        return self._unclean_default if setting is None else setting.lower() == "true"
