"""Proposing a plan and telling what one means, as `insync reassign` does."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.table import Table

from insync.cli.reassign_do import Asked, Told, monotonic_ms
from insync.cli.replica_words import duration
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import execute as moves
from insync.moves import measure, planning
from insync.moves.plan_file import Plan, plan_json
from insync.moves.planning import Outlook
from insync.moves.progress import rate_text, size_text
from insync.rules.balance import balanced
from insync.rules.move_plan import brokers_involved, move_ratio
from insync.rules.move_plan import moves as moving_by
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId

WIDTH = 160


async def generate(admin: Admin, asked: Asked) -> Told:
    cluster = await clusters.look(admin)
    moves.check_topics_exist(cluster, asked.topics)
    brokers = [BrokerId(each) for each in asked.brokers]
    for broker in brokers:
        if broker not in cluster.alive:
            known = ", ".join(str(each) for each in sorted(cluster.alive))
            raise BadPlan(f"--broker-list: broker {broker} is not known; this cluster has {known}")
    current: Plan = {
        partition: tuple(found.replicas)
        for partition, found in sorted(cluster.partitions.items())
        if partition[0] in asked.topics
    }
    busy = sorted(cluster.active.keys() & current.keys())
    if busy:
        raise BadPlan(f"{busy[0][0]}-{busy[0][1]} is being moved; wait until that is over")
    measured = await measure.sizes_only(admin, cluster)
    proposed = balanced(
        current,
        brokers=brokers,
        racks=cluster.racks if asked.is_rack_aware else {},
        sizes=measured.sizes,
    )
    moving = moving_by(cluster.assignments(), proposed, known=cluster.alive)
    ratio = move_ratio(partitions_to_move=len(moving), partitions_total=len(cluster.partitions))
    to_copy = sum(measured.sizes.get(p, 0) * len(move.destinations) for p, move in moving.items())
    # The plan comes last, and the assignment second: scripts cut them out by position.
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
    return Told(data=data, text=text)


async def plan(admin: Admin, asked: Asked) -> Told:
    cluster = await clusters.look(admin)
    prepared = moves.prepare(cluster, asked.plan, is_additional=True)
    measured = await measure.measure(
        admin,
        cluster,
        for_s=asked.measure_s,
        clock_ms=monotonic_ms,
    )
    seen = planning.outlook(
        cluster, prepared.moving, measured, network_bytes_per_s=asked.network_bytes_per_s
    )
    quotas = _quotas(asked, seen)
    involved = brokers_involved(prepared.moving) & cluster.alive
    settings = await planning.fetch_settings(admin, involved)
    warnings = [*measured.problems, *await planning.rate_warnings(admin, involved)]
    for quota in dict.fromkeys(quotas.values()):
        warnings += planning.response_warnings(
            settings,
            quota_bytes_per_s=quota,
            network_bytes_per_s=asked.network_bytes_per_s,
            brokers=seen.brokers,
        )
    return Told(
        data=_data(asked, seen, quotas, warnings), text=_text(asked, seen, quotas, warnings)
    )


def _quotas(asked: Asked, seen: Outlook) -> dict[str, int]:
    """Each throttle that was asked about, by why."""
    quotas = {}
    if asked.throttle_bytes_per_s is not None:
        quotas["given"] = asked.throttle_bytes_per_s
    if asked.finish_in_s is not None:
        quotas["finish_in"] = seen.quota_to_finish(asked.finish_in_s)
    if asked.max_impact is not None and asked.network_bytes_per_s is not None:
        quotas["max_impact"] = max(1, int(asked.network_bytes_per_s * asked.max_impact))
    return quotas


def _data(
    asked: Asked, seen: Outlook, quotas: dict[str, int], warnings: list[str]
) -> dict[str, Any]:
    return {
        "move_ratio": float(seen.ratio),
        "partitions_to_move": seen.partitions_to_move,
        "partitions_total": seen.partitions_total,
        "bytes_to_move": seen.bytes_to_move,
        "log_bytes_per_broker": seen.log_bytes_per_broker,
        "bytes_in_per_s_max": seen.client_bytes_in_max,
        "measured_s": asked.measure_s,
        "safe_above_bytes_per_s": seen.inbound_bytes_per_s,
        "safe_below_bytes_per_s": None
        if asked.network_bytes_per_s is None
        else float(seen.range.below_bytes_per_s),
        "brokers": loads_data(seen),
        "throttles": {
            why: {
                "bytes_per_s": quota,
                "verdict": seen.verdict(quota),
                "move_time_ms": seen.document_time_ms(quota),
                "per_broker_time_ms": seen.time_ms(quota),
            }
            for why, quota in quotas.items()
        },
        "warnings": warnings,
    }


def loads_data(seen: Outlook) -> list[dict[str, int]]:
    return [
        {
            "broker": broker,
            "in_bytes": load.in_bytes,
            "out_bytes": load.out_bytes,
            "inbound_bytes_per_s": load.inbound_bytes_per_s,
        }
        for broker, load in seen.loads.items()
    ]


def _text(asked: Asked, seen: Outlook, quotas: dict[str, int], warnings: list[str]) -> str:
    moved = f"{seen.partitions_to_move} of {seen.partitions_total} partitions"
    lines = [
        f"MoveRatio: {_ratio(seen.ratio)} ({moved}, {size_text(seen.bytes_to_move)} to copy)",
        "",
        loads_table(seen, quotas.values()),
        _range_line(asked, seen),
    ]
    titles = {
        "given": "Throttle",
        "finish_in": "To finish in time",
        "max_impact": "For that part of the network",
    }
    for why, quota in quotas.items():
        lines.append(
            f"{titles[why]}: {quota} B/s ({rate_text(quota)}): {seen.verdict(quota)}; MoveTime "
            f"{time_text(seen.document_time_ms(quota))} by KIP-73's formula, "
            f"{time_text(seen.time_ms(quota))} by each broker's own rates"
        )
    lines += [f"Warning: {each}" for each in warnings]
    return "".join(f"{line}\n" for line in lines)


def _range_line(asked: Asked, seen: Outlook) -> str:
    above = f"above {seen.inbound_bytes_per_s} B/s"
    if asked.network_bytes_per_s is None:
        return f"Safe throttle: {above} (inbound); with --network also an upper bound"
    below = int(seen.range.below_bytes_per_s)
    if seen.range.is_empty:
        return f"Safe throttle: none; inbound {above} and the network leaves only {below} B/s"
    return f"Safe throttle: {above} (inbound), below {below} B/s (network - inbound/replicas)"


def loads_table(seen: Outlook, quotas: Iterable[int]) -> str:
    """What each broker receives and sends, and how long that takes it at each of these quotas."""
    quotas = list(quotas)
    table = Table(box=None, pad_edge=False)
    for column in ("broker", "in", "out", "inbound", *(f"at {each} B/s" for each in quotas)):
        table.add_column(column, justify="right", no_wrap=True)
    for broker, load in seen.loads.items():
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
