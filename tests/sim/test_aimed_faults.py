"""The means of aimed faults, and the checks that see what they bring about."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from random import Random

from insync.sim.aimed_faults import HeldSteps
from insync.sim.checks import Monitor
from insync.sim.cluster import Cluster, ErrorLogHandler
from insync.sim.faults import MIXES
from insync.sim.run import SimulatedRun
from insync.sim.store import SESSION_TIMEOUT_MS
from insync.sim.virtual_loop import virtual_time
from insync.storage.errors import DiskError, EpochWentBack
from insync.storage.memory_disk import MemoryDisk
from support.sim.few_brokers import (
    KEY,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    state_of,
    stays,
    topic,
    until,
)


def held_proposals_of(cluster: Cluster, leader: int) -> HeldSteps:
    store = cluster.brokers[leader].store
    assert store is not None
    return HeldSteps.proposals(store, KEY)


def test_a_proposal_waits_until_it_is_released() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        proposals = held_proposals_of(cluster, 1)
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"more"])
        await until(lambda: len(proposals) == 1)
        await stays(lambda: isr_of(cluster) == [1, 2, 3], for_s=3.0)
        proposals.release()
        await until(lambda: isr_of(cluster) == [1, 2])

    play(scenario)


def test_a_proposal_that_fails_is_tried_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        proposals = held_proposals_of(cluster, 1)
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"more"])
        await until(lambda: len(proposals) == 1)
        proposals.fail()
        await until(lambda: isr_of(cluster) == [1, 2], within_s=0.2)

    play(scenario)


def test_steps_of_the_controller_are_not_held() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        controller = cluster.controller() or 0
        held_proposals_of(cluster, controller)
        other = next(number for number in cluster.brokers if number != controller)
        cluster.kill(other)
        await until(lambda: other not in state_of(cluster)["isr"], within_s=0.5)

    play(scenario)


def test_each_kind_of_a_mix_is_due_once_before_any_comes_again() -> None:
    with virtual_time() as loop:
        run = SimulatedRun(1, loop, "elections")
        kinds = [
            fault.name for fault in islice(run.faults._schedule(), 2 * len(MIXES["elections"]))
        ]
    half = len(kinds) // 2
    assert sorted(kinds[:half]) == sorted(kinds[half:]) == sorted(MIXES["elections"])


def test_what_a_kernel_wrote_back_survives_a_loss_of_power() -> None:
    disk = MemoryDisk()
    file = disk.create("/f")
    file.append([b"one"])
    disk.write_atomic("/checkpoint", b"old")
    disk.write_back()
    file.append([b"two"])
    disk.lose_power(Random(1))  # noqa: S311 - chance, not secrecy
    assert disk.read_all("/f").startswith(b"one")
    assert disk.read_all("/checkpoint") == b"old"


# The checks.


def test_a_followers_watermark_counts_as_committed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        monitor = Monitor(cluster, unclean=False)
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"more"])
        await until(lambda: replica_of(cluster, 2).log.end == 1)
        replica_of(cluster, 2).high_watermark = 1
        monitor.check_brokers()
        assert "3 is in the ISR, ends at 0 and lacks up to 1" in (monitor.failure or "")

    play(scenario)


def test_a_followers_watermark_is_not_beyond_its_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        monitor = Monitor(cluster, unclean=False)
        replica_of(cluster, 2).high_watermark = 1
        monitor.check_brokers()
        assert "the high watermark of 2 is 1, its log ends at 0" in (monitor.failure or "")

    play(scenario)


def test_a_check_does_not_let_a_broker_notice_the_end_of_its_session() -> None:
    async def scenario(cluster: Cluster) -> None:
        monitor = Monitor(cluster, unclean=False)
        cluster.cut_off_from_store(1)
        store = cluster.brokers[1].store
        assert store is not None
        await asyncio.sleep(SESSION_TIMEOUT_MS / 1_000 + 0.1)
        monitor.check_brokers()
        now_ms = node_of(cluster, 1).world.clock_ms()
        assert store.is_over(now_ms)
        assert not store.session_lost.is_set()
        assert not store.is_alive(now_ms)
        assert store.session_lost.is_set()
        cluster.reconnect_to_store(1)

    play(scenario)


def test_records_that_do_not_continue_a_followers_log_fail_a_run() -> None:
    async def scenario(cluster: Cluster) -> None:
        handler = ErrorLogHandler(cluster)

        def log(level: int, *arguments: object, error: Exception | None = None) -> None:
            exc_info = None if error is None else (type(error), error, None)
            handler.handle(
                logging.LogRecord("insync", level, "", 0, "%s-%d: %s", arguments, exc_info)
            )

        log(logging.WARNING, "t", 0, DiskError(5, "/logs"))
        log(logging.ERROR, "t", 0, "refused", error=DiskError(5, "/logs"))
        log(logging.WARNING, "t", 0, "late", error=ValueError("a warning"))
        assert cluster.unexpected_errors == []
        log(logging.WARNING, "t", 0, EpochWentBack("epoch 2, then 1"))
        log(logging.ERROR, "t", 0, "failed", error=ValueError("unexpected"))
        assert [error[:21] for error in cluster.unexpected_errors] == [
            "t-0: epoch 2, then 1",
            "t-0: failed: ValueErr",
        ]
        cluster.unexpected_errors.clear()

    play(scenario)


def test_under_a_flush_of_every_append_a_log_end_is_flushed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        monitor = Monitor(cluster, unclean=False, flushes=True)
        await client_of(cluster).append([b"one"])  # these brokers do not flush
        monitor.check_brokers()
        assert "bytes below offset 1 of 1 are not flushed" in (monitor.failure or "")

    play(scenario)
