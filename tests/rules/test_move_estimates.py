"""KIP-73's formulas (questions 1, 4 and 5) with the document's own worked examples."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.move_estimates import (
    LagSample,
    Progress,
    ThrottleVerdict,
    move_time_ms,
    progress,
    response_bytes_limit,
    response_bytes_limit_by_quota,
    safe_range,
    throttle_for_impact,
)
from insync.rules.refusals import BadSetting

MB = 1_000_000
GB = 1_000 * MB
GIGABIT_ETHERNET = 100 * MB  # bytes per second, as question 5 counts it

# --- question 1: how long ---


@pytest.mark.parametrize(
    ("move_ratio", "quota_bytes_per_s", "expected_ms"),
    [
        # MoveTime = MoveRatio x 100 GB x 5 brokers / (quota - 10 MB/s)
        (Fraction(1, 5), 20 * MB, 10_000_000),
        (Fraction(1, 5), 110 * MB, 1_000_000),
        (Fraction(1), 110 * MB, 5_000_000),
        (Fraction(0), 20 * MB, 0),
        (Fraction(1, 5), 10 * MB + 1, 100_000_000_000_000),
    ],
)
def test_move_time(move_ratio: Fraction, quota_bytes_per_s: int, expected_ms: int) -> None:
    assert expected_ms == move_time_ms(
        move_ratio=move_ratio,
        log_bytes_per_broker=100 * GB,
        brokers=5,
        quota_bytes_per_s=quota_bytes_per_s,
        bytes_in_per_s_max=10 * MB,
    )


def time_to_move_ms(log_bytes: int, *, quota: int, inbound: int) -> int | None:
    return move_time_ms(
        move_ratio=Fraction(1),
        log_bytes_per_broker=log_bytes,
        brokers=1,
        quota_bytes_per_s=quota,
        bytes_in_per_s_max=inbound,
    )


@pytest.mark.parametrize(("quota", "inbound"), [(10, 10), (9, 10), (0, 0), (0, 5)])
def test_a_quota_not_above_inbound_never_makes_progress(quota: int, inbound: int) -> None:
    """KIP-73: as (replication-quota - max(BytesInPerSec)) -> 0."""
    assert time_to_move_ms(1, quota=quota, inbound=inbound) is None


def test_move_time_is_rounded_up_to_the_millisecond() -> None:
    assert time_to_move_ms(1, quota=3, inbound=0) == 334


@pytest.mark.property
@given(
    log_bytes=st.integers(0, 10**12),
    inbound=st.integers(0, 10**9),
    spare=st.integers(1, 10**9),
)
def test_move_time_is_the_first_millisecond_by_which_all_is_moved(
    log_bytes: int, inbound: int, spare: int
) -> None:
    takes_ms = time_to_move_ms(log_bytes, quota=inbound + spare, inbound=inbound)
    assert takes_ms is not None
    assert spare * takes_ms >= log_bytes * 1_000 > spare * (takes_ms - 1)


def test_a_negative_quota_is_refused() -> None:
    with pytest.raises(BadSetting, match="the quota rate is -1 B/s; it must be 0 or more"):
        time_to_move_ms(1, quota=-1, inbound=0)


# --- question 4: IN < T < N - IN/R, both exclusive ---


@pytest.mark.parametrize(
    ("throttle", "verdict"),
    [
        (0, ThrottleVerdict.CANNOT_FINISH),
        (30 * MB, ThrottleVerdict.CANNOT_FINISH),
        (30 * MB + 1, ThrottleVerdict.SAFE),
        (90 * MB - 1, ThrottleVerdict.SAFE),
        (90 * MB, ThrottleVerdict.STARVES_CLIENTS),
        (200 * MB, ThrottleVerdict.STARVES_CLIENTS),
    ],
)
def test_a_throttle_lies_strictly_between(throttle: int, verdict: ThrottleVerdict) -> None:
    """IN 30 MB/s, N 100 MB/s, R 3: 30 < T < 90."""
    limits = safe_range(
        bytes_in_per_s=30 * MB, network_bytes_per_s=GIGABIT_ETHERNET, replication_factor=3
    )
    assert limits.verdict(throttle) is verdict
    assert (limits.lowest, limits.highest) == (30 * MB + 1, 90 * MB - 1)
    assert not limits.is_empty


def test_a_fractional_upper_bound_keeps_the_whole_rate_below_it() -> None:
    """N 100, IN 10, R 3: T < 96 2/3."""
    limits = safe_range(bytes_in_per_s=10, network_bytes_per_s=100, replication_factor=3)
    assert limits.highest == 96
    assert limits.verdict(96) is ThrottleVerdict.SAFE
    assert limits.verdict(97) is ThrottleVerdict.STARVES_CLIENTS


def test_no_throttle_works_on_a_network_too_small() -> None:
    limits = safe_range(bytes_in_per_s=80, network_bytes_per_s=100, replication_factor=2)
    assert limits.is_empty
    assert limits.verdict(80) is ThrottleVerdict.CANNOT_FINISH
    assert limits.verdict(81) is ThrottleVerdict.STARVES_CLIENTS


@pytest.mark.property
@given(inbound=st.integers(0, 40), network=st.integers(0, 60), replication_factor=st.integers(1, 4))
def test_the_safe_range_agrees_with_trying_every_throttle(
    inbound: int, network: int, replication_factor: int
) -> None:
    limits = safe_range(
        bytes_in_per_s=inbound, network_bytes_per_s=network, replication_factor=replication_factor
    )
    safe = [
        throttle
        for throttle in range(-50, 70)
        if inbound < throttle
        and throttle * replication_factor < network * replication_factor - inbound
    ]
    judged = [t for t in range(-50, 70) if limits.verdict(t) is ThrottleVerdict.SAFE]
    assert judged == safe
    assert limits.is_empty is (not safe)
    if safe:
        assert (limits.lowest, limits.highest) == (safe[0], safe[-1])


@pytest.mark.parametrize("replication_factor", [0, -1])
def test_a_replication_factor_below_one_is_refused(replication_factor: int) -> None:
    with pytest.raises(BadSetting, match="use 1 or more"):
        safe_range(bytes_in_per_s=1, network_bytes_per_s=10, replication_factor=replication_factor)


# --- question 3's "impact": a part of the network, and what replicas cost beside their bytes ---


@pytest.mark.parametrize(
    ("bytes_to_copy", "replicas_to_copy", "expected"),
    [
        # 30 % of 200 MB/s are 60 MB/s; each replica counts as 3 MB more than it has
        (600 * MB, 6, 58_252_427),  # 600 of 618 MB
        (300 * MB, 100, 30 * MB),  # 300 of 600 MB
        (60 * MB, 100, 10 * MB),  # 60 of 360 MB
        (10 * MB, 10_000, 19_993),  # 10 of 30 010 MB: some 20 replicas per second
        (0, 10_000, 60 * MB),  # a throttle does not slow what has no bytes
        (1, 10_000, 1),  # never no throttle at all
    ],
)
def test_a_throttle_for_an_impact_counts_replicas(
    bytes_to_copy: int, replicas_to_copy: int, expected: int
) -> None:
    assert expected == throttle_for_impact(
        network_bytes_per_s=200 * MB,
        max_impact=Fraction(3, 10),
        bytes_to_copy=bytes_to_copy,
        replicas_to_copy=replicas_to_copy,
    )


@given(st.integers(1, 10**12), st.integers(0, 10**5), st.integers(0, 10**10), st.integers(1, 100))
def test_bytes_and_replicas_together_stay_within_the_impact(
    bytes_to_copy: int, replicas_to_copy: int, network_bytes_per_s: int, percent: int
) -> None:
    throttle = throttle_for_impact(
        network_bytes_per_s=network_bytes_per_s,
        max_impact=Fraction(percent, 100),
        bytes_to_copy=bytes_to_copy,
        replicas_to_copy=replicas_to_copy,
    )
    replicas_per_s = Fraction(replicas_to_copy * throttle, bytes_to_copy)
    available = Fraction(network_bytes_per_s * percent, 100)
    assert throttle == 1 or throttle + replicas_per_s * 3 * MB <= available


# --- question 5: replica.fetch.response.max.bytes ---


@pytest.mark.parametrize(
    ("brokers", "limit_bytes"),
    [
        (5, 10 * MB),  # "1MB/s x 10s = 10MB"
        (100, 10 * MB),  # quotas and network are level
        (500, 2 * MB),  # "10s x 100MB/s / 500 = 2MB"
    ],
)
def test_kip_73s_worked_response_sizes(brokers: int, limit_bytes: int) -> None:
    assert limit_bytes == response_bytes_limit(
        brokers=brokers,
        quota_bytes_per_s=1 * MB,
        network_bytes_per_s=GIGABIT_ETHERNET,
        window_s=10,
    )


def test_reduced_limit_is_independent_of_the_number_of_brokers() -> None:
    """KIP-73: replica.fetch.response.max.bytes < QuotaLeader x total-window-size."""
    assert response_bytes_limit_by_quota(quota_bytes_per_s=1 * MB, window_s=10) == 10 * MB


def test_default_response_of_10_mb_suits_quotas_over_1_mb_per_s() -> None:
    """KIP-73: 10 MB "is small enough to support leader quotas over 1MB/s", window 11 x 1 s."""
    assert response_bytes_limit_by_quota(quota_bytes_per_s=1 * MB, window_s=11) > 10 * MB


@pytest.mark.property
@given(
    brokers=st.integers(1, 600),
    quota=st.integers(1, 10**9),
    network=st.integers(1, 10**9),
    window_s=st.integers(1, 60),
    response_bytes=st.integers(0, 10**10),
)
def test_the_limit_is_where_kip_73s_inequality_turns(
    brokers: int, quota: int, network: int, window_s: int, response_bytes: int
) -> None:
    limit = response_bytes_limit(
        brokers=brokers, quota_bytes_per_s=quota, network_bytes_per_s=network, window_s=window_s
    )
    speed = min(quota * brokers, network)
    assert brokers * limit / speed == window_s
    assert (response_bytes < limit) is (Fraction(brokers * response_bytes, speed) < window_s)


@pytest.mark.parametrize(
    ("brokers", "quota", "message"), [(0, 1, "0 brokers"), (1, -1, "quota rate is -1 B/s")]
)
def test_meaningless_clusters_and_quotas_are_refused(
    brokers: int, quota: int, message: str
) -> None:
    with pytest.raises(BadSetting, match=message):
        response_bytes_limit(
            brokers=brokers, quota_bytes_per_s=quota, network_bytes_per_s=1, window_s=10
        )


def test_reduced_limit_refuses_a_negative_quota() -> None:
    with pytest.raises(BadSetting, match="quota rate is -1 B/s"):
        response_bytes_limit_by_quota(quota_bytes_per_s=-1, window_s=10)


# --- question 1's advice: SumReplicaLag "stops reducing, before rebalancing completes" ---


def every_second(*lags: int) -> list[LagSample]:
    return [LagSample(at_ms=1_000 * n, lag_bytes=lag) for n, lag in enumerate(lags)]


@pytest.mark.parametrize(
    ("lags", "verdict"),
    [
        ((50,), Progress.MOVING),
        ((0,), Progress.DONE),
        ((50, 40, 30, 20, 10), Progress.MOVING),
        ((50, 50, 50), Progress.MOVING),  # 2 s without a new low: patience lasts
        ((50, 50, 50, 50), Progress.STUCK),  # 3 s: it does not
        ((50, 40, 45, 41, 60), Progress.STUCK),  # it swings, with no new low since 1 s
        ((50, 40, 45, 39, 41), Progress.MOVING),  # a short rise on the way down
        ((50, 60, 70, 80), Progress.STUCK),
        ((50, 50, 50, 50, 49), Progress.MOVING),  # the throttle was raised: a new low
        ((50, 50, 50, 50, 0), Progress.DONE),
    ],
)
def test_progress_is_judged_by_new_lows_within_3_s(
    lags: tuple[int, ...], verdict: Progress
) -> None:
    assert progress(every_second(*lags), patience_ms=3_000) is verdict


@pytest.mark.property
@given(lags=st.lists(st.integers(0, 5), min_size=1, max_size=12), patience_s=st.integers(1, 12))
def test_stuck_is_no_new_low_for_the_whole_patience(lags: list[int], patience_s: int) -> None:
    lows = [n for n, lag in enumerate(lags) if all(lag < earlier for earlier in lags[:n])]
    if lags[-1] == 0:
        expected = Progress.DONE
    elif len(lags) - 1 - lows[-1] >= patience_s:
        expected = Progress.STUCK
    else:
        expected = Progress.MOVING
    assert progress(every_second(*lags), patience_ms=1_000 * patience_s) is expected


def test_a_verdict_without_samples_fails_an_assertion() -> None:
    with pytest.raises(AssertionError):
        progress([], patience_ms=1_000)
