"""Executing and watching, as `insync reassign` tells of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from insync.cli import move_view, reassign_lines
from insync.client import reassignments
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import execute as moves
from insync.moves import measure, planning
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.execute import Prepared, Standing
from insync.moves.journal import JournalFile
from insync.moves.plan_file import Plan, plan_json
from insync.moves.progress import Look
from insync.moves.throttle import Ended
from insync.moves.watch import WaitsForBroker, watch_moves
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.move_plan import moves as moving_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A command line that means something."""

    bootstrap: str
    plan: Plan
    topics: list[str]
    brokers: list[int]
    is_rack_aware: bool
    throttle_bytes_per_s: int | None
    is_additional: bool
    preserves_throttles: bool
    timeout_ms: int
    force: bool
    starts: bool
    watches: bool
    finish_in_s: int | None
    network_bytes_per_s: int | None
    max_impact: Fraction | None
    measure_s: int
    stuck_after_s: int
    gives_up_after_ms: int | None  # a broker that is down and does not return; None: never
    state_directory: Path
    as_json: bool

    def journal(self, cluster: ClusterNow) -> JournalFile:
        return JournalFile(self.state_directory, cluster.cluster_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """For scripts and for people."""

    data: Any
    text: str
    exit_code: int = 0


async def status(admin: Admin, _: Asked) -> Told:
    active = (await clusters.look(admin)).active
    data = [
        {
            "topic": topic,
            "partition": number,
            "replicas": list(active[topic, number].replicas),
            "adding": list(active[topic, number].adding),
            "removing": list(active[topic, number].removing),
        }
        for topic, number in sorted(active)
    ]
    return Told(data=data, text=reassign_lines.under_way(active))


async def execute(admin: Admin, asked: Asked) -> Told:
    """Start the plan, unless we only watch, and see it through if so asked."""
    cluster = await clusters.look(admin)
    if not asked.starts:
        return await _watch_only(admin, asked, cluster)
    prepared = moves.prepare(cluster, asked.plan, is_additional=asked.is_additional)
    has_lease = await reassignments.offers_leases(admin)
    if asked.throttle_bytes_per_s is not None and not asked.force:
        if not has_lease:
            moves.check_rates_can_be_set(cluster, prepared)
        await _check_safe(admin, asked, cluster, prepared, asked.throttle_bytes_per_s)
    file = asked.journal(cluster)
    await moves.start(
        admin,
        file,
        prepared,
        throttle_bytes_per_s=asked.throttle_bytes_per_s,
        is_additional=asked.is_additional,
        timeout_ms=asked.timeout_ms,
    )
    data = {
        "started": [reassign_lines.name(partition) for partition in sorted(asked.plan)],
        "current": plan_json(prepared.before),
        "throttle_bytes_per_s": asked.throttle_bytes_per_s,
        "throttle_ends_by_itself": has_lease,
    }
    text = _started_text(asked, prepared, has_lease=has_lease)
    if not asked.watches:
        return Told(data=data, text=text)
    if not asked.as_json:
        sys.stdout.write(text)
        sys.stdout.flush()
    seen = await _watch(admin, asked, prepared.moving, frozenset(asked.plan))
    return Told(data={**data, **seen.data}, text=seen.text, exit_code=seen.exit_code)


async def _check_safe(
    admin: Admin, asked: Asked, cluster: ClusterNow, prepared: Prepared, quota_bytes_per_s: int
) -> None:
    """Worth some seconds: a throttle below what comes in never ends, and is found out late."""
    if not asked.as_json:
        sys.stderr.write(f"insync: measuring what comes in for {asked.measure_s} s\n")
    measured = await measure.measure(admin, cluster, for_s=asked.measure_s, clock_ms=monotonic_ms)
    seen = planning.outlook(
        cluster, prepared.moving, measured, network_bytes_per_s=asked.network_bytes_per_s
    )
    planning.check_safe(seen, quota_bytes_per_s)


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _started_text(asked: Asked, prepared: Prepared, *, has_lease: bool) -> str:
    is_throttled = asked.throttle_bytes_per_s is not None and bool(prepared.moving)
    must_verify = is_throttled and not asked.watches and not has_lease
    warning = reassign_lines.VERIFY_WARNING if must_verify else ""
    return (
        reassign_lines.current(prepared.before)
        + warning
        + reassign_lines.started(
            asked.plan,
            throttle_bytes_per_s=asked.throttle_bytes_per_s if prepared.moving else None,
        )
    )


async def _watch_only(admin: Admin, asked: Asked, cluster: ClusterNow) -> Told:
    """What is under way, whoever started it."""
    moving = moving_by(cluster.assignments(), {}, known=cluster.alive)
    if asked.plan:
        moving = {partition: moving[partition] for partition in moving if partition in asked.plan}
    return await _watch(admin, asked, moving, frozenset(asked.plan or cluster.active))


async def _watch(
    admin: Admin,
    asked: Asked,
    moving: Mapping[TopicPartition, Move],
    partitions: frozenset[TopicPartition],
) -> Told:
    last: Look | None = None
    with move_view.screen(as_json=asked.as_json) as screen:

        def show(look: Look) -> None:
            nonlocal last
            last = look
            screen.show(look)

        try:
            cluster = await watch_moves(
                admin,
                moving,
                partitions,
                is_reached=lambda now: all(
                    each is Standing.COMPLETED for each in moves.standing(now, asked.plan).values()
                ),
                show=show,
                complain=screen.complain,
                clock_ms=monotonic_ms,
                patience_ms=asked.stuck_after_s * 1_000,
                gives_up_after_ms=asked.gives_up_after_ms,
            )
        except WaitsForBroker as waits:
            return Told(
                data={
                    "interrupted": False,
                    "last_look": None if last is None else move_view.data(last),
                    "given_up": str(waits),
                },
                text=f"Given up: {waits}\n",
                exit_code=1,
            )
        except asyncio.CancelledError:  # which is what Ctrl-C comes as
            return Told(
                data={"interrupted": True},
                text="The moves go on. Follow them with --watch; --verify or --sweep ends what "
                "throttle is left when they are done.\n",
                exit_code=1,
            )
    ended = await end_throttle(admin, asked, cluster)
    found = moves.standing(cluster, asked.plan)
    is_well = ended.is_whole and all(each is Standing.COMPLETED for each in found.values())
    data = {
        "interrupted": False,
        "last_look": None if last is None else move_view.data(last),
        "standing": {reassign_lines.name(key): each.value for key, each in found.items()},
        **ended_data(ended),
    }
    text = reassign_lines.status(found, cluster, asked.plan) if found else ""
    text += reassign_lines.cleared(ended) + problems_text(ended)
    return Told(data=data, text=text, exit_code=0 if is_well else 1)


async def end_throttle(admin: Admin, asked: Asked, cluster: ClusterNow) -> Ended:
    """What our journal says; where there is none, the cluster or somebody else sees to it."""
    file = asked.journal(cluster)
    async with file.locked_when_free():
        return await throttles.end(admin, file, active=cluster.active)


def ended_data(ended: Ended) -> dict[str, Any]:
    return {
        "throttle_cleared": {"brokers": list(ended.brokers), "topics": list(ended.topics)},
        "throttle_kept_for": [reassign_lines.name(each) for each in ended.kept_for],
        "problems": list(ended.problems),
    }


def problems_text(ended: Ended) -> str:
    return "".join(f"{each}; run --sweep when it answers\n" for each in ended.problems)
