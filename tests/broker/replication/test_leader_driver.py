"""The driver of the leader's state machine, where its effects or its surroundings fail."""

from __future__ import annotations

import asyncio
import logging

import pytest

from insync.broker.replication.isr_commits import IsrCommits
from insync.broker.replication.replica import Replica
from insync.metadata.store import Write
from insync.rules.isr import Stable
from insync.rules.leadership import Leadership, Rule
from insync.rules.policy import CaughtUp
from insync.rules.values import LeaderEpoch, Offset
from insync.sim.cluster import Cluster
from insync.telemetry.recorder import Recorder
from insync.telemetry.rows import IsrRow
from insync.telemetry.schemas import ISR
from support.sim.few_brokers import (
    KEY,
    ONE,
    PATH,
    TWO,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    term_of,
    topic,
    until,
)


class Raises:
    """A fetch whose wake-up has a bug."""

    def on_partition_changed(self, _replica: Replica, *, grew: bool, committed: bool) -> None:
        raise ZeroDivisionError(f"{grew} {committed}")


def test_an_effect_that_fails_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await client_of(cluster).append([b"x"] * 10)
        cluster.network.cut(1, 3)
        replica_of(cluster, 1).watch(Raises())
        await client_of(cluster).append_once([b"more"])
        assert "LeaderDriver._perform" in caplog.text
        await until(lambda: isr_of(cluster) == [1, 2])

    with caplog.at_level(logging.ERROR):
        play(scenario)


def test_a_session_that_ends_when_a_deadline_is_due_counts_first() -> None:
    """`lag-begin`: an idle follower is in sync by the last request of its session."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        await asyncio.sleep(4)
        replica = replica_of(cluster, 1)
        session = replica.sessions[TWO]
        due_ms = term_of(cluster).wake_at_ms
        assert due_ms - cluster.loop.clock_ms() <= 1_500
        replicas = node_of(cluster, 1).replicas
        clock_ms = replicas.loop.clock_ms
        replicas.loop.clock_ms = lambda: max(due_ms, clock_ms())  # before the timer has run
        session._detach(next(iter(session._attached)))  # type: ignore[attr-defined]
        assert isinstance(term_of(cluster).isr, Stable)
        await asyncio.sleep(0.1)
        assert isr_of(cluster) == [1, 2]

    play(scenario, settings={"replica.in.sync.policy": "lag-begin"}, brokers=2)


def test_a_leader_that_missed_a_state_reads_it_before_it_proposes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await client_of(cluster).append([b"x"] * 10)
        replicas = node_of(cluster, 1).replicas
        monkeypatch.setattr(replicas, "_apply_state", lambda _key: None)
        entry = cluster.tree.entries[PATH]
        cluster.tree.step([Write(entry.path, entry.value, entry.version)], None)
        await asyncio.sleep(0.1)
        monkeypatch.undo()
        assert term_of(cluster).isr.version == entry.version
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"more"])
        await until(lambda: isr_of(cluster) == [1, 2])

    play(scenario)


def test_a_change_proposed_again_at_another_version_was_decided_the_first_time() -> None:
    """So that the telemetry replays: the rules decide it when it was first due."""
    recorder = Recorder(broker=ONE, anchor_ms=0, buffer_bytes=1 << 20)
    record = recorder.lead(KEY, LeaderEpoch(0))
    assert record is not None
    both = frozenset({ONE, TWO})

    def proposal(version: int) -> Leadership:
        return Leadership.begin(
            rule=Rule(policy=CaughtUp(lag_time_max_ms=1_000), fetch_wait_max_ms=100),
            leader=ONE,
            epoch=LeaderEpoch(0),
            replicas=(ONE, TWO),
            members=both,
            end=Offset(0),
            high_watermark=Offset(0),
            registered={},
            now_ms=0,
            version=version,
        ).propose_leave({TWO})

    record.record_proposal(proposal(5), "silent", now_ms=1_001)
    record.record_proposal(proposal(6), "silent", now_ms=1_061)
    record.record_isr(proposal(6), both, both - {TWO}, replicas=(ONE, TWO), version=7, now_ms=1_070)
    (row,) = recorder.take()[ISR.name]
    assert isinstance(row, IsrRow)
    assert row.decided_at_ms == 1_001


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_whose_session_ended_in_a_stall_evicts_no_follower(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timers are due when it runs again, before it has registered again."""
    proposed: list[int] = []

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"more"])
        assert term_of(cluster).wake_at_ms < cluster.loop.clock_ms() + 2_000

        def noted(commits: IsrCommits, replica: Replica, proposal: Leadership) -> None:
            proposed.append(proposal.leader)
            commit(commits, replica, proposal)

        commit = IsrCommits.commit
        monkeypatch.setattr(IsrCommits, "commit", noted)
        # The broker does not learn that its session ended, or that another one leads.
        cluster.brokers[1].store_faults.is_unreadable = True
        cluster.pause(1)
        await asyncio.sleep(4.0)
        cluster.resume(1)
        await asyncio.sleep(0.01)
        assert replica_of(cluster, 1).term is None

    play(scenario, seed=seed)
    assert 1 not in proposed
