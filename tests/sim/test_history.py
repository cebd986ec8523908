"""The checker of histories finds each anomaly in histories made by hand; correct ones pass."""

from __future__ import annotations

import pytest

from insync.sim.history import (
    Append,
    History,
    Latest,
    Operation,
    Read,
    describe,
    find_divergence,
    find_missing,
)

PARTITION = ("t", 0)


def append(
    text: str,
    at_s: float,
    *,
    offset: int | None = None,
    client: int = 1,
    acks: int = -1,
    number: int = 0,
) -> Append:
    values = [each.encode() for each in text.split()]
    return Append(
        client=client,
        partition=PARTITION,
        first_number=number,
        values=values,
        acks=acks,
        invoked_at_s=at_s,
        returned_at_s=None if offset is None else at_s + 0.5,
        base_offset=offset,
        is_idempotent=acks == -1,
    )


def read(
    offset: int, text: str, at_s: float, *, first: int | None = None, log_start: int = 0
) -> Read:
    begins = offset if first is None else first
    records = [(begins + index, value.encode()) for index, value in enumerate(text.split())]
    return Read(
        client=9,
        partition=PARTITION,
        offset=offset,
        records=records,
        log_start=log_start,
        invoked_at_s=at_s,
        returned_at_s=at_s + 0.5,
    )


def latest(offset: int, at_s: float) -> Latest:
    return Latest(
        client=8, partition=PARTITION, offset=offset, invoked_at_s=at_s, returned_at_s=at_s + 0.5
    )


def kinds(*operations: Operation, unclean: bool = False, expired: bool = False) -> list[str]:
    history = History(operations=list(operations))
    anomalies = history.find_anomalies(unclean=unclean, producers_expired=expired)
    return [f"{each.kind} {each.offset}" for each in anomalies]


CORRECT: dict[str, tuple[Operation, ...]] = {
    "nothing": (latest(0, 1),),
    "write and read": (append("a b", 0, offset=0), read(0, "a b", 1), latest(2, 1)),
    "unknown outcome, there or not": (
        append("a", 0),
        append("b", 1, number=1, client=2),
        read(0, "b", 3),
    ),
    "a new leader does not show it yet": (append("a", 0, offset=0), read(0, "", 1)),
    "acks=1 may be lost": (
        append("a", 0, offset=0, acks=1),
        append("b", 2, offset=0, client=2),
        read(0, "b", 3),
    ),
    "acks=1 may be reordered": (
        append("a", 0, acks=1),
        append("b", 1, acks=1, number=1),
        read(0, "b a", 3),
    ),
    "latest at the same time as an append": (append("a", 0, offset=0), latest(0, 0.2)),
    "retention": (append("a b c", 0, offset=0), read(0, "c", 1, first=2, log_start=2)),
    "five under way, in order": (
        append("a", 0, offset=0),
        append("b", 0, offset=1, number=1),
        append("c", 0, offset=2, number=2),
        read(0, "a b c", 3),
    ),
    "read again": (append("a b", 0, offset=0), read(0, "a b", 1), read(1, "b", 2)),
}


@pytest.mark.parametrize("operations", CORRECT.values(), ids=CORRECT)
def test_a_correct_history_has_no_anomaly(operations: tuple[Operation, ...]) -> None:
    assert kinds(*operations) == []


ANOMALIES: dict[str, tuple[Operation, ...]] = {
    "lost 0": (append("a", 0, offset=0), append("b", 1, client=2), read(0, "b", 3)),
    "divergent 1": (append("a b", 0), append("c", 0, client=2), read(0, "a b", 1), read(1, "c", 2)),
    "duplicated 1": (append("a", 0), read(0, "a a", 1)),
    "reordered 1": (append("a", 0), append("b", 1, number=1), read(0, "b a", 2)),
    "reordered 5": (append("a", 0, offset=5), append("b", 1, number=1, offset=4)),
    "skipped 0": (append("a b", 0), read(0, "b", 1, first=1)),
    "invented 0": (read(0, "x", 1),),
    "falling watermark 1": (append("a b", 0, offset=0), latest(1, 1)),
    "falling watermark 3": (latest(4, 1), latest(3, 2)),
    "falling watermark 0": (append("a", 0), read(0, "a", 1), latest(0, 2)),
}


