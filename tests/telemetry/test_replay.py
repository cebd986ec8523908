"""The contract of the tables: replayed through the rules they give the brokers' own decisions."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from contract import STORE_TAKES_MS, WHOLE_MS, agreed
from effort import tried
from recorded_life import Tables, as_rows, live, live_a_recorded_life

from insync.rules.settings import InSyncSettings
from insync.sim.cluster import Cluster
from insync.telemetry.schemas import late_words


async def everything(cluster: Cluster, random: Random) -> None:
    """Links cut and slow, brokers paused and killed, one after the other and at once."""
    for _ in range(12):
        one, other = random.sample(sorted(cluster.brokers), 2)
        match random.choice(("cut", "slow", "pause", "kill", "cold", "nothing")):
            case "cut":
                cluster.network.cut(one, other)
            case "slow":
                cluster.network.slow(one, other, latency_s_max=0.4)
            case "pause":
                cluster.pause(one)
                await asyncio.sleep(random.uniform(0.05, 3.0))
                cluster.resume(one)
            case "kill":
                cluster.kill(one)
                await asyncio.sleep(random.uniform(0.0, 1.0))
                await cluster.start(one)
            case "cold":
                cluster.brokers[one].disk.is_cold = True
            case _:
                pass
        await asyncio.sleep(random.uniform(0.1, 2.5))
        if random.random() < 0.5:
            cluster.network.heal()


@pytest.mark.property
@pytest.mark.parametrize("seed", tried(range(4)))
def test_the_rules_come_to_the_brokers_own_decisions(seed: int) -> None:
    assert agreed(as_rows(live(seed, everything))), "nobody left or came"


@pytest.mark.property
@pytest.mark.parametrize("policy", tried(["true-lag", "messages", "lag-begin", "pending-reads"]))
def test_whatever_the_rule(policy: str) -> None:
    settings = {"replica.in.sync.policy": policy, "replica.lag.max.messages": "20"}
    assert agreed(as_rows(live(5, everything, settings)))


@pytest.mark.property
@pytest.mark.parametrize("seed", tried([11, 1, 2]))
def test_and_so_they_do_in_a_life_with_every_trouble(seed: int) -> None:
    assert agreed(live_a_recorded_life(seed, seconds=15.0), store_takes_ms=STORE_TAKES_MS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_in_many_lives(seed: int) -> None:
    agreed(live_a_recorded_life(seed, seconds=20.0), store_takes_ms=STORE_TAKES_MS)


def test_a_replay_by_another_rule_differs() -> None:
    """So the agreement above is no accident of replaying what was decided anyway."""
    tables = as_rows(live(1, everything))
    for row in tables["configs"]:
        if row["name"] == "replica.lag.time.max.ms":
            row["value"] = "1501"
    with pytest.raises(AssertionError):
        agreed(tables)


@pytest.mark.parametrize("change", ["shrink", "expand"])
def test_a_decision_that_no_leader_made_is_noticed(change: str) -> None:
    """Nothing recorded moves if it is missing: the last of its kind, and what followed."""
    tables = as_rows(live(1, everything))
    last = max(
        (row for row in tables["isr"] if (row["decided_by"], row["change"]) == ("leader", change)),
        key=lambda row: row["at_ms"],
    )
    key = [last[name] for name in ("topic", "partition", "leader_epoch")]
    tables["isr"] = [
        row
        for row in tables["isr"]
        if [row[name] for name in ("topic", "partition", "leader_epoch")] != key
        or row["version"] < last["version"]
    ]
    with pytest.raises(AssertionError, match=f"Unheeded.*{change}"):
        agreed(tables)


def test_a_late_timer_finds_all_who_are_due() -> None:
    """One is due a millisecond after the other; a process that looks later finds both."""
    begun = [append(0, seq=0, base=0, end=0), fetch(10, seq=1, follower=2)]
    rows = [*begun, fetch(11, seq=2, follower=3), append(12, seq=3, base=0, end=1)]
    lag_ms = InSyncSettings().replica_lag_time_max_ms
    left = {"at_ms": lag_ms + 35, "decided_at_ms": lag_ms + 31, "decided_by": "leader",
            "version": 1, "isr_before": [1, 2, 3], "isr_after": [1], "change": "shrink",
            "reason": "silent" + late_words(20), "seq": 4}  # fmt: skip
    tables: Tables = {
        "fetches": [row | KEY for row in rows if "follower" in row],
        "appends": [row | KEY for row in rows if "follower" not in row],
        "isr": [left | KEY | {"replica": replica} for replica in (2, 3)],
    }
    assert [each.replica for each in agreed(tables, loops_are_late=True)] == [2, 3]
    with pytest.raises(AssertionError):
        agreed(tables)
    for row in tables["isr"]:
        row["reason"] = "silent" + late_words(20 - WHOLE_MS - 1)
    with pytest.raises(AssertionError):  # later than it said
        agreed(tables, loops_are_late=True)


KEY = {"topic": "t", "partition": 0, "leader_epoch": 0, "leader": 1}


def append(at_ms: int, *, seq: int, base: int, end: int) -> dict[str, Any]:
    return {"at_ms": at_ms, "seq": seq, "base_offset": base, "end_offset": end}


def fetch(at_ms: int, *, seq: int, follower: int) -> dict[str, Any]:
    return {"at_ms": at_ms, "seq": seq, "follower": follower, "offset": 0, "leader_end_low": 0,
            "high_watermark": 0, "log_start": 0, "read_ms": 0, "outcome": "ok", "repeats": 1,
            "last_at_ms": at_ms}  # fmt: skip
