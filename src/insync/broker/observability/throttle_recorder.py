"""Telemetry of the throttle: one row of the `throttle` table for each second while it is set."""

from __future__ import annotations

import asyncio
from typing import Final

from insync.broker.admin.describe_replicas import lag_bytes
from insync.broker.fetch.fetch_sessions import FetchSessions
from insync.broker.quotas.quotas import Quota, Quotas
from insync.broker.replication.follower_fetchers import FollowerFetchers
from insync.broker.replication.replicas import Replicas
from insync.rules import isr as isr_rules
from insync.telemetry.recorder import Recorder
from insync.wire.describe_replicas import NONE

SECOND_MS: Final = 1_000


class ThrottleRecord:
    def __init__(
        self,
        recorder: Recorder,
        *,
        quotas: Quotas,
        replicas: Replicas,
        sessions: FetchSessions,
        fetchers: FollowerFetchers,
    ) -> None:
        self._recorder = recorder
        self._quotas = quotas
        self._replicas = replicas
        self._sessions = sessions
        self._fetchers = fetchers
        self._recorded_bytes = dict.fromkeys(quotas.sides, (0, 0))  # passed and exempt
        self._bytes_in = 0

    async def run(self) -> None:
        while True:
            began_at_ms = self._replicas.loop.clock_ms()
            await asyncio.sleep(SECOND_MS / 1_000)
            self._record_second(began_at_ms)

    def _record_second(self, began_at_ms: int) -> None:
        bytes_in = self._replicas.counters.bytes_in
        for quota in self._quotas.sides:
            passed, exempt = self._recorded_bytes[quota]
            self._recorded_bytes[quota] = quota.bytes_passed, quota.bytes_exempt
            # Bytes that passed before the throttle was removed are still recorded.
            if not quota.is_set and quota.bytes_passed == passed:
                continue
            is_leader = quota is self._quotas.leader
            self._recorder.throttled(
                quota.side,
                limit=quota.rate,
                size_bytes=quota.bytes_passed - passed,
                exempt_bytes=quota.bytes_exempt - exempt,
                held_back=self._sessions.limited if is_leader else self._fetchers.held_back,
                lag_bytes=self._lag_bytes(quota) if is_leader else None,
                bytes_in=bytes_in - self._bytes_in,
                at_ms=began_at_ms,
            )
        self._bytes_in = bytes_in

    def _lag_bytes(self, quota: Quota) -> int:
        """Lag of all followers outside the ISR, of throttled partitions that this broker leads."""
        total_bytes = 0
        for key in quota.throttled_of(self._replicas.partitions):
            replica = self._replicas.partitions[key]
            if replica.term is not None:
                members = isr_rules.committed(replica.term.isr)
                for broker, follower in replica.term.followers.items():
                    if broker not in members:
                        lag = lag_bytes(replica, follower)
                        total_bytes += replica.log.size_bytes if lag == NONE else lag
        return total_bytes
