"""Four Insync brokers on virtual time, a topic with some data, and tools that use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from insync.cli.reassign_do import ReassignOptions
from insync.client import reassignments, throttle_holds
from insync.client.admin import Admin
from insync.client.admin_connections import Connections, Patience
from insync.metadata.records import decode_config
from insync.moves.plan_file import Plan
from insync.rules.values import BrokerId, PartitionId
from insync.sim.cluster import PORT, Cluster
from support.sim.few_brokers import KEY, ONE, TWO, client_of, play, topic

CLIENT = 250
PARTITION = KEY[0], PartitionId(0)


def options(folder: Path, plan: Plan, **changed: Any) -> ReassignOptions:
    usual = ReassignOptions(
        bootstrap="",
        plan=plan,
        topics=[KEY[0]],
        brokers=[1, 2, 3, 4],
        is_rack_aware=True,
        throttle_bytes_per_s=1_000_000,
        is_additional=False,
        preserves_throttles=False,
        timeout_ms=10_000,
        force=True,
        starts=True,
        watches=False,
        finish_in_s=None,
        network_bytes_per_s=None,
        max_impact=None,
        shows_formula=False,
        measure_s=None,
        stuck_after_s=30,
        gives_up_after_ms=None,
        state_directory=folder,
        as_json=True,
    )
    return replace(usual, **changed)


def to(*brokers: int) -> Plan:
    return {PARTITION: tuple(BrokerId(each) for each in brokers)}


def throttles(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Every throttle setting and lease in the store."""
    throttles_by_path = {}
    for path, entry in cluster.tree.entries.items():
        if path.startswith("/config/"):
            kept = {k: v for k, v in decode_config(entry.value).items() if "throttled" in k}
            if kept:
                throttles_by_path[path] = kept
    return throttles_by_path


def run_tool(scenario: Callable[[Cluster, Admin], Awaitable[None]]) -> None:
    async def whole(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"%0100d" % n for n in range(100)])
        connections = Connections(
            cluster.network.host(CLIENT),
            [("broker-1", PORT)],
            patience=Patience(request_ms=2_000, operation_ms=10_000),
        )
        async with Admin(connections) as admin:
            await scenario(cluster, admin)

    play(whole, brokers=4)


LEASE, JOURNAL = "a lease", "a journal"  # what keeps a throttle from staying behind


def forget_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on brokers without leases: only the journal knows what was set."""

    async def no(_: Admin) -> bool:
        return False

    monkeypatch.setattr(reassignments, "offers_leases", no)
    monkeypatch.setattr(throttle_holds, "are_offered", no)
