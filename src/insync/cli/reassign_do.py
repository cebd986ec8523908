"""`insync reassign`: start a plan, watch it, list what moves."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from insync.cli import move_view, reassign_lines
from insync.cli.answer import INTERRUPTED
from insync.client import reassignments
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import execute as moves
from insync.moves import measure, planning
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.execute import MoveStatus, PreparedPlan
from insync.moves.journal import JournalFile
from insync.moves.measure import Measured, Pause
from insync.moves.plan_file import Plan, plan_json
from insync.moves.progress import MoveProgress
from insync.moves.size_samples import Clocks, SampleFile
from insync.moves.throttle import ThrottleRemoval
from insync.moves.watch import WaitsForBroker, watch_moves
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.move_plan import moves as moving_by


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignOptions:
    """The command line, after its flags were checked."""

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
    shows_formula: bool
    measure_s: int | None  # None: at once if possible
    stuck_after_s: int
    gives_up_after_ms: int | None  # a broker that is down and does not return; None: never
    state_directory: Path
    as_json: bool

    def journal(self, cluster: ClusterNow) -> JournalFile:
        return JournalFile(self.state_directory, cluster.cluster_id)

    def samples(self, cluster: ClusterNow) -> SampleFile:
        return SampleFile(self.state_directory, cluster.cluster_id, CLOCKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command prints: the data with --json, else the text."""

    data: Any
    text: str
    exit_code: int = 0


async def status(admin: Admin, _: ReassignOptions) -> CommandResult:
    active = (await clusters.read_cluster(admin)).active
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
    return CommandResult(data=data, text=reassign_lines.under_way(active))


async def execute(admin: Admin, options: ReassignOptions) -> CommandResult:
    """Start the plan, unless --watch is given alone; with --watch follow it to its end."""
    cluster = await clusters.read_cluster(admin)
    if not options.starts:
        return await _watch_only(admin, options, cluster)
    prepared = moves.prepare(cluster, options.plan, is_additional=options.is_additional)
    has_lease = await reassignments.offers_leases(admin)
    if options.throttle_bytes_per_s is not None and not options.force:
        if not has_lease:
            moves.check_rates_can_be_set(cluster, prepared)
        await _check_safe(admin, options, cluster, prepared, options.throttle_bytes_per_s)
    file = options.journal(cluster)
    await moves.start(
        admin,
        file,
        prepared,
        throttle_bytes_per_s=options.throttle_bytes_per_s,
        is_additional=options.is_additional,
        timeout_ms=options.timeout_ms,
    )
    data = {
        "started": [reassign_lines.name(partition) for partition in sorted(options.plan)],
        "current": plan_json(prepared.before),
        "throttle_bytes_per_s": options.throttle_bytes_per_s,
        "throttle_ends_by_itself": has_lease,
    }
    text = _started_text(options, prepared, has_lease=has_lease)
    if not options.watches:
        return CommandResult(data=data, text=text)
    if not options.as_json:
        sys.stdout.write(text)
        sys.stdout.flush()
    watched = await _watch(admin, options, prepared.moving, frozenset(options.plan))
    return CommandResult(
        data={**data, **watched.data}, text=watched.text, exit_code=watched.exit_code
    )


async def _check_safe(
    admin: Admin,
    options: ReassignOptions,
    cluster: ClusterNow,
    prepared: PreparedPlan,
    quota_bytes_per_s: int,
) -> None:
    """A move throttled below the rate of writes never ends; measure before it starts."""

    def check(measured: Measured) -> None:
        estimate = planning.estimate_plan(
            cluster, prepared.moving, measured, network_bytes_per_s=options.network_bytes_per_s
        )
        planning.check_safe(estimate, quota_bytes_per_s)

    await measure.measure_and_check(
        admin,
        cluster,
        for_s=options.measure_s,
        samples=options.samples(cluster),
        check=check,
        pause=_pause(options),
    )


async def measure_cluster(admin: Admin, options: ReassignOptions, cluster: ClusterNow) -> Measured:
    return await measure.measure(
        admin,
        cluster,
        for_s=options.measure_s,
        samples=options.samples(cluster),
        pause=_pause(options),
    )


