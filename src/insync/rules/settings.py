"""From the settings an operator writes to the rule a leader applies."""

from __future__ import annotations

from dataclasses import dataclass

from insync.rules.policy import CaughtUp, LagBegin, Messages, Policy, TrueLag
from insync.rules.refusals import BadSetting

POLICY_NAMES = ("messages", "lag-begin", "caught-up", "true-lag", "pending-reads")

PROCESS_TIME_MAX_MS_DEFAULT = 500
LAG_MAX_MESSAGES_DEFAULT = 4_000

PROCESS_TIME_IGNORED = (
    "follower.fetch.process.time.max.ms is ignored: it applies only with "
    "follower.fetch.pending.reads.insync.enable=true"
)

INCLUDED_STALLS_IGNORED = (
    "follower.fetch.process.time.include.stalls is ignored: it applies only with "
    "follower.fetch.pending.reads.insync.enable=true"
)

MESSAGES_IGNORED = (
    "replica.lag.max.messages is ignored: it applies only with replica.in.sync.policy=messages"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncSettings:
    """The settings by their Kafka names, dots as underscores; None is "not set"."""

    replica_in_sync_policy: str = "caught-up"
    replica_lag_time_max_ms: int = 30_000
    replica_lag_max_messages: int | None = None
    replica_fetch_wait_max_ms: int = 500
    follower_fetch_pending_reads_insync_enable: bool | None = None
    follower_fetch_process_time_max_ms: int | None = None
    follower_fetch_process_time_include_stalls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncRule:
    """A policy with KIP-501's process time beside it; None: a slow leader does not resign."""

    policy: Policy
    process_time_max_ms: int | None
    process_time_includes_stalls: bool = False
    warnings: tuple[str, ...] = ()


def in_sync_rule(settings: InSyncSettings) -> InSyncRule:
    """The rule these settings ask for; refuses what has no meaning, and says what to change."""
    name = settings.replica_in_sync_policy
    if name not in POLICY_NAMES:
        known = ", ".join(POLICY_NAMES)
        raise BadSetting(f"replica.in.sync.policy is {name!r}; use one of {known}")
    _check_ranges(settings)
    flag = settings.follower_fetch_pending_reads_insync_enable
    if name == "pending-reads" and flag is False:
        raise BadSetting(
            "replica.in.sync.policy=pending-reads contradicts "
            "follower.fetch.pending.reads.insync.enable=false; "
            "use caught-up, or leave the flag out"
        )
    holds = name == "pending-reads" or flag is True
    if holds and name in {"messages", "lag-begin"}:
        raise BadSetting(
            f"follower.fetch.pending.reads.insync.enable=true has no meaning with "
            f"replica.in.sync.policy={name}; use caught-up or true-lag"
        )
    process_time_max_ms = settings.follower_fetch_process_time_max_ms
    warnings: list[str] = []
    if settings.replica_lag_max_messages is not None and name != "messages":
        warnings.append(MESSAGES_IGNORED)
    includes_stalls = settings.follower_fetch_process_time_include_stalls
    if not holds:
        if process_time_max_ms is not None:
            warnings.append(PROCESS_TIME_IGNORED)
        if includes_stalls:
            warnings.append(INCLUDED_STALLS_IGNORED)
        process_time_max_ms = None
    elif process_time_max_ms is None:
        process_time_max_ms = PROCESS_TIME_MAX_MS_DEFAULT
    return InSyncRule(
        policy=_policy(settings, holds=holds),
        process_time_max_ms=process_time_max_ms,
        process_time_includes_stalls=holds and includes_stalls,
        warnings=tuple(warnings),
    )


def _policy(settings: InSyncSettings, *, holds: bool) -> Policy:
    lag_time_max_ms = settings.replica_lag_time_max_ms
    match settings.replica_in_sync_policy:
        case "messages":
            messages = settings.replica_lag_max_messages
            return Messages(
                lag_time_max_ms=lag_time_max_ms,
                lag_max_messages=LAG_MAX_MESSAGES_DEFAULT if messages is None else messages,
            )
        case "lag-begin":
            return LagBegin(lag_time_max_ms=lag_time_max_ms)
        case "true-lag":
            return TrueLag(lag_time_max_ms=lag_time_max_ms, pending_reads=holds)
        case "caught-up" | "pending-reads":
            return CaughtUp(lag_time_max_ms=lag_time_max_ms, pending_reads=holds)
        case name:
            raise AssertionError(f"{name} is in POLICY_NAMES and has no policy")


def _check_ranges(settings: InSyncSettings) -> None:
    lag_time_max_ms = settings.replica_lag_time_max_ms
    process_time_max_ms = settings.follower_fetch_process_time_max_ms
    if lag_time_max_ms < 1:
        raise BadSetting(f"replica.lag.time.max.ms is {lag_time_max_ms}; it must be at least 1")
    messages = settings.replica_lag_max_messages
    if messages is not None and messages < 0:
        raise BadSetting(f"replica.lag.max.messages is {messages}; it must be at least 0")
    if not 0 <= settings.replica_fetch_wait_max_ms < lag_time_max_ms:
        raise BadSetting(
            f"replica.fetch.wait.max.ms is {settings.replica_fetch_wait_max_ms}; it must be at "
            f"least 0 and below replica.lag.time.max.ms ({lag_time_max_ms}), or idle followers "
            "would leave the ISR between two fetches"
        )
    if process_time_max_ms is not None and process_time_max_ms < 1:
        raise BadSetting(
            f"follower.fetch.process.time.max.ms is {process_time_max_ms}; it must be at least 1"
        )
