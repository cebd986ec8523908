"""Every in-sync policy in running brokers, on virtual time: which follower leaves, and when."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from insync.broker.admin.topics import RequestedTopic
from insync.broker.replication.in_sync import Rules, rule_of
from insync.broker.settings import Settings
from insync.node.node import Node
from insync.rules.isr import Stable
from insync.rules.leadership import NO_WAKE_MS
from insync.rules.refusals import BadSetting
from insync.rules.settings import POLICY_NAMES
from insync.sim.checks import Monitor
from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from support.sim.few_brokers import (
    FOUR,
    ONE,
    THREE,
    TWO,
    client_of,
    deadlines_of,
    isr_of,
    node_of,
    play,
    replica_of,
    state_of,
    term_of,
    topic,
    until,
    write_on,
)

LAG_MS = 1_500  # the simulation's own


@pytest.mark.parametrize("phase_ms", [0, 137, 411])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_follower_that_stops_is_evicted_on_its_deadline(policy: str, phase_ms: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        writing = cluster.loop.create_task(write_on(cluster))
        await asyncio.sleep(1.0 + phase_ms / 1_000)
        cluster.network.cut(1, 2)
        stopped_at_ms = cluster.loop.clock_ms()
        await asyncio.sleep(0.5)
        due_ms = deadlines_of(cluster)[TWO]
        # Two fetches at most are older than the cut, and each took at most the wait.
        assert stopped_at_ms - 410 <= due_ms - LAG_MS - 1 <= stopped_at_ms + 10
        out_at_ms = await until(lambda: not isinstance(term_of(cluster).isr, Stable))
        assert out_at_ms == due_ms
        await until(lambda: isr_of(cluster) == [1, 3], within_s=0.1)
        writing.cancel()

    play(scenario, settings={"replica.in.sync.policy": policy})


def test_a_topic_has_a_policy_and_a_lag_time_of_its_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(
            cluster,
            config={"replica.in.sync.policy": "true-lag", "replica.lag.time.max.ms": "700"},
        )
        policy = term_of(cluster).policy
        assert (policy.name, policy.lag_time_max_ms) == ("true-lag", 700)

    play(scenario, settings={"replica.in.sync.policy": "lag-begin"})


def test_a_burst_evicts_all_followers_under_messages_and_none_under_caught_up() -> None:
    """The article: ten times the messages in one request."""
    seen: dict[str, list[int]] = {}

    def burst(policy: str) -> None:
        async def scenario(cluster: Cluster) -> None:
            await topic(cluster)
            client = client_of(cluster)
            smallest = [1, 2, 3]
            for size in (10, 10, 10, 100):
                await client.append_once([b"x"] * size)
                for _ in range(200):
                    smallest = min(smallest, isr_of(cluster), key=len)
                    await asyncio.sleep(0.001)
            seen[policy] = smallest
            await until(lambda: isr_of(cluster) == [1, 2, 3])

        settings = {"replica.in.sync.policy": policy, "replica.lag.max.messages": "20"}
        play(scenario, settings=settings)

    burst("messages")
    burst("caught-up")
    assert seen == {"messages": [1], "caught-up": [1, 2, 3]}


@pytest.mark.parametrize(("policy", "stays"), [("lag-begin", False), ("caught-up", True)])
def test_many_small_requests(*, policy: str, stays: bool) -> None:
    """KAFKA-4485's second problem: never at the very end, and never far from it."""

    async def scenario(cluster: Cluster) -> None:
        for follower in (2, 3):
            cluster.network.slow(1, follower, latency_s_max=0.03)
        await topic(cluster)
        writing = cluster.loop.create_task(write_on(cluster, every_s=0.0005))
        smallest = 3
        for _ in range(4 * LAG_MS // 10):
            await asyncio.sleep(0.01)
            smallest = min(smallest, len(isr_of(cluster)))
        writing.cancel()
        assert (smallest == 3) == stays

    play(scenario, settings={"replica.in.sync.policy": policy})


@pytest.mark.parametrize("policy", ["messages", "true-lag"])
def test_no_follower_joins_below_the_start_offset_of_the_epoch(policy: str) -> None:
    """A new leader's watermark may be behind what its predecessor acknowledged.

    Broker 3 has all that broker 2 knows to be committed, and by its policy it is in sync. It lacks
    a record that was acknowledged; broker 4, which has it, has not spoken to broker 2 yet.
    """

    async def scenario(cluster: Cluster) -> None:
        monitor = Monitor(cluster, unclean=False)
        await topic(cluster, replicas=(ONE, TWO, THREE, FOUR))
        client = client_of(cluster)
        for _ in range(3):
            await client.append([b"old"])
        await until(lambda: replica_of(cluster, 3).log.end == 3)
        await until(lambda: replica_of(cluster, 2).high_watermark == 3)
        cluster.network.cut(1, 3)
        cluster.network.cut(2, 3)
        cluster.network.cut(2, 4)
        cluster.network.slow(1, 2, latency_s_max=0.1)
        writing = cluster.loop.create_task(client.append([b"new"]))
        # Broker 3 leaves, so the record is committed; broker 2 has it and has not learned that.
        await until(lambda: replica_of(cluster, 1).high_watermark == 4, within_s=20)
        monitor.check_brokers()
        assert (replica_of(cluster, 2).log.end, replica_of(cluster, 2).high_watermark) == (4, 3)
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] == 2)
        cluster.network.slow(2, 3, latency_s_max=0.2)
        cluster.network.mend(2, 3)
        for _ in range(1_000):
            monitor.check_brokers()
            monitor.raise_failure()
            await asyncio.sleep(0.001)
        cluster.network.heal()
        await until(lambda: isr_of(cluster) == [2, 3, 4])
        writing.cancel()

    settings = {"replica.in.sync.policy": policy, "replica.lag.max.messages": "1000"}
    play(scenario, settings=settings, brokers=4)


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replica.in.sync.policy": "sometimes"}, "use messages or lag-begin or caught-up"),
        ({"replica.lag.max.messages": "-1"}, "between 0 and"),
        ({"follower.fetch.process.time.max.ms": "0"}, "between 1 and"),
        ({"replica.lag.time.max.ms": "500"}, r"replica\.fetch\.wait\.max\.ms is 500"),
        (
            {
                "replica.in.sync.policy": "messages",
                "follower.fetch.pending.reads.insync.enable": "true",
            },
            "has no meaning with replica.in.sync.policy=messages",
        ),
    ],
)
def test_a_broker_refuses_settings_that_contradict_each_other(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(BadSetting, match=message):
        Node(Settings({"node.id": "1", **settings}), None)  # type: ignore[arg-type]


def test_every_policy_can_be_set_through_the_settings_table() -> None:
    assert rule_of(Settings({})).policy.name == "caught-up"
    pending = rule_of(Settings({"follower.fetch.pending.reads.insync.enable": "true"}))
    assert (pending.policy.name, pending.process_time_max_ms) == ("pending-reads", 500)
    assert rule_of(Settings({"replica.in.sync.policy": "messages"})).policy.name == "messages"


def test_an_ignored_setting_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rules, broker = Rules(), Settings({"follower.fetch.process.time.max.ms": "100"})
    with caplog.at_level(logging.WARNING):
        for topic_name in ("a", "b"):
            assert rules.of_topic(topic_name, broker, broker).process_time_max_ms is None
    assert len(caplog.messages) == 1
    assert "follower.fetch.process.time.max.ms is ignored" in caplog.messages[0]


def test_a_topic_whose_settings_contradict_the_brokers_uses_the_brokers_policy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Settings({"follower.fetch.pending.reads.insync.enable": "true"})
    merged = broker.for_topic({"replica.in.sync.policy": "messages"})
    with caplog.at_level(logging.WARNING):
        assert Rules().of_topic("orders", merged, broker).policy.name == "pending-reads"
    assert "orders: its own settings are ignored" in caplog.text


def test_an_isr_change_is_one_log_line_with_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        client = client_of(cluster)
        cluster.network.cut(1, 2)
        await asyncio.sleep(0.5)
        await client.append_once([b"x"] * 7)
        await until(lambda: isr_of(cluster) == [1, 3])
        cluster.network.mend(1, 2)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert node_of(cluster, 1).replicas.partitions

    with caplog.at_level(logging.INFO):
        play(scenario, settings={})
    left, joined = (line for line in caplog.messages if "ISR is now" in line)
    assert "t-0: ISR is now 1,3: 2 leaves (caught-up, limit 1500 ms)" in left
    assert (
        "1501 ms behind, lacks 7 messages (leader's log end offset 7), caught up 1501 ms ago"
        in left
    )
    assert "t-0: ISR is now 1,2,3: 2 joins (caught-up): 0 ms behind, lacks 0 messages" in joined


def test_an_isr_change_by_the_controller_is_one_log_line_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        client = client_of(cluster)
        await client.append_once([b"x"] * 7)
        await asyncio.sleep(0.3)
        cluster.kill(3)
        await until(lambda: isr_of(cluster) == [1, 2])
        cluster.kill(1)
        await until(lambda: isr_of(cluster) == [2])

    with caplog.at_level(logging.INFO):
        play(scenario, settings={})
    follower, leader = (line for line in caplog.messages if "ISR is now" in line)
    assert "t-0: ISR is now 1,2: 3 leaves (not proposed by the leader, epoch " in follower
    assert (
        "its session ended): 0 ms behind, lacks 0 messages (leader's log end offset 7), caught up"
        in follower
    )
    assert "t-0: ISR is now 2: 1 leaves (not proposed by the leader, epoch " in leader
    assert leader.endswith(
        "; its session ended)"
    )  # the new leader did not know the followers' offsets


def test_only_partitions_with_a_lagging_follower_have_a_timer() -> None:
    """Of hundreds of partitions with caught-up followers none is checked."""

    async def scenario(cluster: Cluster) -> None:
        assignment = dict.fromkeys(range(300), (ONE, TWO, THREE))
        await node_of(cluster, 1).topics.create(RequestedTopic(name="many", assignment=assignment))
        await asyncio.sleep(3)
        held = node_of(cluster, 1).replicas.partitions
        assert sum(replica.is_leader for replica in held.values()) == 300

        def armed() -> list[int]:
            return [
                key[1]
                for key, replica in held.items()
                if replica.term is not None and replica.term.wake_at_ms != NO_WAKE_MS
            ]

        assert armed() == []
        cluster.network.cut(1, 2)
        client = SimClient(cluster, 200, ("many", 7), Random(1))  # noqa: S311
        await client.append_once([b"x"])
        await asyncio.sleep(0.1)
        assert armed() == [7]

    play(scenario)