def _pause(options: ReassignOptions) -> Pause:
    return asyncio.sleep if options.as_json else pause_announced


async def pause_announced(seconds: float) -> None:
    sys.stderr.write(f"insync: measuring for {math.ceil(seconds)} s how much clients write\n")
    await asyncio.sleep(seconds)


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


CLOCKS: Final = Clocks(wall_ms=lambda: time.time_ns() // 1_000_000, monotonic_ms=monotonic_ms)


def _started_text(options: ReassignOptions, prepared: PreparedPlan, *, has_lease: bool) -> str:
    is_throttled = options.throttle_bytes_per_s is not None and bool(prepared.moving)
    must_verify = is_throttled and not options.watches and not has_lease
    warning = reassign_lines.VERIFY_WARNING if must_verify else ""
    return (
        reassign_lines.current(prepared.before)
        + warning
        + reassign_lines.started(
            options.plan,
            throttle_bytes_per_s=options.throttle_bytes_per_s if prepared.moving else None,
        )
    )


async def _watch_only(admin: Admin, options: ReassignOptions, cluster: ClusterNow) -> CommandResult:
    """Watch every move under way, also those that other tools started."""
    moving = moving_by(cluster.assignments(), {}, known=cluster.alive)
    if options.plan:
        moving = {partition: moving[partition] for partition in moving if partition in options.plan}
    return await _watch(admin, options, moving, frozenset(options.plan or cluster.active))


async def _watch(
    admin: Admin,
    options: ReassignOptions,
    moving: Mapping[TopicPartition, Move],
    partitions: frozenset[TopicPartition],
) -> CommandResult:
    last: MoveProgress | None = None
    with move_view.progress_display(as_json=options.as_json) as display:

        def show(progress: MoveProgress) -> None:
            nonlocal last
            last = progress
            display.show(progress)

        try:
            cluster = await watch_moves(
                admin,
                moving,
                partitions,
                is_reached=lambda now: all(
                    each is MoveStatus.COMPLETED
                    for each in moves.move_statuses(now, options.plan).values()
                ),
                show=show,
                warn=display.warn,
                clock_ms=monotonic_ms,
                stuck_after_ms=options.stuck_after_s * 1_000,
                gives_up_after_ms=options.gives_up_after_ms,
            )
        except WaitsForBroker as waits:
            return CommandResult(
                data={
                    "interrupted": False,
                    "last_look": None if last is None else move_view.data(last),
                    "given_up": str(waits),
                },
                text=f"Given up: {waits}\n",
                exit_code=1,
            )
        except asyncio.CancelledError:  # that is Ctrl-C
            return CommandResult(
                data={"interrupted": True},
                text="The moves go on. Follow them with --watch; --verify or --sweep ends what "
                "throttle is left when they are done.\n",
                exit_code=INTERRUPTED,
            )
    ended = await end_throttle(admin, options, cluster)
    statuses = moves.move_statuses(cluster, options.plan)
    is_well = ended.is_complete and all(each is MoveStatus.COMPLETED for each in statuses.values())
    data = {
        "interrupted": False,
        "last_look": None if last is None else move_view.data(last),
        "standing": {reassign_lines.name(key): each.value for key, each in statuses.items()},
        **ended_data(ended),
    }
    text = reassign_lines.status(statuses, cluster, options.plan) if statuses else ""
    text += reassign_lines.cleared(ended) + problems_text(ended)
    return CommandResult(data=data, text=text, exit_code=0 if is_well else 1)


async def end_throttle(
    admin: Admin, options: ReassignOptions, cluster: ClusterNow
) -> ThrottleRemoval:
    """End the throttle that our journal notes; without a journal the cluster ends it."""
    file = options.journal(cluster)
    async with file.locked_when_free():
        return await throttles.end(admin, file, active=cluster.active)


def ended_data(ended: ThrottleRemoval) -> dict[str, Any]:
    return {
        "throttle_cleared": {"brokers": list(ended.brokers), "topics": list(ended.topics)},
        "throttle_kept_for": [reassign_lines.name(each) for each in ended.kept_for],
        "problems": list(ended.problems),
    }


def problems_text(ended: ThrottleRemoval) -> str:
    return "".join(f"{each}; run --sweep when it answers\n" for each in ended.problems)
