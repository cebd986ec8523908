"""Settings to rule: the design's policies and defaults, KIP-501's two settings and their values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from insync.rules.policy import CaughtUp, LagBegin, Messages, Policy, TrueLag
from insync.rules.refusals import BadSetting
from insync.rules.settings import (
    INCLUDED_STALLS_IGNORED,
    MESSAGES_IGNORED,
    POLICY_NAMES,
    PROCESS_TIME_IGNORED,
    InSyncSettings,
    in_sync_rule,
)

DEFAULTS = InSyncSettings()


def named(
    policy: str, *, flag: bool | None = None, process_ms: int | None = None
) -> InSyncSettings:
    return replace(
        DEFAULTS,
        replica_in_sync_policy=policy,
        follower_fetch_pending_reads_insync_enable=flag,
        follower_fetch_process_time_max_ms=process_ms,
    )


def test_design_defaults() -> None:
    assert DEFAULTS.replica_in_sync_policy == "caught-up"
    assert DEFAULTS.replica_lag_time_max_ms == 30_000
    assert DEFAULTS.replica_fetch_wait_max_ms == 500
    messages = in_sync_rule(InSyncSettings(replica_in_sync_policy="messages")).policy
    assert messages == Messages(lag_time_max_ms=30_000, lag_max_messages=4_000)
    rule = in_sync_rule(DEFAULTS)
    assert rule.policy == CaughtUp(lag_time_max_ms=30_000, pending_reads=False)
    assert rule.process_time_max_ms is None
    assert rule.warnings == ()


T = 30_000


@pytest.mark.parametrize(
    ("name", "flag", "expected", "called"),
    [
        ("messages", None, Messages(lag_time_max_ms=T, lag_max_messages=4_000), "messages"),
        ("messages", False, Messages(lag_time_max_ms=T, lag_max_messages=4_000), "messages"),
        ("lag-begin", None, LagBegin(lag_time_max_ms=T), "lag-begin"),
        ("lag-begin", False, LagBegin(lag_time_max_ms=T), "lag-begin"),
        ("caught-up", None, CaughtUp(lag_time_max_ms=T), "caught-up"),
        ("caught-up", False, CaughtUp(lag_time_max_ms=T), "caught-up"),
        ("caught-up", True, CaughtUp(lag_time_max_ms=T, pending_reads=True), "pending-reads"),
        ("true-lag", None, TrueLag(lag_time_max_ms=T), "true-lag"),
        ("true-lag", False, TrueLag(lag_time_max_ms=T), "true-lag"),
        (
            "true-lag",
            True,
            TrueLag(lag_time_max_ms=T, pending_reads=True),
            "true-lag+pending-reads",
        ),
        ("pending-reads", None, CaughtUp(lag_time_max_ms=T, pending_reads=True), "pending-reads"),
        ("pending-reads", True, CaughtUp(lag_time_max_ms=T, pending_reads=True), "pending-reads"),
    ],
)
def test_design_each_name_with_each_flag_it_allows_gives_its_policy(
    name: str, expected: Policy, called: str, *, flag: bool | None
) -> None:
    rule = in_sync_rule(named(name, flag=flag))
    assert rule.policy == expected
    assert rule.policy.name == called
    assert rule.warnings == ()
    holds = flag is True or name == "pending-reads"
    assert rule.policy.pending_reads is holds
    assert rule.process_time_max_ms == (500 if holds else None), "KIP-501's default"


def test_the_configured_limits_reach_the_policy() -> None:
    settings = replace(DEFAULTS, replica_lag_time_max_ms=10_000, replica_lag_max_messages=7)
    for name in POLICY_NAMES:
        policy = in_sync_rule(replace(settings, replica_in_sync_policy=name)).policy
        assert policy.lag_time_max_ms == 10_000
        assert not isinstance(policy, Messages) or policy.lag_max_messages == 7


def test_a_policy_name_without_a_policy_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("insync.rules.settings.POLICY_NAMES", (*POLICY_NAMES, "new"))
    with pytest.raises(AssertionError, match="new is in POLICY_NAMES and has no policy"):
        in_sync_rule(named("new"))


def test_kip_501_process_time_applies_with_the_flag() -> None:
    rule = in_sync_rule(named("true-lag", flag=True, process_ms=1))
    assert (rule.process_time_max_ms, rule.warnings) == (1, ())


def test_stalls_are_part_of_the_process_time_only_if_set_and_with_the_flag() -> None:
    assert not in_sync_rule(named("pending-reads")).process_time_includes_stalls
    included = replace(named("pending-reads"), follower_fetch_process_time_include_stalls=True)
    assert in_sync_rule(included).process_time_includes_stalls
    assert in_sync_rule(included).warnings == ()
    without_flag = replace(included, replica_in_sync_policy="caught-up")
    assert not in_sync_rule(without_flag).process_time_includes_stalls
    assert in_sync_rule(without_flag).warnings == (INCLUDED_STALLS_IGNORED,)


@pytest.mark.parametrize("flag", [None, False])
@pytest.mark.parametrize("name", ["messages", "lag-begin", "caught-up", "true-lag"])
def test_design_process_time_without_the_flag_is_ignored_with_a_warning(
    name: str, *, flag: bool | None
) -> None:
    rule = in_sync_rule(named(name, flag=flag, process_ms=700))
    assert rule.process_time_max_ms is None
    assert rule.warnings == (PROCESS_TIME_IGNORED,)
    assert "follower.fetch.process.time.max.ms" in PROCESS_TIME_IGNORED


@pytest.mark.parametrize("name", ["lag-begin", "caught-up", "true-lag", "pending-reads"])
def test_a_limit_of_messages_under_another_policy_is_ignored_with_a_warning(name: str) -> None:
    settings = InSyncSettings(replica_in_sync_policy=name, replica_lag_max_messages=100)
    assert in_sync_rule(settings).warnings == (MESSAGES_IGNORED,)
    assert in_sync_rule(InSyncSettings(replica_in_sync_policy=name)).warnings == ()
    messages = InSyncSettings(replica_in_sync_policy="messages", replica_lag_max_messages=100)
    assert in_sync_rule(messages).warnings == ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        pytest.param(named("caughtup"), "'caughtup'; use one of messages", id="unknown policy"),
        pytest.param(named(""), "''; use one of", id="no policy"),
        pytest.param(named("messages", flag=True), "policy=messages", id="flag with messages"),
        pytest.param(named("lag-begin", flag=True), "policy=lag-begin", id="flag with lag-begin"),
        pytest.param(
            named("pending-reads", flag=False), "contradicts", id="pending-reads without the flag"
        ),
        pytest.param(
            named("pending-reads", process_ms=0), "process.time.max.ms is 0", id="process time 0"
        ),
        pytest.param(
            named("caught-up", process_ms=-1),
            "process.time.max.ms is -1",
            id="negative process time, though it would be ignored",
        ),
        pytest.param(
            replace(DEFAULTS, replica_lag_time_max_ms=0, replica_fetch_wait_max_ms=0),
            "replica.lag.time.max.ms is 0",
            id="lag time 0",
        ),
        pytest.param(
            replace(DEFAULTS, replica_lag_time_max_ms=-30_000),
            "replica.lag.time.max.ms is -30000",
            id="negative lag time",
        ),
        pytest.param(
            replace(DEFAULTS, replica_lag_max_messages=-1),
            "replica.lag.max.messages is -1",
            id="negative messages",
        ),
        pytest.param(
            replace(DEFAULTS, replica_fetch_wait_max_ms=-1),
            "replica.fetch.wait.max.ms is -1",
            id="negative wait",
        ),
        pytest.param(
            replace(DEFAULTS, replica_fetch_wait_max_ms=30_000),
            "below replica.lag.time.max.ms",
            id="KIP-501: wait at the lag time",
        ),
        pytest.param(
            replace(DEFAULTS, replica_lag_time_max_ms=400),
            "replica.fetch.wait.max.ms is 500",
            id="KIP-501: wait above the lag time",
        ),
    ],
)
def test_refused_with_the_setting_named(settings: InSyncSettings, says: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        in_sync_rule(settings)
    assert says in str(refusal.value)


def test_the_smallest_valid_values_are_accepted() -> None:
    smallest = InSyncSettings(
        replica_in_sync_policy="pending-reads",
        replica_lag_time_max_ms=1,
        replica_lag_max_messages=0,
        replica_fetch_wait_max_ms=0,
        follower_fetch_process_time_max_ms=1,
    )
    assert in_sync_rule(smallest).process_time_max_ms == 1


def test_kip_501_a_fetch_wait_just_below_the_lag_time_is_accepted() -> None:
    settings = replace(DEFAULTS, replica_lag_time_max_ms=501)
    assert in_sync_rule(settings).policy.lag_time_max_ms == 501
