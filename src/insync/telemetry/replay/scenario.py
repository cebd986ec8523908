"""One scenario of a what-if: an in-sync policy with its limits."""

from __future__ import annotations

from dataclasses import dataclass

from insync.rules.policy import Policy
from insync.rules.settings import InSyncSettings, in_sync_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    policy: str
    lag_time_max_ms: int
    lag_max_messages: int | None = None  # of `messages` only
    half_period_check: bool = False  # checked every T/2, as in Apache Kafka

    def rule(self) -> Policy:
        settings = InSyncSettings(
            replica_in_sync_policy=self.policy,
            replica_lag_time_max_ms=self.lag_time_max_ms,
            replica_lag_max_messages=self.lag_max_messages,
            replica_fetch_wait_max_ms=0,  # a limit below it is flagged, not refused
        )
        return in_sync_rule(settings).policy
