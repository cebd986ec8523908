"""What a lag report is judged by: `min.insync.replicas` of topics, the brokers' session timeout.

Settings change seldom, so a value is kept for some time, and only what the report needs is read:
`min.insync.replicas` of topics that have a replica outside the ISR, the session timeout if a broker
does not respond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from insync.client.admin import Admin
from insync.client.replica_lag import Report
from insync.rules.acknowledgement import effective_min_isr
from insync.rules.refusals import Refusal
from insync.wire.configs import Resource

MIN_ISR: Final = "min.insync.replicas"
SESSION_TIMEOUT: Final = "broker.session.timeout.ms"
KEPT_MS: Final = 30_000
WITHIN_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A topic is missing if the brokers do not tell, or if all its replicas are in sync."""

    min_isr: Mapping[str, int] = field(default_factory=dict)
    session_timeout_ms: int | None = None

    def required_isr(self, topic: str, *, replication_factor: int) -> int | None:
        """The in-sync replicas that acks=all requires; None: not known."""
        configured = self.min_isr.get(topic)
        if configured is None:
            return None
        return effective_min_isr(
            min_insync_replicas=configured, replication_factor=replication_factor
        )


class ReplicaLimits:
    def __init__(self, admin: Admin, *, clock_ms: Callable[[], int]) -> None:
        self._admin = admin
        self._clock_ms = clock_ms
        self._min_isr: dict[str, int] = {}
        self._session_timeout_ms: int | None = None
        self._min_isr_read_at_ms: dict[str, int] = {}
        self._session_read_at_ms: int | None = None

    async def read(self, report: Report) -> Limits:
        """The limits for this report; those that a broker refuses to tell are missing."""
        try:
            async with asyncio.timeout(WITHIN_MS / 1_000):
                await self._read_min_isr(report)
                await self._read_session_timeout(report)
        except (TimeoutError, Refusal):
            pass  # the report is shown without
        return Limits(min_isr=dict(self._min_isr), session_timeout_ms=self._session_timeout_ms)

    async def _read_min_isr(self, report: Report) -> None:
        names = [
            topic.name
            for topic in report.topics
            if self._is_due(self._min_isr_read_at_ms.get(topic.name))
            and any(len(each.isr) < len(each.replicas) for each in topic.partitions)
        ]
        if not names:
            return
        configs = await self._admin.topic_configs(names, [MIN_ISR])
        for name in names:
            self._min_isr_read_at_ms[name] = self._clock_ms()
            config = (configs or {}).get(name, {}).get(MIN_ISR)
            if config is not None and config.value is not None:
                self._min_isr[name] = int(config.value)

    async def _read_session_timeout(self, report: Report) -> None:
        """Of a broker that responds: the one that does not cannot be asked."""
        responding = report.brokers.difference(report.silent)
        is_needed = report.is_exact and report.silent and responding
        if not is_needed or not self._is_due(self._session_read_at_ms):
            return
        self._session_read_at_ms = self._clock_ms()
        name = str(min(responding))
        for config in await self._admin.configs(Resource.BROKER, name, [SESSION_TIMEOUT]):
            if config.name == SESSION_TIMEOUT and config.value is not None:
                self._session_timeout_ms = int(config.value)

    def _is_due(self, read_at_ms: int | None) -> bool:
        return read_at_ms is None or self._clock_ms() - read_at_ms >= KEPT_MS
