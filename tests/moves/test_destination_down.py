"""A move whose destination dies and does not return: the tool waits, or gives up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from insync.cli import reassign_do, reassign_end
from insync.client import reassignments
from insync.client.admin import Admin, NewTopic
from insync.moves import cluster as clusters
from insync.moves.plan_file import Plan
from insync.rules.values import BrokerId, PartitionId
from insync.sim.cluster import Cluster
from support.moves.simulated_brokers import (
    JOURNAL,
    LEASE,
    PARTITION,
    forget_leases,
    options,
    run_tool,
    throttles,
    to,
)
from support.sim.few_brokers import TWO, state_of, until


@pytest.fixture(params=[LEASE, JOURNAL])
def kept_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == JOURNAL:
        forget_leases(monkeypatch)
    return str(request.param)


@pytest.fixture
def _virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line use the scenario's clock."""
    monkeypatch.setattr(
        reassign_do, "monotonic_ms", lambda: int(asyncio.get_running_loop().time() * 1_000)
    )


@pytest.mark.usefixtures("_virtual_clock")
def test_a_watch_with_a_limit_gives_up_a_destination_that_is_down(
    tmp_path: Path, kept_by: str
) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        ours = options(tmp_path, to(3, 4), watches=True, gives_up_after_ms=20_000)
        watching = asyncio.create_task(reassign_do.execute(admin, ours))
        await until(lambda: state_of(cluster)["adding"] == [3, 4])
        await asyncio.sleep(30)
        assert not watching.done(), "it is live and receives nothing: that may change"
        cluster.kill(3)
        killed_s = cluster.loop.time()
        answer = await watching
        assert 20 <= cluster.loop.time() - killed_s < 40
        assert answer.exit_code == 1
        assert answer.text == f"Given up: {answer.data['given_up']}\n"
        assert answer.text.startswith(
            "Given up: broker 3 is down, and t-0 cannot move without it; "
        )
        assert "--cancel" in answer.text
        assert throttles(cluster) != {}, "the move goes on"
        cancelled = await reassign_end.cancel(admin, ours)
        if kept_by == JOURNAL:
            assert "on broker 3 stays" in cancelled.text, "only broker 3 can remove it"
            await cluster.start(3)
            await asyncio.sleep(1)
            await reassign_end.sweep(admin, ours)
        await until(lambda: throttles(cluster) == {})

    run_tool(scenario)


@pytest.mark.usefixtures("_virtual_clock")
def test_a_watch_without_a_limit_waits_for_the_destination(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.network.cut(3, 1)
        ours = options(tmp_path, to(3, 4), watches=True)
        watching = asyncio.create_task(reassign_do.execute(admin, ours))
        await until(lambda: state_of(cluster)["adding"] == [3, 4])
        cluster.kill(3)
        await asyncio.sleep(120)
        assert not watching.done()
        cluster.network.heal()
        await cluster.start(3)
        answer = await watching
        assert answer.exit_code == 0
        assert throttles(cluster) == {}

    run_tool(scenario)


@pytest.mark.usefixtures("_virtual_clock")
def test_a_watch_gives_up_only_when_nothing_else_is_left_to_move(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        other = "u", PartitionId(0)
        await admin.create_topic(NewTopic(name="u", assignment=[[1, 2]]))
        await asyncio.sleep(1)
        for number in (3, 4):
            cluster.network.cut(number, 1)
        plan: Plan = {PARTITION: (BrokerId(3), TWO), other: (BrokerId(4), TWO)}
        ours = options(tmp_path, plan, watches=True, gives_up_after_ms=20_000)
        watching = asyncio.create_task(reassign_do.execute(admin, ours))
        await until(lambda: state_of(cluster)["adding"] == [3])
        cluster.kill(3)
        await asyncio.sleep(60)
        assert not watching.done(), "u may get on"
        cluster.network.mend(4, 1)
        answer = await watching
        assert answer.data["given_up"].startswith("broker 3 is down, and t-0 cannot move")

    run_tool(scenario)


@pytest.mark.usefixtures("_virtual_clock")
def test_a_partition_without_a_leader_waits_for_replicas_that_could_lead(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await move_to_one_alone(admin)
        cluster.network.cut(3, 2)
        ours = options(tmp_path, to(3), watches=True, gives_up_after_ms=20_000)
        watching = asyncio.create_task(reassign_do.execute(admin, ours))
        await until(lambda: state_of(cluster)["adding"] == [3])
        cluster.kill(2)
        answer = await watching
        assert answer.data["given_up"].startswith(
            "broker 2 is down, and t-0 cannot move without it"
        )

    run_tool(scenario)


async def move_to_one_alone(admin: Admin) -> None:
    """Broker 2 has the only replica, so that its death leaves no leader; the tool uses broker 1."""
    await reassignments.alter(admin, to(2), timeout_ms=1_000)
    while (await clusters.read_cluster(admin)).partitions[PARTITION].replicas != (TWO,):
        await asyncio.sleep(0.1)
