"""The row of the table `plans` on a terminal: what to do, when, why, and the commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from insync.cli.sheet import ResultTable, line
from insync.pipeline.tables.balance_plan import BALANCED, MOVE
from insync.pipeline.words import count, duration, rate, size

if TYPE_CHECKING:
    from rich.console import RenderableType

MOVES_SHOWN: Final = 20
BROKER_COLUMNS: Final = (
    "broker",
    "inbound_bytes_per_s",
    "new_inbound_bytes_per_s",
    "client_inbound_bytes_per_s",
    "new_client_inbound_bytes_per_s",
    "leaders",
    "new_leaders",
    "unfit",
)
HOUR_COLUMNS: Final = (
    "hour_UTC",
    "throttle_min_bytes_per_s",
    "throttle_max_bytes_per_s",
    "client_inbound_bytes_per_s",
    "move_time_ms",
    "covered_ms",
)
MOVE_COLUMNS: Final = ("partition", "replicas", "new replicas", "copies", "size_bytes")

ONLY_LEADERS: Final = (
    "It copies nothing: MoveRatio 0. Preferred leaders lead after the next preferred leader "
    "election (auto.leader.rebalance.enable)."
)

Row = Mapping[str, Any]


def plan_view(row: Row, out: str) -> list[RenderableType]:
    parts: list[RenderableType] = [
        ResultTable("brokers", BROKER_COLUMNS, row["brokers"], "bytes in are means of the record"),
        "",
        ResultTable("hours", HOUR_COLUMNS, _hours(row), _hours_caption(row)),
        "",
    ]
    if row["moves"]:
        shown = row["moves"][:MOVES_SHOWN]
        caption = f"{len(shown)} of {count(len(row['moves']), 'partition')}"
        caption += f": {out}/plan.json has all" if len(shown) < len(row["moves"]) else ""
        parts += [ResultTable("moves", MOVE_COLUMNS, [_move(each) for each in shown], caption), ""]
    parts.append(Text(_headline(row), style="bold"))
    parts += [Text(statement) for statement in (*_estimates(row), *row["statements"])]
    parts += [line(f"{name:>9}  {command}") for name, command in plan_commands(row, out)]
    return [*parts, ""]


def _headline(row: Row) -> str:
    if row["verdict"] == MOVE:
        words = [
            f"move {count(row['partitions_to_move'], 'partition')}"
            if row["partitions_to_move"]
            else "",
            f"change the preferred leader of {count(row['partitions_to_reorder'], 'partition')}"
            if row["partitions_to_reorder"]
            else "",
        ]
        what = " and ".join(each for each in words if each)
        return f"{what[0].upper()}{what[1:]}: {row['reason']}."
    if row["verdict"] == BALANCED:
        return f"Nothing to move: {row['reason']}."
    return f"No plan: {row['reason']}."


def _estimates(row: Row) -> list[str]:
    """MoveRatio and MoveTime, the throttle and the hour."""
    if row["verdict"] != MOVE:
        return []
    if not row["partitions_to_move"]:
        return [ONLY_LEADERS]
    move_time, by_broker = _time(row["move_time_ms"]), _time(row["per_broker_time_ms"])
    begin = (
        "The record gives no choice of an hour to begin."
        if row["best_hour"] is None
        else f"Best begun at {row['best_hour']:02}:00 UTC."
    )
    copied = (
        f"{row['partitions_to_move']:,} of {row['partitions_total']:,} partitions, "
        f"{size(row['bytes_to_move'])} to copy"
    )
    throttle = rate(row["throttle_bytes_per_s"])
    times = (
        f"KIP-73's MoveTime is {move_time}, and by what each broker sends and receives {by_broker}"
    )
    return [
        f"MoveRatio {row['move_ratio']:.4g} ({copied}).",
        f"With a throttle of {throttle} {times}. {begin}",
    ]


def _time(time_ms: int | None) -> str:
    return "without end" if time_ms is None else duration(time_ms)


def plan_commands(row: Row, out: str) -> list[tuple[str, str]]:
    """What each command does, and the command."""
    if row["verdict"] != MOVE:
        return []
    execute = "insync reassign -b HOST:PORT --execute --reassignment-json-file"
    quota = row["throttle_bytes_per_s"]
    throttle = "" if quota is None else f" --throttle {quota}"
    return [
        ("check", f"insync reassign -b HOST:PORT --plan {out}/plan.json"),
        ("move", f"{execute} {out}/plan.json{throttle}"),
        ("go back", f"{execute} {out}/rollback.json{throttle}"),
    ]


def _hours(row: Row) -> list[dict[str, Any]]:
    return [{**each, "hour_UTC": f"{each['hour']:02}"} for each in row["hours"]]


def _hours_caption(row: Row) -> str:
    lowest, highest = row["throttle_min_bytes_per_s"], row["throttle_max_bytes_per_s"]
    below = "" if highest is None else f" to {rate(highest)}"
    if highest is not None and highest < lowest:
        return "no throttle is safe in every recorded hour"
    without = "; --network gives an upper bound" if highest is None else ""
    return f"safe in every recorded hour: {rate(lowest)}{below}{without}"


def _move(each: Row) -> dict[str, Any]:
    return {
        "partition": f"{each['topic']}-{each['partition']}",
        "replicas": ",".join(map(str, each["replicas"])),
        "new replicas": ",".join(map(str, each["new_replicas"])),
        "copies": each["copies"],
        "size_bytes": each["size_bytes"],
    }
