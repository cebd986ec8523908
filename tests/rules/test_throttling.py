"""Which fetches pass, which are counted and which wait under a throttle; and that waiting ends."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.quota_bucket import Bucket
from insync.rules.throttling import (
    Treatment,
    admit,
    follower_is_in_sync,
    rotated,
    treatment,
)
from insync.rules.values import Offset

R = 1_000  # bytes per second; a full bucket holds 500 B


def bucket_holding(size_bytes: int, *, at_ms: int = 0) -> Bucket:
    return Bucket(bytes_per_s=R, credit=size_bytes * 1_000, at_ms=at_ms)


# --- treatment: KIP-73 as amended by KAFKA-4313 ---


@pytest.mark.parametrize(
    ("is_throttled", "is_in_sync", "expected"),
    [
        (False, False, Treatment.FREE),
        (False, True, Treatment.FREE),
        (True, True, Treatment.COUNTED),
        (True, False, Treatment.LIMITED),
    ],
)
def test_treatment_table(*, is_throttled: bool, is_in_sync: bool, expected: Treatment) -> None:
    assert treatment(is_throttled=is_throttled, is_in_sync=is_in_sync) is expected


@pytest.mark.parametrize(
    ("next_offset", "leader_high_watermark", "expected"),
    [(99, 100, False), (100, 100, True), (101, 100, True), (0, 0, True), (100, None, False)],
)
def test_the_treatment_of_a_followers_own_fetch(
    *, next_offset: int, leader_high_watermark: int | None, expected: bool
) -> None:
    """kafka-facts 3: known lag <= 0, lag = max(0, leaderHW - nextOffset); unknown is no."""
    known_watermark = None if leader_high_watermark is None else Offset(leader_high_watermark)
    in_sync = follower_is_in_sync(
        next_offset=Offset(next_offset), leader_high_watermark=known_watermark
    )
    assert in_sync is expected


# --- kafka-facts 6: ReplicaManagerQuotasTest, where it needs no broker ---


@dataclass
class Leader:
    """Fills a response: one batch of 100 B for each partition that is treated well enough."""

    bucket: Bucket

    def batches(self, *partitions: Treatment) -> list[int]:
        sent = []
        for treated in partitions:
            admitted = treated is not Treatment.LIMITED
            if treated is Treatment.COUNTED:
                self.bucket = self.bucket.pass_in_sync(100, now_ms=0)
            elif treated is Treatment.LIMITED:
                admission = admit(self.bucket, [("it", 100)], now_ms=0)
                self.bucket = admission.bucket
                admitted = admission.admitted == ("it",)
            sent.append(int(admitted))
        return sent


OUT_OF_SYNC = treatment(is_throttled=True, is_in_sync=False)
IN_SYNC = treatment(is_throttled=True, is_in_sync=True)
CONSUMER = treatment(is_throttled=False, is_in_sync=False)


def test_subsequent_throttled_partitions_are_excluded() -> None:
    assert Leader(bucket_holding(100)).batches(OUT_OF_SYNC, OUT_OF_SYNC) == [1, 0]


def test_no_messages_if_both_are_over_quota() -> None:
    assert Leader(bucket_holding(0)).batches(OUT_OF_SYNC, OUT_OF_SYNC) == [0, 0]


def test_both_messages_if_the_quota_allows() -> None:
    assert Leader(bucket_holding(200)).batches(OUT_OF_SYNC, OUT_OF_SYNC) == [1, 1]


def test_in_sync_throttled_replicas_are_included() -> None:
    assert Leader(bucket_holding(0)).batches(IN_SYNC, IN_SYNC) == [1, 1]


def test_consumers_are_included_and_not_counted() -> None:
    leader = Leader(bucket_holding(100))
    assert leader.batches(CONSUMER, CONSUMER) == [1, 1]
    assert leader.batches(OUT_OF_SYNC) == [1]


def test_a_low_volume_in_sync_partition_is_not_held_back_by_a_high_volume_move() -> None:
    """KAFKA-4313: ISRs of low-volume partitions must not thrash; they are still counted."""
    leader = Leader(bucket_holding(250))
    assert leader.batches(OUT_OF_SYNC, OUT_OF_SYNC, OUT_OF_SYNC, IN_SYNC) == [1, 1, 0, 1]
    assert leader.bucket.credit == -50 * 1_000


def test_a_delayed_fetch_waits_for_the_bucket_when_out_of_sync() -> None:
    """Design, Quotas: woken when the bucket refills, not at the wait or backoff time."""
    assert admit(bucket_holding(0), [("t1-0", 60)], now_ms=0).wake_at_ms == 60


# --- admit: in order, and the first that does not fit stops the rest ---


def test_batches_go_in_order_while_they_fit() -> None:
    admission = admit(bucket_holding(300), [("a", 100), ("b", 150), ("c", 100)], now_ms=0)
    assert admission.admitted == ("a", "b")
    assert admission.held_back == ("c",)
    assert admission.bucket == bucket_holding(50)
    assert admission.wake_at_ms == 50


def test_small_batches_do_not_overtake_a_large_one() -> None:
    admission = admit(bucket_holding(300), [("large", 400), ("small", 1)], now_ms=0)
    assert admission.admitted == ()
    assert admission.held_back == ("large", "small")
    assert admission.wake_at_ms == 100


def test_the_bucket_is_filled_before_it_admits() -> None:
    admission = admit(bucket_holding(0, at_ms=1_000), [("a", 100)], now_ms=1_100)
    assert admission.admitted == ("a",)
    assert admission.bucket == bucket_holding(0, at_ms=1_100)


def test_nothing_waits_when_all_were_admitted() -> None:
    admission = admit(bucket_holding(300), [("a", 100)], now_ms=0)
    assert admission.held_back == ()
    assert admission.wake_at_ms is None


def test_a_quota_of_zero_sets_no_wake_up() -> None:
    admission = admit(Bucket(bytes_per_s=0, at_ms=0), [("a", 1)], now_ms=0)
    assert admission.held_back == ("a",)
    assert admission.wake_at_ms is None


SIZES = st.integers(1, 200) | st.integers(1, 3_000)


@pytest.mark.property
@given(
    credit_bytes=st.integers(-500, 500),
    idle_ms=st.integers(0, 600),
    sizes=st.lists(SIZES, max_size=12),
)
def test_admission_agrees_with_admitting_one_by_one(
    credit_bytes: int, idle_ms: int, sizes: list[int]
) -> None:
    bucket, gone = bucket_holding(credit_bytes), 0
    while gone < len(sizes) and bucket.admits(sizes[gone], now_ms=idle_ms):
        bucket = bucket.spend(sizes[gone], now_ms=idle_ms)
        gone += 1
    admission = admit(bucket_holding(credit_bytes), enumerate(sizes), now_ms=idle_ms)
    assert admission.admitted == tuple(range(gone))
    assert admission.held_back == tuple(range(gone, len(sizes)))
    assert admission.bucket == bucket.at(idle_ms)
    if gone < len(sizes):
        assert admission.wake_at_ms is not None
        assert admission.wake_at_ms > idle_ms
        assert not bucket.admits(sizes[gone], now_ms=admission.wake_at_ms - 1)
        assert bucket.admits(sizes[gone], now_ms=admission.wake_at_ms)


# --- rotation ---


def test_served_partitions_go_last_in_the_same_order() -> None:
    assert rotated(("a", "b", "c", "d"), served=["c", "a"]) == ("b", "d", "a", "c")


def test_serving_no_partition_keeps_the_order() -> None:
    assert rotated(("a", "b"), served=[]) == ("a", "b")


@pytest.mark.property
@given(order=st.permutations(range(8)).map(tuple), served=st.lists(st.integers(0, 9)))
def test_rotation_keeps_every_partition_and_puts_the_served_last(
    order: tuple[int, ...], served: list[int]
) -> None:
    after = rotated(order, served)
    assert sorted(after) == sorted(order)
    boundary = sum(one not in served for one in order)
    assert not set(after[:boundary]) & set(served)
    for group in (after[:boundary], after[boundary:]):
        assert [order.index(one) for one in group] == sorted(order.index(one) for one in group)


# --- no partition starves ---


@dataclass
class Queue:
    """Partitions that always have a batch waiting, or rest for a while after one."""

    sizes: list[int]  # of each partition's batches, in bytes
    rests_ms: list[int]

    def longest_waits_ms(self, *, until_ms: int) -> list[int]:
        """For each partition, the longest it ever waited (or still waits) for a batch to go."""
        bucket = bucket_holding(0)
        order = tuple(range(len(self.sizes)))
        waits_since_ms = dict.fromkeys(order, 0)
        longest_ms = dict.fromkeys(order, 0)
        now_ms = 0
        while now_ms < until_ms:
            waiting = [(one, self.sizes[one]) for one in order if waits_since_ms[one] <= now_ms]
            admission = admit(bucket, waiting, now_ms=now_ms)
            bucket, order = admission.bucket, rotated(order, admission.admitted)
            for one in admission.admitted:
                longest_ms[one] = max(longest_ms[one], now_ms - waits_since_ms[one])
                waits_since_ms[one] = now_ms + self.rests_ms[one]
            held_back = admission.held_back
            woken_at_ms = [ms for one, ms in waits_since_ms.items() if one not in held_back]
            if admission.wake_at_ms is not None:
                woken_at_ms.append(admission.wake_at_ms)
            now_ms = min(woken_at_ms)
        return [max(longest_ms[one], now_ms - waits_since_ms[one]) for one in sorted(order)]


@pytest.mark.property
@given(
    partitions=st.lists(
        st.tuples(SIZES, st.sampled_from([0, 0, 1, 40, 700])), min_size=1, max_size=6
    )
)
def test_every_waiting_partition_is_served_in_turn(partitions: list[tuple[int, int]]) -> None:
    """Before its next turn each other goes once: their bytes, its own last ones (as debt) and a
    full bucket have to be earned, and each of them may lose a millisecond to rounding."""
    sizes, rests_ms = [size for size, _ in partitions], [rest for _, rest in partitions]
    turn_ms = 1_000 * sum(sizes) // R + 500 + len(sizes)
    waits_ms = Queue(sizes, rests_ms).longest_waits_ms(until_ms=3 * turn_ms)
    assert max(waits_ms) <= turn_ms
