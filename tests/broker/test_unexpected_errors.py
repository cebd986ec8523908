"""An unexpected error in one place stops neither other partitions nor background tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from insync.broker.broker_loop import BrokerLoop
from insync.broker.replication.leader_fetcher import LeaderFetcher
from insync.client.connection import Disconnected
from insync.controller.controller import Controller
from insync.metadata import paths
from insync.metadata.records import encode_config
from insync.metadata.store import Operation, Write
from insync.node.background import RESTART_MS, run_for_ever
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop
from insync.storage.log import Log
from insync.wire.apis import Api
from support.sim.few_brokers import (
    KEY,
    PATH,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    state_of,
    topic,
    until,
)
from support.sim.one_broker import Client, OneBroker, on_virtual_time
from support.sim.reassignments import ask

Function = Callable[..., Any]


def fails_when(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Function) -> None:
    """Let a method raise what no code expects, whenever `when` says so of its arguments."""
    original: Function = getattr(owner, name)

    def method(*arguments: Any, **others: Any) -> Any:
        if when(*arguments, **others):
            raise ZeroDivisionError(name)
        return original(*arguments, **others)

    monkeypatch.setattr(owner, name, method)


def test_a_background_task_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    started_at_ms: list[int] = []

    async def scenario(loop: VirtualLoop) -> None:
        async def task() -> None:
            started_at_ms.append(loop.clock_ms())
            raise ZeroDivisionError

        running = loop.create_task(run_for_ever(task))
        await asyncio.sleep(3.5 * RESTART_MS / 1_000)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled(), "a cancelled task stops"

    with caplog.at_level(logging.ERROR):
        on_virtual_time(scenario)
    assert len(started_at_ms) == 4
    assert "starts again" in caplog.text


def test_a_controller_that_fails_gives_its_role_to_another_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        def controller() -> int:
            entry = cluster.tree.entries.get(paths.CONTROLLER)
            return -1 if entry is None else int(entry.value)

        await topic(cluster)
        failing = controller()
        fails_when(
            monkeypatch,
            Controller,
            "_states_after",
            lambda each, *_: each._broker == failing and controller() == failing,
        )
        dead = next(number for number in (1, 2, 3) if number != failing)
        cluster.kill(dead, noticed_after_ms=10)
        await until(lambda: controller() not in (-1, failing))
        await until(lambda: dead not in isr_of(cluster))

    play(scenario)


def test_an_isr_change_is_written_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        failures = iter([True, True])
        commits = node_of(cluster, 1).replicas.leading._commits
        fails_when(monkeypatch, commits, "operations", lambda *_: next(failures, False))
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"x"])
        await until(lambda: isr_of(cluster) == [1, 2], within_s=20)
        assert next(failures, False) is False, "it failed twice"

    play(scenario)


def test_a_failed_log_is_reported_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        failures = iter([True, True])

        def is_to_fail(*step: Operation) -> bool:
            return step[0].path.startswith(paths.FAILED_REPLICAS) and next(failures, False)

        fails_when(monkeypatch, cluster.brokers[2].store, "commit", is_to_fail)
        node_of(cluster, 2).directory.logs[KEY].fail("its disk failed")
        await until(lambda: 2 not in isr_of(cluster), within_s=20)
        assert next(failures, False) is False, "it failed twice"

    play(scenario)


def test_eligible_replicas_are_removed_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """acks=all waits until no replica outside the ISR may be elected."""

    async def scenario(cluster: Cluster) -> None:
        def has_left(number: int) -> bool:
            return number not in isr_of(cluster)

        await topic(cluster, config={"min.insync.replicas": "2"})
        for number in (2, 3):
            cluster.kill(number)
            await until(partial(has_left, number))
        assert state_of(cluster)["eligible"]
        failures = iter([True, True])
        store = cluster.brokers[1].store
        fails_when(
            monkeypatch,
            store,
            "commit",
            lambda *step: step[0].path == PATH and next(failures, False),
        )
        path = paths.topic_config(KEY[0])
        version = cluster.tree.entries[path].version
        config = encode_config({"min.insync.replicas": "1"})
        cluster.tree.step([Write(path, config, version)], None)
        await until(lambda: "eligible" not in state_of(cluster), within_s=20)
        assert next(failures, False) is False, "it failed twice"
        assert await client_of(cluster).append([b"x"]) == 0

    play(scenario)


def test_a_partition_whose_answer_cannot_be_applied_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing: list[bool] = [True]

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        followed = replica_of(cluster, 2).log
        fails_when(
            monkeypatch, Log, "append_follower", lambda log, *_, **__: log is followed and failing
        )
        await client_of(cluster).append_once([b"x"])
        await until(lambda: replica_of(cluster, 3).log.end == 1)
        assert replica_of(cluster, 2).log.end == 0
        failing.clear()
        await until(lambda: replica_of(cluster, 2).log.end == 1, within_s=20)

    play(scenario)


def test_a_fetcher_survives_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        failures = iter([True] * 3)
        fails_when(monkeypatch, LeaderFetcher, "_receive", lambda *_: next(failures, False))
        await client_of(cluster).append_once([b"x"])
        await until(lambda: all(replica_of(cluster, n).log.end == 1 for n in (2, 3)), within_s=20)

    play(scenario)


def test_an_error_of_a_fetcher_is_logged_once_until_a_fetch_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reasons: list[str] = []
    original = LeaderFetcher._fetch

    async def fetch(fetcher: LeaderFetcher) -> None:
        if reasons:
            raise Disconnected(reasons[-1])
        await original(fetcher)

    def lines(reason: str) -> int:
        return caplog.messages.count(f"cannot fetch from leader 1: {reason}; trying again")

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        monkeypatch.setattr(LeaderFetcher, "_fetch", fetch)
        for reason in ("no route", "refused", "no route"):
            reasons.append(reason)
            await asyncio.sleep(2)
        assert (lines("no route"), lines("refused")) == (2 * 2, 2), "of two followers"

    with caplog.at_level(logging.INFO):
        play(scenario)


def test_a_partition_that_cannot_be_read_stops_no_other_of_the_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=2)
        client: Client = await broker.client()
        await client.produce(0, b"a")
        await client.produce(1, b"b")
        bad = broker.node.replicas.partitions["t", 0].log
        fails_when(monkeypatch, Log, "read", lambda log, *_, **__: log is bad)
        ((_, (first, second)),) = (await client.fetch({0: 0, 1: 0})).topics
        assert ErrorCode(first.error) is ErrorCode.unknown_server_error
        assert second.records

    on_virtual_time(scenario)


def test_without_the_store_a_producer_id_is_refused_with_a_code_to_retry() -> None:
    """Apache Kafka answers so, too, while its producer ids are not there."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        values = {"transactional_id": None, "transaction_timeout": timedelta(seconds=1)}
        store: Any = node_of(cluster, 1).world.store
        store.cut_off()
        answer = await ask(cluster, Api.INIT_PRODUCER_ID, values, version=4)
        assert answer.error_code is ErrorCode.coordinator_load_in_progress
        store.resume()
        answer = await ask(cluster, Api.INIT_PRODUCER_ID, values, version=4)
        assert answer.error_code is ErrorCode.none

    play(scenario)


def test_an_effect_of_a_stall_that_fails_does_not_stop_the_callback() -> None:
    loop = BrokerLoop(lambda: 0)
    order: list[str] = []

    def fails() -> None:
        raise ZeroDivisionError

    loop._effects.append((fails, ()))
    loop.run(order.append, "callback")
    assert order == ["callback"]
