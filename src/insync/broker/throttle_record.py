"""What the throttle did, second by second, while there is one: the `throttle` table."""

from __future__ import annotations

import asyncio
from typing import Final

from insync.broker.describe_replicas import lag_bytes
from insync.broker.fetch_sessions import FetchSessions
from insync.broker.follower_fetch import FollowerFetchers
from insync.broker.quotas import Quota, Quotas
from insync.broker.replicas import Replicas
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
        self._counted = dict.fromkeys(quotas.sides, (0, 0))
        self._bytes_in = 0

    async def run(self) -> None:
        while True:
            began_at_ms = self._replicas.clock_ms()
            await asyncio.sleep(SECOND_MS / 1_000)
            self._second_passed(began_at_ms)

    def _second_passed(self, began_at_ms: int) -> None:
        bytes_in = self._replicas.counts.bytes_in
        for quota in self._quotas.sides:
            passed, exempt = self._counted[quota]
            self._counted[quota] = quota.bytes_passed, quota.bytes_exempt
            # What passed before the throttle ended is told, though there is none any more.
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
        """What followers of throttled partitions led here lack, where they are not in sync."""
        lacking = 0
        for key in quota.partitions_of(self._replicas.held):
            found = self._replicas.held[key]
            if found.term is not None:
                members = isr_rules.committed(found.term.isr)
                for broker, follower in found.term.followers.items():
                    if broker not in members:
                        behind = lag_bytes(found, follower)
                        lacking += found.log.size_bytes if behind == NONE else behind
        return lacking
