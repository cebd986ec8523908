"""Reassignments on Insync's brokers, on virtual time: one request, a lease, no journal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from insync.cli import reassign_do, reassign_end, reassign_plan
from insync.client import reassignments
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Refused
from insync.metadata import paths
from insync.moves.execute import MoveRefused, MovesUnderWay
from insync.moves.plan_file import Plan
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import BadPlan, Refusal
from insync.rules.values import BrokerId, PartitionId
from insync.sim.cluster import Cluster
from support.moves.simulated_brokers import (
    JOURNAL,
    LEASE,
    forget_leases,
    options,
    run_tool,
    throttles,
    to,
)
from support.sim.few_brokers import ONE, TWO, state_of, until


def test_the_cluster_removes_the_throttle_of_a_move_that_was_watched(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        answer = await reassign_do.execute(admin, options(tmp_path, to(3, 4), watches=True))
        assert answer.exit_code == 0
        assert answer.data["standing"] == {"t-0": "completed"}
        assert answer.data["throttle_ends_by_itself"]
        assert throttles(cluster) == {}
        assert list(tmp_path.glob("*.json")) == [], "nothing to remember here"

    run_tool(scenario)


def test_the_tool_dies_and_the_throttle_ends_with_the_move(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        await reassign_do.execute(admin, options(tmp_path, to(3, 2)))
        admin.connections.close()
        lists = throttles(cluster)[paths.topic_config("t")]
        assert lists["leader.replication.throttled.replicas"] == "0:1,0:2"
        assert lists["follower.replication.throttled.replicas"] == "0:3"
        cluster.network.heal()
        await until(lambda: throttles(cluster) == {}, within_s=60)

    run_tool(scenario)


def test_a_second_tool_is_refused_and_cancel_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        ours = options(tmp_path, to(3, 2))
        await reassign_do.execute(admin, ours)
        before = throttles(cluster)
        await asyncio.sleep(1)
        with pytest.raises(MovesUnderWay, match=r"a reassignment is running \(t-0\)"):
            await reassign_do.execute(admin, options(tmp_path, to(4, 2)))
        assert throttles(cluster) == before
        answer = await reassign_end.verify(admin, ours)
        assert answer.data["standing"] == {"t-0": "in progress"}
        assert throttles(cluster) == before
        answer = await reassign_end.cancel(admin, ours)
        assert answer.data["cancelled"] == ["t-0"]
        assert throttles(cluster) == {}
        cluster.network.heal()

    run_tool(scenario)


@pytest.mark.parametrize("kept_by", [LEASE, JOURNAL])
@pytest.mark.parametrize("action", ["cancel", "verify while it moves", "verify when it is done"])
def test_a_preserved_throttle_stays_until_it_is_verified_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, kept_by: str
) -> None:
    if kept_by == JOURNAL:
        forget_leases(monkeypatch)
    # A lease ends with its moves: then there is nothing that could be preserved.
    is_too_late = kept_by == LEASE and action == "verify when it is done"

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        ours = options(tmp_path, to(3, 2))
        await reassign_do.execute(admin, ours)
        await asyncio.sleep(1)
        before = {} if is_too_late else throttles(cluster)
        if action == "verify when it is done":
            cluster.network.heal()
            await until(lambda: moved(cluster) == [3, 2], within_s=60)
            await asyncio.sleep(1)
        end_move = reassign_end.cancel if action == "cancel" else reassign_end.verify
        answer = await end_move(admin, replace(ours, preserves_throttles=True))
        assert answer.exit_code == 0
        assert answer.data["throttle_preserved"] is not is_too_late
        assert ("The throttle stays set" in answer.text) is not is_too_late
        assert answer.data["throttle_cleared"] == {"brokers": [], "topics": []}
        cluster.network.heal()
        await until(lambda: sorted(moved(cluster)) in ([1, 2], [2, 3]), within_s=60)
        await asyncio.sleep(5)
        answer = await reassign_end.sweep(admin, replace(ours, force=False))
        assert answer.data["throttle_cleared"] == {"brokers": [], "topics": []}
        assert bool(answer.data["others"]) is not is_too_late, "it is listed, and not removed"
        assert throttles(cluster) == before
        answer = await reassign_end.verify(admin, ours)
        assert not answer.data["throttle_preserved"]
        assert throttles(cluster) == {}

    run_tool(scenario)


def test_preserve_throttles_has_no_effect_without_a_throttle(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        await reassign_do.execute(admin, options(tmp_path, to(3, 2), throttle_bytes_per_s=None))
        await asyncio.sleep(1)
        ours = options(tmp_path, to(3, 2), preserves_throttles=True)
        answer = await reassign_end.cancel(admin, ours)
        assert answer.data["cancelled"] == ["t-0"]
        assert not answer.data["throttle_preserved"]
        assert answer.text == "Successfully cancelled partition reassignments for: t-0\n"
        answer = await reassign_end.cancel(admin, ours)
        assert answer.data["cancelled"] == []
        cluster.network.heal()

    run_tool(scenario)


def test_the_throttle_is_changed_while_it_runs(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        await reassign_do.execute(admin, options(tmp_path, to(3, 2)))
        await asyncio.sleep(1)
        more = options(tmp_path, to(3, 2), throttle_bytes_per_s=2_000_000, is_additional=True)
        await reassign_do.execute(admin, more)
        rates = {rate for each in throttles(cluster).values() for rate in each.values()}
        assert "2000000" in rates
        assert "1000000" not in rates
        cluster.network.heal()
        await until(lambda: throttles(cluster) == {}, within_s=60)

    run_tool(scenario)


def test_refused_plans_change_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        plans: list[Plan] = [to(9), {("gone", PartitionId(0)): (ONE,)}]
        for plan in plans:
            with pytest.raises((BadPlan, MoveRefused)):
                await reassign_do.execute(admin, options(tmp_path, plan))
        assert throttles(cluster) == {}
        assert (await reassign_do.status(admin, options(tmp_path, {}))).data == []

    run_tool(scenario)


@pytest.mark.parametrize("throttle", [None, 1_000_000])
def test_a_store_out_of_reach_for_a_moment_is_waited_for(
    tmp_path: Path, throttle: int | None
) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        for number in cluster.brokers:
            cluster.cut_off_from_store(number)
        ours = options(tmp_path, to(3, 2), throttle_bytes_per_s=throttle)
        executing = asyncio.create_task(reassign_do.execute(admin, ours))
        await asyncio.sleep(1)
        assert not executing.done()
        for number in cluster.brokers:
            cluster.reconnect_to_store(number)
        assert (await executing).data["started"] == ["t-0"]
        await until(lambda: moved(cluster) == [3, 2], within_s=60)
        await until(lambda: throttles(cluster) == {}, within_s=60)

    run_tool(scenario)


def test_a_plan_is_generated_and_estimated(tmp_path: Path) -> None:
    async def scenario(_: Cluster, admin: Admin) -> None:
        await asyncio.sleep(20)  # until the brokers report that nothing comes in
        answer = await reassign_plan.generate(admin, options(tmp_path, {}))
        assert answer.data["partitions_to_move"] == 0, "one partition is balanced wherever it is"
        ours = options(
            tmp_path,
            to(3, 2),
            finish_in_s=60,
            network_bytes_per_s=125_000_000,
            max_impact=Fraction(3, 10),
        )
        answer = await reassign_plan.plan(admin, ours)
        copied = answer.data["bytes_to_move"]
        impact = answer.data["throttles"]["max_impact"]["bytes_per_s"]
        assert impact == 37_500_000 * copied // (copied + 3_000_000), "one replica to copy"
        assert answer.data["throttles"]["given"]["verdict"] == "safe"
        assert 10_000 < answer.data["bytes_to_move"] < 30_000
        in_time = answer.data["throttles"]["finish_in"]
        assert in_time["bytes_per_s"] == -(-answer.data["bytes_to_move"] // 60), "nothing comes in"
        assert in_time["verdict"] == "safe"
        assert 59_000 < in_time["per_broker_time_ms"] <= 60_000
        assert answer.data["brokers"][0]["out_bytes"] == answer.data["bytes_to_move"]
        assert "MoveRatio" in answer.text

    run_tool(scenario)


# As on brokers that have no leases: a journal.


@pytest.fixture
def _no_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_leases(monkeypatch)


@pytest.mark.usefixtures("_no_leases")
def test_a_watching_tool_removes_its_journalled_throttle(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        answer = await reassign_do.execute(admin, options(tmp_path, to(3, 4), watches=True))
        assert answer.exit_code == 0
        assert answer.data["throttle_cleared"] == {"brokers": [1, 2, 3, 4], "topics": ["t"]}
        assert throttles(cluster) == {}
        assert list(tmp_path.glob("*.json")) == []

    run_tool(scenario)


@pytest.mark.usefixtures("_no_leases")
def test_sweep_removes_a_journalled_throttle_when_the_move_is_over(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        ours = options(tmp_path, to(3, 2))
        answer = await reassign_do.execute(admin, ours)
        assert not answer.data["throttle_ends_by_itself"]
        assert "You must run --verify" in answer.text
        await asyncio.sleep(1)
        answer = await reassign_end.sweep(admin, ours)
        assert answer.data["throttle_kept_for"] == ["t-0"]
        assert throttles(cluster) != {}
        cluster.network.heal()
        await until(lambda: moved(cluster) == [3, 2], within_s=60)
        await asyncio.sleep(1)
        assert throttles(cluster) != {}, "it is not removed yet"
        answer = await reassign_end.sweep(admin, ours)
        assert answer.data["throttle_cleared"] == {"brokers": [1, 2, 3], "topics": ["t"]}
        assert throttles(cluster) == {}
        assert (await reassign_end.sweep(admin, ours)).text == "No throttle is left behind.\n"

    run_tool(scenario)


def moved(cluster: Cluster) -> list[int]:
    state = state_of(cluster)
    return [] if state["adding"] or state["removing"] else state["replicas"]


@pytest.mark.usefixtures("_no_leases")
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_refused_submission_leaves_neither_throttle_nor_half_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    """As in Apache Kafka, where a plan may be accepted in part."""
    really = reassignments.alter
    other = "u", PartitionId(0)
    refused = Refused(ErrorCode.invalid_replica_assignment, "not today")

    async def alter(
        admin: Admin, targets: Mapping[TopicPartition, Any], *, timeout_ms: int
    ) -> reassignments.Outcome:
        if other not in targets:
            return await really(admin, targets, timeout_ms=timeout_ms)
        if is_whole:
            raise refused
        rest = {key: each for key, each in targets.items() if key != other}
        await really(admin, rest, timeout_ms=timeout_ms)
        return reassignments.Outcome(refused={other: refused})

    monkeypatch.setattr(reassignments, "alter", alter)

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        await admin.create_topic(NewTopic(name="u", assignment=[[1, 2]]))
        await asyncio.sleep(1)
        plan = {**to(3, 2), other: (BrokerId(3), TWO)}
        with pytest.raises(Refusal, match="not today"):
            await reassign_do.execute(admin, options(tmp_path, plan))
        await asyncio.sleep(1)
        assert await admin.moves() == {}
        assert throttles(cluster) == {}
        assert list(tmp_path.glob("*.json")) == []
        cluster.network.heal()

    run_tool(scenario)
