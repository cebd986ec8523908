"""Verifying, cancelling and sweeping, as `insync reassign` tells of it."""

from __future__ import annotations

from insync.cli import reassign_lines
from insync.cli.reassign_do import Asked, Told, ended_data, problems_text
from insync.client import throttle_holds
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import execute as moves
from insync.moves import sweep as sweeping
from insync.moves.cluster import ClusterNow
from insync.moves.sweep import Leftover, Swept
from insync.moves.throttle import Ended


async def verify(admin: Admin, asked: Asked) -> Told:
    cluster = await clusters.look(admin)
    found = moves.standing(cluster, asked.plan)
    ended, is_preserved = Ended(), False
    if asked.preserves_throttles:
        is_preserved = await _preserve_throttle(admin, asked, cluster, cancels=False)
    elif not cluster.active:
        ended = await _clear_throttle(admin, asked, cluster)
    data = {
        "standing": {reassign_lines.name(key): each.value for key, each in found.items()},
        "throttle_preserved": is_preserved,
        **ended_data(ended),
    }
    text = reassign_lines.status(found, cluster, asked.plan) + reassign_lines.cleared(ended)
    text += reassign_lines.PRESERVED if is_preserved else ""
    return Told(data=data, text=text + problems_text(ended), exit_code=1 if ended.problems else 0)


async def cancel(admin: Admin, asked: Asked) -> Told:
    cluster = await clusters.look(admin)
    ended, is_preserved = Ended(), False
    if asked.preserves_throttles:
        cancelled = moves.under_way(cluster, asked.plan)
        is_preserved = await _preserve_throttle(admin, asked, cluster, cancels=True)
    else:
        cancelled = await moves.cancel(admin, cluster, asked.plan, timeout_ms=asked.timeout_ms)
        cluster = await clusters.look(admin)
        ended = await _clear_throttle(admin, asked, cluster)
    data = {
        "cancelled": [reassign_lines.name(each) for each in cancelled],
        "throttle_preserved": is_preserved,
        **ended_data(ended),
    }
    text = reassign_lines.cancelled(cancelled) + reassign_lines.cleared(ended)
    text += reassign_lines.PRESERVED if is_preserved else ""
    return Told(data=data, text=text + problems_text(ended), exit_code=1 if ended.problems else 0)


async def _preserve_throttle(
    admin: Admin, asked: Asked, cluster: ClusterNow, *, cancels: bool
) -> bool:
    return await moves.preserve_throttle(
        admin,
        asked.journal(cluster),
        cluster,
        asked.plan,
        cancels=cancels,
        timeout_ms=asked.timeout_ms,
    )


async def _clear_throttle(admin: Admin, asked: Asked, cluster: ClusterNow) -> Ended:
    is_held = await throttle_holds.is_any_held(admin)
    file = asked.journal(cluster)
    return await moves.clear_throttle(admin, file, cluster, asked.plan, is_held=is_held)


async def sweep(admin: Admin, asked: Asked) -> Told:
    cluster = await clusters.look(admin)
    swept = await sweeping.sweep(
        admin,
        asked.journal(cluster),
        cluster,
        force=asked.force,
        is_held=await throttle_holds.is_any_held(admin),
    )
    return Told(
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
        text=_swept(swept),
        exit_code=1 if swept.ended.problems else 0,
    )


def _swept(swept: Swept) -> str:
    text = reassign_lines.cleared(swept.ended) + problems_text(swept.ended)
    word = "Removed" if swept.removed_others else "Left alone (remove with --force)"
    for each in swept.others:
        fate = "Needed by what is under way" if each.is_needed else word
        text += f"{fate}: {_leftover(each)}\n"
    return text or "No throttle is left behind.\n"


def _leftover(each: Leftover) -> str:
    return f"{each.kind} {each.name} {each.setting}={each.value}"
