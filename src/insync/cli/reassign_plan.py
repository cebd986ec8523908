"""`insync reassign`: propose a plan, and estimate what a plan moves and how long it takes."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.table import Table

from insync.cli.reassign_do import CommandResult, ReassignOptions, measure_cluster
from insync.cli.replica_words import duration
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import execute as moves
from insync.moves import measure, planning
from insync.moves.plan_file import Plan, plan_json
from insync.moves.planning import PlanEstimate
from insync.moves.progress import rate_text, size_text
from insync.rules.balance import balanced
from insync.rules.move_estimates import COPY_COST_BYTES, SafeRange
from insync.rules.move_plan import brokers_involved, move_ratio
from insync.rules.move_plan import moves as moving_by
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId

WIDTH = 160


async def generate(admin: Admin, options: ReassignOptions) -> CommandResult:
    cluster = await clusters.read_cluster(admin)
    moves.check_topics_exist(cluster, options.topics)
    brokers = [BrokerId(each) for each in options.brokers]
    for broker in brokers:
        if broker not in cluster.alive:
            known = ", ".join(str(each) for each in sorted(cluster.alive))
            raise BadPlan(f"--broker-list: broker {broker} is not known; this cluster has {known}")
    current: Plan = {
        partition: tuple(state.replicas)
        for partition, state in sorted(cluster.partitions.items())
        if partition[0] in options.topics
    }
    busy = sorted(cluster.active.keys() & current.keys())
    if busy:
        raise BadPlan(f"{busy[0][0]}-{busy[0][1]} is being moved; wait until the move is complete")
    measured = await measure.sizes_only(admin, cluster, options.samples(cluster))
    proposed = balanced(
        current,
        brokers=brokers,
        racks=cluster.racks if options.is_rack_aware else {},
        sizes=measured.sizes,
    )
    moving = moving_by(cluster.assignments(), proposed, known=cluster.alive)
    ratio = move_ratio(partitions_to_move=len(moving), partitions_total=len(cluster.partitions))
    to_copy = sum(measured.sizes.get(p, 0) * len(move.destinations) for p, move in moving.items())
    # Scripts read the plan and the assignment by position: the plan last, the assignment second.
    text = (
        f"Current partition replica assignment\n{plan_json(current)}\n\n"
        f"MoveRatio: {_ratio(ratio)} ({len(moving)} of {len(cluster.partitions)} partitions, "
        f"{size_text(to_copy)} to copy)\n\n"
        f"Proposed partition reassignment configuration\n{plan_json(proposed)}\n"
    )
    data = {
        "current": plan_json(current),
        "proposed": plan_json(proposed),
        "move_ratio": float(ratio),
        "partitions_to_move": len(moving),
        "partitions_total": len(cluster.partitions),
        "bytes_to_copy": to_copy,
    }
    return CommandResult(data=data, text=text)


async def plan(admin: Admin, options: ReassignOptions) -> CommandResult:
    cluster = await clusters.read_cluster(admin)
    prepared = moves.prepare(cluster, options.plan, is_additional=True)
    measured = await measure_cluster(admin, options, cluster)
    estimate = planning.estimate_plan(
        cluster, prepared.moving, measured, network_bytes_per_s=options.network_bytes_per_s
    )
    quotas = _quotas(options, estimate)
    involved = brokers_involved(prepared.moving) & cluster.alive
    settings = await planning.fetch_settings(admin, involved)
    warnings = [*measured.problems, *await planning.rate_warnings(admin, involved)]
    for quota in dict.fromkeys(quotas.values()):
        warnings += planning.response_warnings(
            settings,
            quota_bytes_per_s=quota,
            network_bytes_per_s=options.network_bytes_per_s,
            brokers=estimate.brokers,
        )
    return CommandResult(
        data=_data(options, estimate, quotas, warnings, measured_ms=measured.over_ms),
        text=_text(options, estimate, quotas, warnings),
    )


def _quotas(options: ReassignOptions, estimate: PlanEstimate) -> dict[str, int]:
    """The throttles to estimate, by the flag that each comes from."""
    quotas = {}
    if options.throttle_bytes_per_s is not None:
        quotas["given"] = options.throttle_bytes_per_s
    if options.finish_in_s is not None:
        quotas["finish_in"] = estimate.quota_to_finish(options.finish_in_s)
    if options.max_impact is not None and options.network_bytes_per_s is not None:
        quotas["max_impact"] = estimate.quota_for_impact(
            options.max_impact, network_bytes_per_s=options.network_bytes_per_s
        )
    return quotas


def _data(
    options: ReassignOptions,
    estimate: PlanEstimate,
    quotas: dict[str, int],
    warnings: list[str],
    *,
    measured_ms: int,
) -> dict[str, Any]:
    return {
        "move_ratio": float(estimate.ratio),
        "partitions_to_move": estimate.partitions_to_move,
        "partitions_total": estimate.partitions_total,
        "bytes_to_move": estimate.bytes_to_move,
        "log_bytes_per_broker": estimate.log_bytes_per_broker,
        "bytes_in_per_s_max": estimate.client_bytes_in_max,
        "measured_s": measured_ms / 1_000,
        "safe_above_bytes_per_s": estimate.inbound_bytes_per_s,
        "document_safe_above_bytes_per_s": int(estimate.document_range.above_bytes_per_s),
        "safe_below_bytes_per_s": None
        if options.network_bytes_per_s is None
        else float(estimate.range.below_bytes_per_s),
        "brokers": loads_data(estimate),
        "throttles": {
            why: {
                "bytes_per_s": quota,
                "verdict": estimate.verdict(quota),
                "move_time_ms": estimate.document_time_ms(quota),
                "per_broker_time_ms": estimate.time_ms(quota),
            }
            for why, quota in quotas.items()
        },
        "warnings": warnings,
    }


def loads_data(estimate: PlanEstimate) -> list[dict[str, int]]:
    return [
        {
            "broker": broker,
            "in_bytes": load.in_bytes,
            "out_bytes": load.out_bytes,
            "inbound_bytes_per_s": load.inbound_bytes_per_s,
        }
        for broker, load in estimate.loads.items()
    ]


def _text(
    options: ReassignOptions, estimate: PlanEstimate, quotas: dict[str, int], warnings: list[str]
) -> str:
    moved = f"{estimate.partitions_to_move} of {estimate.partitions_total} partitions"
    copied = f"{size_text(estimate.bytes_to_move)} to copy"
    lines = [
        f"MoveRatio: {_ratio(estimate.ratio)} ({moved}, {copied})",
        "",
        loads_table(estimate, quotas.values()),
        *_range_lines(options, estimate),
    ]
    titles = {
        "given": "Throttle",
        "finish_in": "To finish in time",
        "max_impact": "For that part of the network, with "
        f"{size_text(COPY_COST_BYTES)} of work for each replica to copy",
    }
    for why, quota in quotas.items():
        lines.append(
            f"{titles[why]}: {rate_text(quota)} (--throttle {quota}): {estimate.verdict(quota)}; "
            f"MoveTime {time_text(estimate.tighter_time_ms(quota))}"
        )
        if options.shows_formula:
            lines.append(
                f"  KIP-73's formula: {time_text(estimate.document_time_ms(quota))}; by what each "
                f"broker sends and receives: {time_text(estimate.time_ms(quota))}"
            )
    lines += [f"Warning: {each}" for each in warnings]
    return "".join(f"{line}\n" for line in lines)


def _range_lines(options: ReassignOptions, estimate: PlanEstimate) -> list[str]:
    """Both ranges: of the moving partitions, and the document's, of whole brokers."""
    has_network = options.network_bytes_per_s is not None
    ours = _range(estimate.range, has_network=has_network)
    documents = _range(estimate.document_range, has_network=has_network)
    lines = [
        f"Safe throttle for these partitions: {ours}",
        f"Safe throttle by KIP-73, for all that comes in to a broker: {documents}",
    ]
    if not has_network:
        lines.append("With --network both have an upper bound (network - inbound/replicas)")
    return lines


