"""Settings in the record: those of a start, and every change at run time."""

from __future__ import annotations

import asyncio

from insync.client.admin import Admin
from insync.client.admin_connections import Connections
from insync.sim.cluster import Cluster
from insync.wire.configs import Resource
from support.sim.few_brokers import play, topic
from support.telemetry.recorded_runs import RECORDED, as_rows, collect

MIN_ISR, LAG = "min.insync.replicas", "replica.lag.time.max.ms"


def test_changes_at_run_time_are_recorded() -> None:
    """Of a topic, the minimum of the ISR alone too; of all, as the brokers' own."""
    changes: list[tuple[str, str, str]] = []

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        admin = Admin(Connections(cluster.network.host(100), cluster.addresses))
        for kind, name, set_values, deleted in (
            (Resource.TOPIC, "t", {MIN_ISR: "3"}, []),
            (Resource.BROKER, "", {MIN_ISR: "2", LAG: "9000"}, []),
            (Resource.TOPIC, "t", {}, [MIN_ISR]),
        ):
            await admin.alter_configs(kind, name, set_values=set_values, deleted=deleted)
            await asyncio.sleep(0.5)
        await asyncio.sleep(2.0)  # all of it is published
        rows = as_rows(await collect(cluster))["configs"]
        started_at_ms = min(row["at_ms"] for row in rows)
        changes.extend(
            (row["scope"], row["name"], row["value"])
            for row in sorted(rows, key=lambda row: row["at_ms"])
            if row["scope"].startswith("broker:1")
            and row["at_ms"] > started_at_ms + 100
            and row["name"] in (MIN_ISR, LAG)
        )

    play(scenario, settings=RECORDED, brokers=3)
    assert changes == [
        ("broker:1/topic:t", MIN_ISR, "3"),
        ("broker:1", MIN_ISR, "2"),
        ("broker:1", LAG, "9000"),
        ("broker:1/topic:t", MIN_ISR, "2"),
    ]
