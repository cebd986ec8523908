"""An Insync broker that is rebuilding its replicas, and the tool that watches it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from insync.cli import reassign_do, reassign_end
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves.bootstrap import Outcome, WatchOptions, bootstrap
from insync.moves.journal import JournalFile
from insync.moves.planning import UnsafeThrottle
from insync.rules.refusals import Refusal
from insync.rules.throttle_lease import HOLD_MS
from insync.sim.cluster import Cluster
from support.moves.simulated_brokers import (
    CLIENT,
    JOURNAL,
    LEASE,
    forget_leases,
    options,
    run_tool,
    throttles,
    to,
)
from support.sim.few_brokers import THREE, TWO, client_of, isr_of, state_of, until


@pytest.fixture(params=[LEASE, JOURNAL])
def kept_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == JOURNAL:
        forget_leases(monkeypatch)
    return str(request.param)


async def behind(cluster: Cluster) -> None:
    """Broker 2 cannot fetch, and leaves the ISR."""
    cluster.network.cut(2, 1)
    await client_of(cluster, 103).append_once([b"more"])
    await until(lambda: isr_of(cluster) == [1], within_s=60)


def bootstrapping(
    cluster: Cluster,
    admin: Admin,
    folder: Path,
    *,
    warn: Callable[[str], None] = pytest.fail,
    gives_up_after_ms: int | None = None,
    check: Callable[[], Awaitable[None]] | None = None,
) -> asyncio.Task[Any]:
    async def check_nothing() -> None:
        pass

    async def run() -> Any:
        now = await clusters.read_cluster(admin)
        return await bootstrap(
            admin,
            JournalFile(folder, now.cluster_id),
            now,
            TWO,
            bytes_per_s=1_000_000,
            watching=WatchOptions(
                show=lambda _: None,
                warn=warn,
                clock_ms=cluster.loop.clock_ms,
                stuck_after_ms=30_000,
                gives_up_after_ms=gives_up_after_ms,
            ),
            check=check or check_nothing,
        )

    return asyncio.create_task(run())


SET = {
    "/config/brokers/1": {"leader.replication.throttled.rate": "1000000"},
    "/config/brokers/2": {"follower.replication.throttled.rate": "1000000"},
    "/config/topics/t": {
        "leader.replication.throttled.replicas": "0:1",
        "follower.replication.throttled.replicas": "0:2",
    },
}


def test_a_bootstrapping_broker_is_held_back_until_it_has_caught_up(
    tmp_path: Path, kept_by: str
) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await behind(cluster)
        task = bootstrapping(cluster, admin, tmp_path)
        await asyncio.sleep(5)
        assert throttles(cluster) == SET
        assert bool(list(tmp_path.glob("*.json"))) is (kept_by == JOURNAL)
        with pytest.raises(Refusal, match=r"another (tool|insync)"):
            await bootstrapping(cluster, admin, tmp_path)
        if kept_by == LEASE:
            swept = await reassign_end.sweep(admin, options(tmp_path, {}, force=True))
            assert all(each["needed"] for each in swept.data["others"])
            assert len(swept.data["others"]) == 4
            assert "Needed by moves under way" in swept.text
            await reassign_end.verify(admin, options(tmp_path, to(1, 2)))
            await reassign_end.cancel(admin, options(tmp_path, to(1, 2)))
            assert throttles(cluster) == SET
        await asyncio.sleep(2 * HOLD_MS / 1_000)
        assert throttles(cluster) == SET
        assert not task.done()
        cluster.network.heal()
        outcome, ended = await task
        assert outcome is Outcome.CAUGHT_UP
        assert isr_of(cluster) == [1, 2]
        assert ended.problems == ()
        assert throttles(cluster) == {}

    run_tool(scenario)


@pytest.mark.usefixtures("kept_by")
def test_an_interrupted_tool_removes_the_throttle(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await behind(cluster)
        task = bootstrapping(cluster, admin, tmp_path)
        await asyncio.sleep(5)
        assert throttles(cluster) == SET
        task.cancel()
        outcome, _ = await task
        assert outcome is Outcome.STOPPED
        assert throttles(cluster) == {}
        assert list(tmp_path.glob("*.json")) == []
        cluster.network.heal()

    run_tool(scenario)


@pytest.mark.usefixtures("kept_by")
def test_the_tool_gives_up_a_broker_that_does_not_return_after_its_limit(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.kill(2)
        await until(lambda: isr_of(cluster) == [1])
        before_s = cluster.loop.time()
        task = bootstrapping(
            cluster, admin, tmp_path, warn=lambda _: None, gives_up_after_ms=60_000
        )
        await asyncio.sleep(50)
        assert throttles(cluster) != {}
        outcome, _ = await task
        assert outcome is Outcome.GIVEN_UP
        assert 60 <= cluster.loop.time() - before_s < 75
        assert throttles(cluster) == {}

    run_tool(scenario)


def test_a_broker_is_not_down_because_the_cluster_does_not_respond(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await behind(cluster)
        task = bootstrapping(
            cluster, admin, tmp_path, warn=lambda _: None, gives_up_after_ms=20_000
        )
        await asyncio.sleep(5)
        for number in cluster.brokers:
            cluster.network.cut(CLIENT, number)
        await asyncio.sleep(60)
        cluster.network.heal()
        outcome, _ = await task
        assert outcome is Outcome.CAUGHT_UP

    run_tool(scenario)


def test_the_throttle_ends_soon_after_the_tool_that_holds_it(tmp_path: Path) -> None:
    """Killed, or disconnected: it cannot renew the throttle, nor release it."""
    warnings_logged: list[str] = []

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await behind(cluster)
        task = bootstrapping(cluster, admin, tmp_path, warn=warnings_logged.append)
        await asyncio.sleep(5)
        assert throttles(cluster) == SET
        for number in cluster.brokers:
            cluster.network.cut(CLIENT, number)
        task.cancel()
        await until(lambda: throttles(cluster) == {}, within_s=HOLD_MS / 1_000 + 2)
        assert isr_of(cluster) == [1], "it is as far behind as before"
        outcome, ended = await task
        assert (outcome, ended.problems) == (Outcome.STOPPED, ())
        assert "it ends by itself" in warnings_logged[-1]
        cluster.network.heal()

    run_tool(scenario)


def test_a_throttle_that_lapsed_is_held_again(tmp_path: Path) -> None:
    warnings_logged: list[str] = []

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await behind(cluster)
        task = bootstrapping(cluster, admin, tmp_path, warn=warnings_logged.append)
        await asyncio.sleep(5)
        for number in cluster.brokers:
            cluster.network.cut(CLIENT, number)
        await until(lambda: throttles(cluster) == {}, within_s=HOLD_MS / 1_000 + 2)
        for number in cluster.brokers:
            cluster.network.mend(CLIENT, number)
        await until(lambda: throttles(cluster) == SET, within_s=60)
        assert not task.done()
        cluster.network.heal()
        outcome, _ = await task
        assert outcome is Outcome.CAUGHT_UP
        assert throttles(cluster) == {}

    run_tool(scenario)


@pytest.mark.usefixtures("kept_by")
def test_the_throttle_is_set_before_it_is_checked_and_removed_if_it_cannot_work(
    tmp_path: Path,
) -> None:
    """The broker may be copying already: measuring first would leave it unthrottled so long."""
    throttles_at_check: list[dict[str, dict[str, str]]] = []

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await behind(cluster)

        async def check() -> None:
            throttles_at_check.append(throttles(cluster))
            await asyncio.sleep(10)
            throttles_at_check.append(throttles(cluster))
            raise UnsafeThrottle("it never ends")

        with pytest.raises(UnsafeThrottle):
            await bootstrapping(cluster, admin, tmp_path, check=check)
        assert throttles_at_check == [SET, SET]
        assert throttles(cluster) == {}
        assert list(tmp_path.glob("*.json")) == []
        cluster.network.heal()

    run_tool(scenario)


@pytest.mark.usefixtures("kept_by")
def test_leaders_that_change_meanwhile_are_added_and_removed_with_the_rest(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await reassign_do.execute(
            admin, options(tmp_path, to(1, 2, 3), throttle_bytes_per_s=None, starts=True)
        )
        await until(lambda: sorted(isr_of(cluster)) == [1, 2, 3], within_s=60)
        cluster.network.cut(2, 1)
        cluster.network.cut(2, 3)
        await client_of(cluster, 103).append_once([b"more"])
        await until(lambda: sorted(isr_of(cluster)) == [1, 3], within_s=60)
        task = bootstrapping(cluster, admin, tmp_path, warn=lambda _: None)
        await asyncio.sleep(5)
        assert throttles(cluster) == SET
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] == THREE, within_s=60)
        both = {
            **SET,
            "/config/brokers/3": {"leader.replication.throttled.rate": "1000000"},
            "/config/topics/t": {
                "leader.replication.throttled.replicas": "0:1,0:3",
                "follower.replication.throttled.replicas": "0:2",
            },
        }
        await until(lambda: throttles(cluster) == both, within_s=HOLD_MS / 1_000)
        await cluster.start(1)
        cluster.network.heal()
        outcome, ended = await task
        assert (outcome, ended.problems) == (Outcome.CAUGHT_UP, ())
        assert throttles(cluster) == {}
        assert list(tmp_path.glob("*.json")) == []

    run_tool(scenario)