def _range(allowed: SafeRange, *, has_network: bool) -> str:
    above, below = int(allowed.above_bytes_per_s), int(allowed.below_bytes_per_s)
    if has_network and allowed.is_empty:
        return f"none; {rate_text(above)} come in, and the network leaves only {rate_text(below)}"
    bounds = [f"above {rate_text(above)}"] if above else []
    bounds += [f"below {rate_text(below)}"] if has_network else []
    return ", ".join(bounds) or "any; nothing comes in"


def loads_table(estimate: PlanEstimate, quotas: Iterable[int]) -> str:
    """What each broker receives and sends, and how long that takes at each of these quotas."""
    quotas = list(quotas)
    table = Table(box=None, pad_edge=False)
    for column in ("broker", "in", "out", "inbound", *(f"at {rate_text(each)}" for each in quotas)):
        table.add_column(column, justify="right", no_wrap=True)
    for broker, load in estimate.loads.items():
        table.add_row(
            str(broker),
            size_text(load.in_bytes),
            size_text(load.out_bytes),
            rate_text(load.inbound_bytes_per_s),
            *(time_text(load.time_ms(quota)) for quota in quotas),
        )
    console = Console(width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def time_text(time_ms: int | None) -> str:
    return "never" if time_ms is None else duration(time_ms)


def _ratio(ratio: Fraction) -> str:
    return f"{float(ratio):.4g}"
