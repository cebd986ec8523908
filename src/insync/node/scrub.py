"""Reads all logs again from time to time, and repairs damaged ones from their leaders.

A pass reads every segment once per `log.scrub.interval.ms`, in a thread, a part at a time, at a
bounded rate. A batch that is not what was appended marks the replica as damaged.

A damaged follower is repaired in steps. It stops fetching and reports to the store that it may not
join the ISR (`offline_reports.py`); the controller removes it. Then, when no acknowledgement counts
it and none can, it truncates its log to before the damage and fetches again. It may join once it
reaches the end that it had. If a leader reports damage, the controller elects another in-sync
replica, and the former leader is repaired as a follower. The only replica leads on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from insync.broker.cluster_view import TopicPartition
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.settings import Settings
from insync.rules.values import LeaderEpoch
from insync.storage.directory import LogDirectory
from insync.storage.errors import DiskError, StorageRefusal
from insync.storage.inventory import Damage
from insync.storage.log import Log
from insync.storage.scrub import BadBatch, Part, ScrubPosition
from insync.storage.truncation import PreparedTruncation

BYTES_PER_S_MAX: Final = 10 << 20
"""A tenth of what a slow disk reads: a scrub must not be felt."""

BYTES_PER_S_MIN: Final = 1 << 20
"""So that a pass over little ends soon."""

RETRY_S: Final = 60.0
"""After a read error, before the second one counts as damage: a cable may have been loose."""

SETTING_CHECK_S: Final = 60.0
REPAIR_INTERVAL_S: Final = 0.2

logger = logging.getLogger(__name__)


class Scrub:
    """Loops that run until they are cancelled."""

    def __init__(
        self,
        *,
        settings: Settings,
        replicas: Replicas,
        directory: LogDirectory,
        clock_ms: Callable[[], int],
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._directory = directory
        self._clock_ms = clock_ms
        self._in_thread = in_thread
        self._truncations: dict[
            TopicPartition, PreparedTruncation
        ] = {}  # of followers that wait to leave the ISR
        self._claimed: dict[TopicPartition, tuple[LeaderEpoch | None, int]] = {}
        """Of truncated followers: the end that their fetches of this leader epoch had claimed."""

    @property
    def _interval_ms(self) -> int:
        return self._settings.broker.log_scrub_interval_ms

    # Finding damage.

    async def read_logs(self) -> None:
        """Read every log once per interval. The interval may change at any time; 0 is off."""
        while True:
            began_ms = self._clock_ms()
            if self._interval_ms > 0:
                await self.read_all_once()
            while True:
                left_s = (began_ms + self._interval_ms - self._clock_ms()) / 1_000
                if self._interval_ms > 0 and left_s <= 0:
                    break
                await asyncio.sleep(min(SETTING_CHECK_S, left_s if left_s > 0 else SETTING_CHECK_S))

    async def read_all_once(self) -> None:
        logs = dict(self._directory.logs)
        total_bytes = sum(log.size_bytes for log in logs.values())
        wanted = 2 * total_bytes * 1_000 // max(1, self._interval_ms)
        bytes_per_s = min(BYTES_PER_S_MAX, max(BYTES_PER_S_MIN, wanted))
        for key, log in logs.items():
            for base in log.segment_bases:
                if self._directory.logs.get(key) is not log or key in self._directory.damaged:
                    break
                bad = await self._read_segment(log, base, bytes_per_s)
                if bad is not None and self._directory.logs.get(key) is log:
                    self._report(key, log, bad)

    async def _read_segment(self, log: Log, base: int, bytes_per_s: int) -> BadBatch | None:
        next_position: ScrubPosition | None = ScrubPosition(base=base, position=0, offset=base)
        has_failed = False
        while next_position is not None:
            try:
                part = await self._check_part(log, next_position)
            except DiskError as error:
                if has_failed:
                    return BadBatch(base=base, offset=next_position.offset, reason=str(error))
                logger.warning(
                    "%s: the scrub cannot read it: %s; second try in %d s; if that fails too, the"
                    " replica counts as damaged",
                    log.path,
                    error,
                    RETRY_S,
                )
                has_failed = True
                await asyncio.sleep(RETRY_S)
                continue
            self._replicas.counters.scrubbed_bytes += part.read_bytes
            if part.bad is not None:
                return part.bad
            next_position = part.following
            await asyncio.sleep(part.read_bytes / bytes_per_s)
        return None

    async def _check_part(self, log: Log, start: ScrubPosition) -> Part:
        results: list[Part] = []
        await self._in_thread(lambda: results.append(log.check_part(start)))
        return results[0]

    def _report(self, key: TopicPartition, log: Log, bad: BadBatch) -> None:
        replica = self._replicas.partitions.get(key)
        watermark = log.end if replica is None else replica.high_watermark
        is_leader = replica is not None and replica.is_leader
        logger.error(
            "%s-%d: damaged: %s; %s",
            *key,
            bad.reason,
            "this broker leads the partition: it is repaired once another in-sync replica leads"
            if is_leader
            else f"truncating to offset {bad.offset} and fetching the rest from the leader",
        )
        self._replicas.counters.damage_found += 1
        damage = Damage(reason=bad.reason, up_to=max(watermark, bad.offset + 1), keep_to=bad.offset)
        self._directory.mark(key, damage)
        self._replicas.offline.report_damage(key)

    # Repairing it.

    async def repair_followers(self) -> None:
        """Truncate damaged followers to before the damage, once they are out of the ISR."""
        if self._on_change not in self._replicas.view.listeners:
            self._replicas.view.listeners.append(self._on_change)
        while True:
            await asyncio.sleep(REPAIR_INTERVAL_S)
            for key in sorted(self._directory.damaged):
                try:
                    await self._repair(key)
                except StorageRefusal as refusal:
                    logger.warning("%s-%d: not repaired yet: %s", *key, refusal)

    async def _repair(self, key: TopicPartition) -> None:
        replica = self._follower(key)
        if replica is None:
            self._truncations.pop(key, None)
            return
        log, damage = replica.log, replica.log.damage
        if damage is None or damage.keep_to is None:
            self._replicas.loop.run(self._check_repaired, replica)
            return
        self._stop_fetching(replica)
        if self._replicas.offline.forbid_joining(key):
            self._truncations[key] = await self._prepare_truncation(log, damage.keep_to)
            self._replicas.loop.run(self._truncate, key)

    def _check_repaired(self, replica: Replica) -> None:
        key = replica.key
        epoch, end = self._claimed.get(key, (None, 0))
        if replica.epoch != epoch or replica.log.end >= end:
            self._claimed.pop(key, None)
            self._replicas.offline.report_damage(key)  # if the store does not have it yet
            self._replicas.offline.allow_joining(key)
        self._replicas.offline.check_repaired(key)

    def _follower(self, key: TopicPartition) -> Replica | None:
        """The replica, if it has another broker to fetch from."""
        replica, state = self._replicas.partitions.get(key), self._replicas.view.states.get(key)
        if replica is None or replica.log.has_failed or replica.is_leader or state is None:
            return None
        return None if state.leader in (None, self._replicas.broker) else replica

    def _stop_fetching(self, replica: Replica) -> None:
        replica.drop()
        self._replicas.on_following(replica)

    async def _prepare_truncation(self, log: Log, offset: int) -> PreparedTruncation:
        results: list[PreparedTruncation] = []

        def find() -> None:
            try:
                results.append(log.prepare_truncation(offset))
            except DiskError:  # the damage hides where the batch begins: the whole segment goes
                bases = [base for base in log.segment_bases if base <= offset]
                results.append(log.prepare_truncation(bases[-1] if bases else offset))

        await self._in_thread(find)
        return results[0]

    def _on_change(self, partitions: AbstractSet[TopicPartition], _brokers: object) -> None:
        """The state may say that the replica left the ISR; it must truncate before it fetches."""
        for key in sorted(partitions & self._truncations.keys()):
            self._replicas.loop.run(self._truncate, key)

    def _truncate(self, key: TopicPartition) -> None:
        """Truncate if the replica is out of the ISR; else see to it that it does not fetch."""
        replica, state = self._replicas.partitions.get(key), self._replicas.view.states.get(key)
        damage = None if replica is None else replica.log.damage
        has_leader = state is not None and state.leader not in (None, self._replicas.broker)
        if replica is None or state is None or damage is None or not has_leader:
            self._truncations.pop(key, None)
            if replica is not None:
                self._fetch_again(replica)
            return
        if self._replicas.broker in state.isr or not self._replicas.offline.forbid_joining(key):
            self._stop_fetching(replica)
            return
        truncation, end = self._truncations.pop(key), replica.log.end
        try:
            if replica.log.truncate(truncation):
                replica.log_truncated()
                self._claimed[key] = state.leader_epoch, end
                self._directory.mark(key, replace(damage, keep_to=None))
                logger.warning("%s-%d: truncated to offset %d", *key, replica.log.end)
        except StorageRefusal as refusal:
            logger.warning("%s-%d: not truncated: %s", *key, refusal)
        self._fetch_again(replica)

    def _fetch_again(self, replica: Replica) -> None:
        state = self._replicas.view.states.get(replica.key)
        if state is not None and not replica.is_leader:
            replica.apply_state(state)
            self._replicas.on_following(replica)
