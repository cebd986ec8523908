"""Episodes that belong together, found by comparing each with each."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def span(episode: Row) -> tuple[int, int] | None:
    began, left, back = (episode[f"{name}_at_ms"] for name in ("began", "left", "rejoined"))
    times = [each for each in (began, left, back) if each is not None]
    if not times:
        return None
    start = times[0] if left is None else left
    end = back if episode["out_ms"] is None else start + episode["out_ms"]
    return times[0], max(times[0], start if end is None else end)


def incident_groups(episodes: list[Row]) -> list[list[Row]]:
    """The episodes of each incident, with their broker and their times `from` and `to`.

    Whatever overlaps anything of a group joins it, until nothing does any more.
    """
    groups: list[list[Row]] = []
    for episode in episodes:
        own = span(episode)
        if own is None:
            continue
        one = episode | {"from": own[0], "to": own[1]}
        one["broker"] = one["leader" if one["cause"] == "leader-slow-reads" else "follower"]
        joined = [one]
        for group in list(groups):
            alike = (group[0]["broker"], group[0]["cause"]) == (one["broker"], one["cause"])
            if alike and any(
                each["from"] <= one["to"] and one["from"] <= each["to"] for each in group
            ):
                groups.remove(group)
                joined += group
        groups.append(joined)
    return groups
