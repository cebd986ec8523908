"""`insync reassign`: verify and cancel a plan, sweep throttles."""

from __future__ import annotations

from insync.cli import reassign_lines
from insync.cli.reassign_do import CommandResult, ReassignOptions, ended_data, problems_text
from insync.client import throttle_holds
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import execute as moves
from insync.moves import sweep as sweeping
from insync.moves.cluster import ClusterNow
from insync.moves.sweep import Leftover, SweepResult
from insync.moves.throttle import ThrottleRemoval


async def verify(admin: Admin, options: ReassignOptions) -> CommandResult:
    cluster = await clusters.read_cluster(admin)
    statuses = moves.move_statuses(cluster, options.plan)
    ended, is_preserved = ThrottleRemoval(), False
    if options.preserves_throttles:
        is_preserved = await _preserve_throttle(admin, options, cluster, cancels=False)
    elif not cluster.active:
        ended = await _clear_throttle(admin, options, cluster)
    data = {
        "standing": {reassign_lines.name(key): each.value for key, each in statuses.items()},
        "throttle_preserved": is_preserved,
        **ended_data(ended),
    }
    text = reassign_lines.status(statuses, cluster, options.plan) + reassign_lines.cleared(ended)
    text += reassign_lines.PRESERVED if is_preserved else ""
    return CommandResult(
        data=data, text=text + problems_text(ended), exit_code=1 if ended.problems else 0
    )


async def cancel(admin: Admin, options: ReassignOptions) -> CommandResult:
    cluster = await clusters.read_cluster(admin)
    ended, is_preserved = ThrottleRemoval(), False
    if options.preserves_throttles:
        cancelled = moves.running_moves(cluster, options.plan)
        is_preserved = await _preserve_throttle(admin, options, cluster, cancels=True)
    else:
        cancelled = await moves.cancel(admin, cluster, options.plan, timeout_ms=options.timeout_ms)
        cluster = await clusters.read_cluster(admin)
        ended = await _clear_throttle(admin, options, cluster)
    data = {
        "cancelled": [reassign_lines.name(each) for each in cancelled],
        "throttle_preserved": is_preserved,
        **ended_data(ended),
    }
    text = reassign_lines.cancelled(cancelled) + reassign_lines.cleared(ended)
    text += reassign_lines.PRESERVED if is_preserved else ""
    return CommandResult(
        data=data, text=text + problems_text(ended), exit_code=1 if ended.problems else 0
    )


async def _preserve_throttle(
    admin: Admin, options: ReassignOptions, cluster: ClusterNow, *, cancels: bool
) -> bool:
    return await moves.preserve_throttle(
        admin,
        options.journal(cluster),
        cluster,
        options.plan,
        cancels=cancels,
        timeout_ms=options.timeout_ms,
    )


async def _clear_throttle(
    admin: Admin, options: ReassignOptions, cluster: ClusterNow
) -> ThrottleRemoval:
    is_held = await throttle_holds.is_any_held(admin)
    file = options.journal(cluster)
    return await moves.clear_throttle(admin, file, cluster, options.plan, is_held=is_held)


async def sweep(admin: Admin, options: ReassignOptions) -> CommandResult:
    cluster = await clusters.read_cluster(admin)
    swept = await sweeping.sweep(
        admin,
        options.journal(cluster),
        cluster,
        force=options.force,
        is_held=await throttle_holds.is_any_held(admin),
    )
    return CommandResult(
        data={
            **ended_data(swept.ended),
            "others": [
                {
                    "kind": each.kind,
                    "name": each.name,
                    "setting": each.setting,
                    "value": each.value,
                    "needed": each.is_needed,
                }
                for each in swept.others
            ],
            "others_removed": swept.removed_others,
        },
        text=_sweep_text(swept),
        exit_code=1 if swept.ended.problems else 0,
    )


def _sweep_text(swept: SweepResult) -> str:
    text = reassign_lines.cleared(swept.ended) + problems_text(swept.ended)
    word = "Removed" if swept.removed_others else "Left alone (remove with --force)"
    for each in swept.others:
        action = "Needed by moves under way" if each.is_needed else word
        text += f"{action}: {_leftover(each)}\n"
    return text or "No throttle is left behind.\n"


def _leftover(each: Leftover) -> str:
    return f"{each.kind} {each.name} {each.setting}={each.value}"
