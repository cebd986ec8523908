"""What is asked of a what-if: rules and limits, one scenario each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from insync.rules.policy import Policy
from insync.rules.refusals import BadSetting
from insync.rules.settings import POLICY_NAMES, InSyncSettings, in_sync_rule

FETCH_WAIT_MAX_MS = InSyncSettings().replica_fetch_wait_max_ms
LIMIT_MAX = 2**53
SCENARIOS_MAX = 10_000  # each costs memory per partition; nobody reads a longer table


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    policy: str
    lag_time_max_ms: int
    lag_max_messages: int | None = None  # of `messages` only
    half_period_check: bool = False  # looked at every T/2, as Apache Kafka does

    def rule(self) -> Policy:
        usual = InSyncSettings()
        messages = self.lag_max_messages
        settings = InSyncSettings(
            replica_in_sync_policy=self.policy,
            replica_lag_time_max_ms=self.lag_time_max_ms,
            replica_lag_max_messages=(
                usual.replica_lag_max_messages if messages is None else messages
            ),
            replica_fetch_wait_max_ms=0,  # a limit below it is flagged, not refused
        )
        return in_sync_rule(settings).policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Every policy with every limit."""

    policies: Sequence[str] = POLICY_NAMES
    lag_time_max_ms: Sequence[int] = (1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 45_000, 60_000)
    lag_max_messages: Sequence[int] = (InSyncSettings().replica_lag_max_messages,)
    half_period_check: Sequence[bool] = (False,)
    min_insync_replicas: int = 1
    fetch_wait_max_ms: int = FETCH_WAIT_MAX_MS

    def __post_init__(self) -> None:
        if self.min_insync_replicas < 1 or self.fetch_wait_max_ms < 0:
            raise BadSetting("a minimum ISR is at least 1, a fetch wait at least 0 ms")
        count = len(self.scenarios())
        if not 0 < count <= SCENARIOS_MAX:
            raise BadSetting(f"{count} scenarios asked for; ask for 1 to {SCENARIOS_MAX}")
        for scenario in self.scenarios():
            scenario.rule()  # refuses what has no meaning
            if max(scenario.lag_time_max_ms, scenario.lag_max_messages or 0) > LIMIT_MAX:
                raise BadSetting(f"a limit above {LIMIT_MAX} is never reached")

    def scenarios(self) -> list[Scenario]:
        return [
            Scenario(
                policy=policy,
                lag_time_max_ms=limit_ms,
                lag_max_messages=messages,
                half_period_check=is_half,
            )
            for policy, limit_ms, is_half in product(
                dict.fromkeys(self.policies),
                sorted(set(self.lag_time_max_ms)),
                sorted(set(self.half_period_check)),
            )
            for messages in (
                sorted(set(self.lag_max_messages)) if policy == "messages" else (None,)
            )
        ]

    def is_below_resolution(self, scenario: Scenario) -> bool:
        """Merged idle fetches tell of no silence shorter than this."""
        return scenario.lag_time_max_ms < 2 * self.fetch_wait_max_ms
