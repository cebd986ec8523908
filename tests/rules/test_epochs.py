"""Leader epochs: KIP-101, KIP-279, and "Truncation" in kafka-facts section 1.

The property at the end needs no document: whatever happened to some replicas under a series of
leaders, clean or unclean, a follower must come out with exactly what it shares with its leader.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.epochs import (
    EpochEnd,
    EpochHistory,
    EpochStart,
    Truncation,
    divergence,
    truncation,
)
from insync.rules.values import LeaderEpoch, Offset
from support.rules.partition_states import searched

Record = tuple[LeaderEpoch, int]  # the epoch that wrote it, and a value no other record has
Log = tuple[Record, ...]


def history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple(EpochStart(LeaderEpoch(e), Offset(start)) for e, start in entries))


def ends(epoch: int, end: int) -> EpochEnd:
    return EpochEnd(LeaderEpoch(epoch), Offset(end))


# Epoch 2 wrote [0, 10), epoch 4 wrote [10, 25), epoch 5 wrote from 25 on.
KNOWN = history((2, 0), (4, 10), (5, 25))
END = Offset(30)

NO_HISTORY = EpochHistory()


class TestAssign:
    def test_the_first_epoch_opens_the_history(self) -> None:
        assert EpochHistory().latest is None
        assert EpochHistory().assign(LeaderEpoch(3), Offset(7)) == history((3, 7))

    def test_a_newer_epoch_is_added(self) -> None:
        assert KNOWN.assign(LeaderEpoch(8), Offset(30)) == history(
            (2, 0), (4, 10), (5, 25), (8, 30)
        )

    def test_adding_the_same_epoch_again_changes_nothing(self) -> None:
        assert KNOWN.assign(LeaderEpoch(5), Offset(28)) == KNOWN

    def test_an_epoch_that_wrote_nothing_leaves_no_entry(self) -> None:
        assert KNOWN.assign(LeaderEpoch(6), Offset(25)) == history((2, 0), (4, 10), (6, 25))

    def test_an_older_epoch_fails_an_assertion(self) -> None:
        with pytest.raises(AssertionError, match="epochs only grow"):
            KNOWN.assign(LeaderEpoch(4), Offset(30))


class TestEndOf:
    """What OffsetsForLeaderEpoch answers (KIP-101; KIP-279 for an epoch the log skipped)."""

    @pytest.mark.parametrize(
        ("epoch", "expected"),
        [
            pytest.param(5, ends(5, 30), id="the latest ends at the log's end"),
            pytest.param(4, ends(4, 25), id="a known one ends where the next starts"),
            pytest.param(3, ends(2, 10), id="a skipped one is answered with the one before it"),
            pytest.param(1, ends(1, 0), id="one older than all ends where the oldest starts"),
            pytest.param(6, None, id="a newer one is undefined"),
        ],
    )
    def test_the_end_offset_of_an_epoch_in_a_log_with_gaps(
        self, epoch: int, expected: EpochEnd | None
    ) -> None:
        assert KNOWN.end_of(LeaderEpoch(epoch), log_end=END) == expected

    def test_a_log_without_history_has_no_epoch_end(self) -> None:
        assert EpochHistory().end_of(LeaderEpoch(0), log_end=END) is None


class TestCutEnd:
    @pytest.mark.parametrize(
        ("to", "expected"),
        [
            pytest.param(30, KNOWN, id="at the end"),
            pytest.param(26, KNOWN, id="one record of the latest stays"),
            pytest.param(25, history((2, 0), (4, 10)), id="none of the latest stays"),
            pytest.param(11, history((2, 0), (4, 10)), id="inside an older epoch"),
            pytest.param(0, EpochHistory(), id="nothing stays"),
        ],
    )
    def test_truncation_keeps_epochs_that_still_have_a_record(
        self, to: int, expected: EpochHistory
    ) -> None:
        assert KNOWN.truncate_end(Offset(to)) == expected


class TestCutStart:
    @pytest.mark.parametrize(
        ("log_start", "expected"),
        [
            pytest.param(0, KNOWN, id="nothing deleted"),
            pytest.param(9, history((2, 9), (4, 10), (5, 25)), id="one record of the oldest stays"),
            pytest.param(10, history((4, 10), (5, 25)), id="the oldest is gone"),
            pytest.param(24, history((4, 24), (5, 25)), id="inside an epoch"),
            pytest.param(30, history((5, 30)), id="an emptied log still knows its latest epoch"),
        ],
    )
    def test_the_oldest_epoch_left_starts_at_the_log_start(
        self, log_start: int, expected: EpochHistory
    ) -> None:
        assert KNOWN.truncate_start(Offset(log_start)) == expected

    def test_a_log_start_below_all_entries_changes_nothing(self) -> None:
        assert history((4, 10)).truncate_start(Offset(3)) == history((4, 10))


class TestDivergence:
    """kafka-facts 1: diverging when the end for that epoch < fetch offset, or epoch is older."""

    @pytest.mark.parametrize(
        ("fetch_offset", "last_fetched_epoch", "expected"),
        [
            pytest.param(30, 5, None, id="level"),
            pytest.param(12, 4, None, id="behind, and a prefix"),
            pytest.param(25, 4, None, id="exactly where its epoch ended"),
            pytest.param(26, 4, ends(4, 25), id="one record more of that epoch than the leader"),
            pytest.param(31, 5, ends(5, 30), id="past the leader's end"),
            pytest.param(10, 3, ends(2, 10), id="an epoch the leader never saw"),
            pytest.param(5, 3, ends(2, 10), id="an unseen epoch, although the offset is low"),
            pytest.param(1, 1, ends(1, 0), id="an epoch older than all the leader kept"),
        ],
    )
    def test_the_divergence_of_one_fetch(
        self, fetch_offset: int, last_fetched_epoch: int, expected: EpochEnd | None
    ) -> None:
        answer = divergence(
            KNOWN,
            leader_log_end=END,
            fetch_offset=Offset(fetch_offset),
            last_fetched_epoch=LeaderEpoch(last_fetched_epoch),
        )
        assert answer == expected

    def test_a_follower_ahead_of_the_leaders_epoch_was_refused_before(self) -> None:
        with pytest.raises(AssertionError, match="refused before"):
            divergence(
                KNOWN, leader_log_end=END, fetch_offset=END, last_fetched_epoch=LeaderEpoch(6)
            )


class TestTruncation:
    """kafka-facts 1: min(leader end, own end for that epoch, log end); unknown epoch: ask again."""

    @pytest.mark.parametrize(
        ("leader_says", "expected"),
        [
            pytest.param(ends(5, 27), Truncation(to=Offset(27), is_final=True), id="leader's end"),
            pytest.param(ends(4, 40), Truncation(to=Offset(25), is_final=True), id="own end"),
            pytest.param(ends(5, 40), Truncation(to=Offset(30), is_final=True), id="the log's end"),
            pytest.param(
                ends(3, 20),
                Truncation(to=Offset(10), is_final=False),
                id="epoch unknown to the follower: to the largest smaller one, and ask again",
            ),
            pytest.param(
                ends(1, 40),
                Truncation(to=Offset(0), is_final=True),
                id="epoch older than all the follower has: nothing is shared",
            ),
            pytest.param(
                None,
                Truncation(to=Offset(12), is_final=True),
                id="undefined, a leader without history: to the watermark",
            ),
        ],
    )
    def test_the_truncation_offset_by_the_leaders_epoch_end(
        self, leader_says: EpochEnd | None, expected: Truncation
    ) -> None:
        cut = truncation(KNOWN, log_end=END, high_watermark=Offset(12), leader_says=leader_says)
        assert cut == expected

    @pytest.mark.parametrize(("leader_end", "to"), [(20, 20), (40, 30)])
    def test_a_follower_without_history_uses_the_leaders_epoch_end(
        self, leader_end: int, to: int
    ) -> None:
        cut = truncation(
            EpochHistory(),
            log_end=END,
            high_watermark=Offset(12),
            leader_says=ends(5, leader_end),
        )
        assert cut == Truncation(to=Offset(to), is_final=True)

    def test_a_watermark_past_the_log_end_truncates_nothing(self) -> None:
        cut = truncation(KNOWN, log_end=END, high_watermark=Offset(99), leader_says=None)
        assert cut == Truncation(to=END, is_final=True)


# --- Replicas with real records, under a chain of leaders -----------------------------------


@dataclass(frozen=True, slots=True)
class Replica:
    """A log, and the history kept beside it step by step, as a broker does."""

    log: Log = ()
    history: EpochHistory = NO_HISTORY
    leads: LeaderEpoch | None = None  # the epoch of the record it would write next

    @property
    def end(self) -> Offset:
        return Offset(len(self.log))

    def elected(self, epoch: LeaderEpoch) -> Replica:
        return replace(self, leads=epoch, history=self.history.assign(epoch, self.end))

    def with_records(self, records: Log) -> Replica:
        grown = self
        for record in records:
            kept = grown.history.assign(record[0], grown.end)
            grown = replace(grown, log=(*grown.log, record), history=kept)
        return grown

    def cut(self, to: int) -> Replica:
        return Replica(log=self.log[:to], history=self.history.truncate_end(Offset(to)))

    def history_by_scan(self) -> EpochHistory:
        """The first offset of each epoch, looked up in the log."""
        epochs = [epoch for epoch, _ in self.log]
        if self.leads is not None:
            epochs.append(self.leads)
        return history(*((epoch, epochs.index(epoch)) for epoch in sorted(set(epochs))))


def shared_length(one: Log, other: Log) -> int:
    """The oracle: compare record by record."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def copied(follower: Replica, leader: Replica, *, records: int) -> Replica:
    """The follower, cut to what both share, after copying at most so many records."""
    at = shared_length(follower.log, leader.log)
    return follower.cut(at).with_records(leader.log[at : at + records])


