"""KIP-501, solution 1: what registers, what holds, and how it ends."""

from insync.rules.follower import Fetch, Follower
from insync.rules.pending_reads import NO_READS
from insync.rules.values import Offset


def follower_at(offset: int, *, leader_end: int) -> Follower:
    return Follower.member(epoch_started_at_ms=0).on_fetch(
        Fetch(offset=Offset(offset), leader_end=Offset(leader_end), at_ms=0, served_at_ms=0)
    )


def began(
    follower: Follower,
    offset: int,
    *,
    read_id: int = 1,
    connection: int = 1,
    high_watermark: int | None = None,
) -> Follower:
    return follower.on_read_began(
        read_id=read_id,
        connection=connection,
        offset=Offset(offset),
        parsed_at_ms=100,
        high_watermark=None if high_watermark is None else Offset(high_watermark),
    )


def test_a_read_at_the_leaders_previous_end_holds() -> None:
    """KIP-501: "if the fetch request's message-offset >= leader's LEO when the earlier ..."."""
    follower = follower_at(950, leader_end=1_002)
    assert began(follower, 1_002).reads.hold
    assert not began(follower, 1_001).reads.hold


def test_the_first_read_of_an_epoch_holds_a_member_at_the_watermark_and_no_other() -> None:
    follower = Follower.member(epoch_started_at_ms=0)
    assert began(follower, 1_000, high_watermark=1_000).reads.hold
    assert not began(follower, 999, high_watermark=1_000).reads.hold
    assert not began(follower, 1_000, high_watermark=None).reads.hold, "outside the ISR"


def test_the_watermark_counts_for_the_first_read_only() -> None:
    follower = follower_at(950, leader_end=1_002)
    assert not began(follower, 1_001, high_watermark=900).reads.hold


def test_a_read_is_timed_whether_it_holds_or_not() -> None:
    assert began(follower_at(0, leader_end=10), 5).reads.oldest_parsed_at_ms == 100
    assert NO_READS.oldest_parsed_at_ms is None


def test_a_hold_ends_with_the_read_and_ending_twice_is_harmless() -> None:
    follower = began(follower_at(10, leader_end=10), 10)
    ended = follower.on_read_ended(1)
    assert not ended.reads.hold
    assert ended.on_read_ended(1) == ended


def test_a_hold_ends_with_its_own_connection_only() -> None:
    follower = began(follower_at(10, leader_end=10), 10, read_id=1, connection=1)
    follower = began(follower, 10, read_id=2, connection=2)
    assert follower.on_connection_closed(1).reads.hold
    assert not follower.on_connection_closed(1).on_connection_closed(2).reads.hold


def test_a_hold_ends_with_the_brokers_session() -> None:
    assert not began(follower_at(10, leader_end=10), 10).on_session_ended().reads.hold