@pytest.mark.parametrize(("anomaly", "operations"), ANOMALIES.items(), ids=ANOMALIES)
def test_an_anomaly_is_found(anomaly: str, operations: tuple[Operation, ...]) -> None:
    assert kinds(*operations) == [anomaly]


def test_two_records_at_one_offset_are_divergent() -> None:
    assert "divergent 0" in kinds(append("a", 0, offset=0), append("b", 1, offset=0, client=2))


def test_a_read_that_goes_back_is_a_skip() -> None:
    assert kinds(append("a b c", 0), read(2, "b c", 1, first=1)) == ["skipped 2"]


def test_a_position_that_does_not_exist() -> None:
    outside = read(7, "", 1)
    outside.is_out_of_range = True
    assert kinds(outside) == ["out of range 7"]
    assert kinds(outside, unclean=True) == []
    outside.log_start = 8  # retention has passed it
    assert kinds(outside) == []


def test_unclean_election_excuses_loss_but_not_what_one_read_shows() -> None:
    lost = (append("a", 0, offset=0), append("b", 1, client=2), read(0, "b", 3), latest(0, 9))
    assert kinds(*lost, unclean=True) == []
    assert kinds(append("a b", 0), read(0, "b", 1, first=1), unclean=True) == ["skipped 0"]


def test_expired_producers_excuse_duplicates_but_not_loss() -> None:
    assert kinds(append("a", 0), read(0, "a a", 1), expired=True) == []
    lost = (append("a", 0, offset=0), append("b", 1, client=2), read(0, "b", 3))
    assert kinds(*lost, expired=True) == ["lost 0"]


def test_the_report_names_the_offset_and_both_histories() -> None:
    history = History(
        operations=[append("a", 0, offset=0), append("b", 1, client=2), read(0, "b", 3)]
    )
    assert describe(history.find_anomalies()).splitlines() == [
        "t-0 offset 0: lost: b'a' was acknowledged, and b'b' was read",
        "  producer 1 sent 0..0 with acks=-1 at 0.000 s: acknowledged at offset 0 at 0.500 s",
        "  consumer 9 read from 0 at 3.000 s and got 0..0 at 3.500 s (log start 0)",
    ]


def test_what_the_whole_log_lacks_is_lost_unless_retention_removed_it() -> None:
    history = History(operations=[append("a b c", 0, offset=0)])
    present = {1: b"b"}
    assert [each.offset for each in find_missing(history, PARTITION, start=1, present=present)] == [
        2
    ]
    assert find_missing(history, PARTITION, start=3, present={}) == []
    assert find_missing(history, ("other", 0), start=0, present={}) == []


def test_replicas_that_differ_at_rest_are_named_with_the_offset() -> None:
    same = {0: b"a", 1: b"b"}
    assert find_divergence(PARTITION, {1: same, 2: same, 3: {1: b"b"}}) == []
    (anomaly,) = find_divergence(PARTITION, {1: same, 2: {0: b"a", 1: b"x"}})
    assert str(anomaly) == "t-0 offset 1: divergent: broker 1 has b'b', broker 2 has b'x'"
    (short,) = find_divergence(PARTITION, {1: same, 2: {0: b"a"}})
    assert short.offset == 1


def test_a_deleted_topic_is_forgotten() -> None:
    history = History(operations=[append("a", 0, offset=0)])
    assert history.acknowledged() == 1
    history.forget_topic("t")
    assert history.operations == []


def test_a_request_to_a_deleted_topic_may_arrive_at_the_next_topic_of_its_name() -> None:
    history = History(operations=[append("a", 0, offset=0), append("b", 1, number=1)])
    history.forget_topic("t")
    history.add(read(0, "b", 2))
    assert history.find_anomalies() == []
    history.add(read(0, "a", 3))
    assert {each.kind for each in history.find_anomalies()} == {"invented", "divergent"}