def follow(follower: Replica, leader: Replica) -> tuple[Replica, int]:
    """Look up and truncate until the leader would serve the follower; and the number of rounds.

    Each round goes down at least one epoch, so there are never more than there are epochs.
    """
    rounds_max = len(follower.history.entries) + 1
    rounds = 0
    while follower.history.latest is not None:
        answer = divergence(
            leader.history,
            leader_log_end=leader.end,
            fetch_offset=follower.end,
            last_fetched_epoch=follower.history.latest,
        )
        if answer is None:
            break
        rounds += 1
        assert rounds <= rounds_max, "a round that truncated no epoch"
        cut = truncation(
            follower.history,
            log_end=follower.end,
            high_watermark=Offset(0),
            leader_says=answer,
        )
        follower = follower.cut(cut.to)
        if cut.is_final:
            break
    return follower, rounds


def log_of(*epochs: int) -> Log:
    """One record per epoch named, the value being its place: equal logs are equal histories."""
    return tuple((LeaderEpoch(epoch), offset) for offset, epoch in enumerate(epochs))


def replica(*epochs: int, leads: int | None = None) -> Replica:
    follower = Replica().with_records(log_of(*epochs))
    return follower if leads is None else follower.elected(LeaderEpoch(leads))


class TestTheDocumentsExamples:
    def test_kip_101_scenario_1_a_restart_loses_nothing_above_a_stale_watermark(self) -> None:
        """m2 is on both, and the follower's watermark is still below it (here it is even 0)."""
        follower, rounds = follow(replica(0, 0), replica(0, 0, leads=1))
        assert (follower.log, rounds) == (log_of(0, 0), 0)

    def test_kip_101_scenario_2_diverged_logs_are_truncated_where_they_diverged(self) -> None:
        """A wrote m1, m2; B had only m1, was elected and wrote m3 in m2's place."""
        follower, rounds = follow(replica(0, 0), replica(0, 1, leads=1))
        assert (follower.log, rounds) == (log_of(0), 1)

    def test_kip_279_an_epoch_neither_shares_takes_another_round(self) -> None:
        """The leader answers 2 for 3; the follower has no 2, truncates to the end of 1, retries."""
        follower, rounds = follow(replica(0, 1, 1, 3, 3), replica(0, 1, 2, 2, 2, leads=4))
        assert (follower.log, rounds) == (log_of(0, 1), 2)


REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Term:
    """A replica may lose its tail, one is elected and writes, one may copy, and it writes on.

    So little is copied that the logs part again and again.
    """

    loser: int
    lost: int
    epochs_skipped: int  # elections without a leader
    leader: int
    written: int
    copier: int
    copied: int
    written_later: int


terms = st.builds(
    Term,
    loser=st.integers(0, REPLICAS - 1),
    lost=st.sampled_from([0, 0, 0, 1, 2]),
    epochs_skipped=st.integers(0, 1),
    leader=st.integers(0, REPLICAS - 1),
    written=st.integers(0, 3),
    copier=st.integers(0, REPLICAS - 1),
    copied=st.sampled_from([0, 1, 2, 3, 20]),
    written_later=st.integers(0, 2),
)


@dataclass(frozen=True, slots=True)
class Cluster:
    replicas: tuple[Replica, ...]
    leader: int

    @property
    def followers(self) -> list[Replica]:
        return [one for number, one in enumerate(self.replicas) if number != self.leader]


def cluster_after(terms: list[Term]) -> Cluster:
    """Play the terms. Any replica may be elected, so elections are as unclean as they come."""
    replicas = [Replica()] * REPLICAS
    epoch = LeaderEpoch(0)
    values = count()

    def write(leader: int, records: int) -> None:
        written = tuple((epoch, next(values)) for _ in range(records))
        replicas[leader] = replicas[leader].with_records(written)

    for term in terms:
        if term.lost:
            loser = replicas[term.loser]
            replicas[term.loser] = loser.cut(max(0, loser.end - term.lost))
        epoch = LeaderEpoch(epoch + 1 + term.epochs_skipped)
        replicas[term.leader] = replicas[term.leader].elected(epoch)
        write(term.leader, term.written)
        if term.copier != term.leader:
            replicas[term.copier] = copied(
                replicas[term.copier], replicas[term.leader], records=term.copied
            )
        write(term.leader, term.written_later)
    return Cluster(tuple(replicas), terms[-1].leader)


