"""The scenarios of a what-if: every policy with every limit that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from insync.rules.refusals import BadSetting
from insync.rules.settings import LAG_MAX_MESSAGES_DEFAULT, POLICY_NAMES, InSyncSettings
from insync.telemetry.replay.scenario import Scenario

FETCH_WAIT_MAX_MS = InSyncSettings().replica_fetch_wait_max_ms
LIMIT_MAX = 2**53
SCENARIOS_MAX = 10_000  # each costs memory per partition


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfGrid:
    """Every policy with every limit, and the settings that all scenarios share."""

    policies: Sequence[str] = POLICY_NAMES
    lag_time_max_ms: Sequence[int] = (1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 45_000, 60_000)
    lag_max_messages: Sequence[int] = (LAG_MAX_MESSAGES_DEFAULT,)
    half_period_check: Sequence[bool] = (False,)
    min_insync_replicas: int | None = None  # of all topics; None: as recorded
    fetch_wait_max_ms: int = FETCH_WAIT_MAX_MS

    def __post_init__(self) -> None:
        if (self.min_insync_replicas or 1) < 1 or self.fetch_wait_max_ms < 0:
            raise BadSetting("min.insync.replicas is at least 1, the fetch wait at least 0 ms")
        count = len(self.scenarios())
        if not 0 < count <= SCENARIOS_MAX:
            raise BadSetting(f"{count} scenarios; a what-if has 1 to {SCENARIOS_MAX}")
        for scenario in self.scenarios():
            scenario.rule()  # refuses contradictory settings
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
        """Merged idle fetches hide a silence shorter than this."""
        return scenario.lag_time_max_ms < 2 * self.fetch_wait_max_ms