clusters = st.lists(terms, min_size=4, max_size=10).map(cluster_after)


@pytest.mark.property
@given(clusters)
def test_a_history_kept_incrementally_is_that_of_the_log(cluster: Cluster) -> None:
    for one in cluster.replicas:
        assert one.history == one.history_by_scan()


@pytest.mark.property
@searched
@given(clusters)
def test_a_follower_truncates_to_exactly_the_common_prefix_with_its_leader(
    cluster: Cluster,
) -> None:
    leader = cluster.replicas[cluster.leader]
    for follower in cluster.followers:
        after, _ = follow(follower, leader)
        assert after.log == follower.log[: shared_length(follower.log, leader.log)]
        assert follow(after, leader) == (after, 0), "after truncation it is served"


@pytest.mark.property
@given(clusters, st.integers(0, 30))
def test_a_follower_that_has_a_prefix_of_the_leader_never_truncates(
    cluster: Cluster, length: int
) -> None:
    leader = cluster.replicas[cluster.leader]
    follower = Replica().with_records(leader.log[:length])
    assert follow(follower, leader) == (follower, 0)


@pytest.mark.property
@given(clusters, st.integers(0, 30))
def test_retention_leaves_the_history_of_what_is_left(cluster: Cluster, deleted: int) -> None:
    for one in cluster.replicas:
        settled = one.cut(one.end)
        log_start = min(deleted, max(0, settled.end - 1))
        left = Replica(log=settled.log[log_start:]).history_by_scan()
        expected = history(*((entry.epoch, entry.start + log_start) for entry in left.entries))
        assert settled.history.truncate_start(Offset(log_start)) == expected


@pytest.mark.property
@given(clusters, st.integers(0, 30))
def test_the_history_names_the_epoch_of_each_record_that_is_left(
    cluster: Cluster, deleted: int
) -> None:
    for one in cluster.replicas:
        settled = one.cut(one.end)
        log_start = min(deleted, max(0, settled.end - 1))
        left = settled.history.truncate_start(Offset(log_start))
        for offset, (epoch, _) in enumerate(settled.log):
            expected = None if offset < log_start else epoch
            assert left.epoch_at(Offset(offset)) == expected
