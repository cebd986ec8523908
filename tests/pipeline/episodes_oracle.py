"""Episodes from lists of rows, the slow and obvious way: every question asked of every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Tables = dict[str, list[Row]]

SETTINGS: dict[str, tuple[str, Callable[[str], Any], Any]] = {
    "policy": ("replica.in.sync.policy", str, "caught-up"),
    "lag_time_max_ms": ("replica.lag.time.max.ms", int, 30_000),
    "min_isr": ("min.insync.replicas", int, 1),
}


def episodes(tables: Tables) -> list[Row]:
    isr, fetches, appends = tables["isr"], tables["fetches"], tables["appends"]
    ends = [row["at_ms"] for row in (*isr, *appends)] + [row["last_at_ms"] for row in fetches]
    record_end_ms = max(ends)
    places = {(row["topic"], row["partition"]) for row in (*isr, *fetches)}
    found = []
    for topic, partition in sorted(places):
        own = {
            name: [
                row
                for row in rows
                if (row.get("topic"), row.get("partition")) == (topic, partition)
            ]
            for name, rows in tables.items()
        }
        others = {name: tables[name] for name in ("configs", "stalls", "throttle")}
        found += Partition(own | others, topic, partition, record_end_ms).episodes()
    return found


def number(change: Row) -> int:
    version: int | None = change["version"]
    at_ms: int = change["at_ms"]
    return at_ms if version is None else version


def decided_at_ms(change: Row) -> int:
    decided: int | None = change["decided_at_ms"]
    at_ms: int = change["at_ms"]
    return at_ms if decided is None else decided


class Partition:
    def __init__(self, tables: Tables, topic: str, partition: int, record_end_ms: int) -> None:
        self.tables, self.topic, self.partition = tables, topic, partition
        self.record_end_ms = record_end_ms
        self.isr = sorted(
            tables["isr"], key=lambda row: (row["leader_epoch"], number(row), row["at_ms"])
        )

    def episodes(self) -> list[Row]:
        fetching = {row["follower"] for row in self.tables["fetches"]}
        changing = {row["replica"] for row in self.isr}
        found = []
        for follower in sorted(fetching | changing):
            own = self._told(follower) if follower in changing else self._silent(follower)
            group, back_ms = 0, None
            for episode in own:
                in_a_row = (
                    back_ms is not None
                    and episode["left_at_ms"] is not None
                    and episode["left_at_ms"] - back_ms <= episode["lag_time_max_ms"]
                )
                group += not in_a_row
                episode["flap_group"] = group
                back_ms = episode["rejoined_at_ms"]
            for episode in own:
                alike = [each for each in own if each["flap_group"] == episode["flap_group"]]
                episode["flaps"] = len(alike)
            found += own
        return found

    def _told(self, follower: int) -> list[Row]:
        changes: list[Row] = []
        for row in self.isr:
            if row["replica"] != follower:
                continue
            again = changes and (changes[-1]["change"], number(changes[-1])) == (
                row["change"],
                number(row),
            )
            if not again:
                changes.append(row)
        found = []
        for at, change in enumerate(changes):
            after = changes[at + 1] if at + 1 < len(changes) else None
            if change["change"] == "shrink":
                back = after if after and after["change"] == "expand" else None
                ending = "rejoined" if back else "open" if after is None else "unrecorded"
                found.append(self._left(follower, change, back, ending))
            elif at == 0 or changes[at - 1]["change"] == "expand":
                was_in = at > 0 or follower in self.isr[0]["isr_before"]
                found.append(self._came(follower, change, was_in=was_in))
        return found

    def _silent(self, follower: int) -> list[Row]:
        heard = [row for row in self.tables["fetches"] if row["follower"] == follower]
        appends = self.tables["appends"]
        if any(row["leader"] == follower for row in appends):
            return []
        if self.isr:
            was_in = follower in self.isr[0]["isr_before"]
        elif not appends:
            was_in = True
        else:
            first_epoch = min(row["leader_epoch"] for row in appends)
            was_in = min(row["leader_epoch"] for row in heard) <= first_epoch
        if was_in:
            return []
        last = max(heard, key=lambda row: (row["leader_epoch"], row["at_ms"], row["leader"]))
        told = {"leader": last["leader"], "leader_epoch": last["leader_epoch"], "reason": None}
        return [self._bootstrapping(follower, told, rejoined_at_ms=None, ending="open")]

    def _came(self, follower: int, change: Row, *, was_in: bool) -> Row:
        told = {name: change[name] for name in ("leader", "leader_epoch", "reason")}
        if not was_in:
            told["asked_at_ms"] = decided_at_ms(change)
            return self._bootstrapping(
                follower, told, rejoined_at_ms=change["at_ms"], ending="rejoined"
            )
        return self._finished(
            told
            | {"asked_at_ms": decided_at_ms(change)}
            | {"follower": follower, "cause": "unrecorded", "began_at_ms": None}
            | {"left_at_ms": None, "rejoined_at_ms": change["at_ms"], "ending": "rejoined"}
            | {"kip501_would_hold": None, "lag_ms": None, "lag_messages": None, "lag_bytes": None}
        )

    def _bootstrapping(
        self, follower: int, told: Row, *, rejoined_at_ms: int | None, ending: str
    ) -> Row:
        heard = [row for row in self.tables["fetches"] if row["follower"] == follower]
        first = min(heard, key=lambda row: (row["at_ms"], row["seq"]), default=None)
        lacks = None if first is None else first["leader_end_low"] - first["offset"]
        return self._finished(
            told
            | {"follower": follower, "cause": "bootstrapping"}
            | {"began_at_ms": None if first is None else first["at_ms"], "left_at_ms": None}
            | {"rejoined_at_ms": rejoined_at_ms, "ending": ending}
            | {"kip501_would_hold": None, "lag_ms": None, "lag_messages": lacks, "lag_bytes": None}
        )

    def _left(self, follower: int, change: Row, back: Row | None, ending: str) -> Row:
        left_ms = decided_at_ms(change)
        settings = self._settings(change["leader"], left_ms)
        limit_ms = settings["lag_time_max_ms"]
        by_leader = change["decided_by"] == "leader"
        heard = [row for row in self.tables["fetches"] if row["follower"] == follower]
        in_epoch = [row for row in heard if row["leader_epoch"] == change["leader_epoch"]]

        def served(rows: list[Row]) -> list[int]:
            """The moments of effective fetches that were heard of by then."""
            return [
                min(row["last_at_ms"], left_ms)
                for row in rows
                if row["outcome"] == "ok"
                and row["at_ms"] + row["read_ms"] <= left_ms
                and max(row["last_at_ms"], row["at_ms"] + row["read_ms"]) >= left_ms - 3 * limit_ms
            ]

        read_ms = 0
        for row in in_epoch:
            began, ended = row["at_ms"], row["at_ms"] + row["read_ms"]
            read_ms += max(0, min(ended, left_ms) - max(began, left_ms - limit_ms))
        was_throttled = any(
            row["throttled"]
            and row["at_ms"] <= left_ms
            and min(row["last_at_ms"], left_ms) >= left_ms - limit_ms
            for row in in_epoch
        )
        held = {
            row["at_ms"] // 1_000
            for row in self.tables["throttle"]
            if (row["broker"], row["side"]) == (follower, "follower")
            and row["held_back_partitions"] > 0
            and left_ms - limit_ms <= row["at_ms"] <= left_ms
        }
        lag_ms, lag_messages, lag_bytes = self._lag(change, left_ms)
        recent = [at_ms for at_ms in served(in_epoch) if at_ms >= left_ms - limit_ms]
        caught_up_ms = change["caught_up_at_ms"]
        caught_up_ms = left_ms if caught_up_ms is None else min(left_ms, caught_up_ms)
        if not by_leader:
            cause, began_ms = "controller", max(served(heard), default=left_ms)
        elif 2 * read_ms >= limit_ms:
            cause, began_ms = "leader-slow-reads", caught_up_ms
        elif was_throttled or 2 * 1_000 * len(held) >= limit_ms:
            cause, began_ms = "throttled", caught_up_ms
        elif not recent:
            cause, began_ms = "stuck", max(served(in_epoch), default=caught_up_ms)
        elif settings["policy"] == "messages" and (lag_ms or 0) <= limit_ms:
            cause, began_ms = "burst", caught_up_ms
        else:
            cause, began_ms = "slow", caught_up_ms
        return self._finished(
            {
                "asked_at_ms": left_ms,
                "follower": follower,
                "leader": change["leader"],
                "leader_epoch": change["leader_epoch"],
                "reason": change["reason"],
                "cause": cause,
                "began_at_ms": began_ms,
                "left_at_ms": left_ms,
                "rejoined_at_ms": back["at_ms"] if back else None,
                "ending": ending,
                "kip501_would_hold": self._held(in_epoch, left_ms, limit_ms) if by_leader else None,
                "lag_ms": lag_ms,
                "lag_messages": lag_messages,
                "lag_bytes": lag_bytes,
            }
        )

    def _held(self, in_epoch: list[Row], left_ms: int, limit_ms: int) -> bool:
        for read in in_epoch:
            if not read["at_ms"] <= left_ms < read["at_ms"] + read["read_ms"]:
                continue
            ends = [
                row["leader_end_low"]
                for row in in_epoch
                if (row["at_ms"], row["seq"]) < (read["at_ms"], read["seq"])
                and row["outcome"] == "ok"
                and max(row["last_at_ms"], row["at_ms"] + row["read_ms"]) >= left_ms - 3 * limit_ms
            ]
            if ends and read["offset"] >= max(ends):
                return True
        return False

    def _lag(self, change: Row, left_ms: int) -> tuple[int | None, int | None, int | None]:
        end, leader_end = change["replica_end"], change["leader_end"]
        if end is None or leader_end is None:
            return None, None, None
        lacking = [
            row
            for row in self.tables["appends"]
            if row["leader_epoch"] == change["leader_epoch"]
            and row["end_offset"] > row["base_offset"]
            and row["end_offset"] > end
        ]
        since = min(lacking, key=lambda row: row["end_offset"], default=None)
        size = sum(row["bytes"] for row in lacking if row["end_offset"] <= leader_end)
        lag_ms = 0 if end >= leader_end else None if since is None else left_ms - since["at_ms"]
        return lag_ms, leader_end - end, size

    def _settings(self, leader: int, at_ms: int) -> Row:
        found = {}
        for column, (name, read, default) in SETTINGS.items():
            value = None
            for scope in (f"broker:{leader}", f"broker:{leader}/topic:{self.topic}"):
                rows = [
                    row
                    for row in self.tables["configs"]
                    if (row["scope"], row["name"]) == (scope, name) and row["at_ms"] <= at_ms
                ]
                if rows:
                    value = max(rows, key=lambda row: (row["at_ms"], row["value"]))["value"]
            found[column] = default if value is None else read(value)
        return found

    def _finished(self, episode: Row) -> Row:
        left, began = episode["left_at_ms"], episode["began_at_ms"]
        back = episode["rejoined_at_ms"]
        asked_at_ms = episode.pop("asked_at_ms", 2**62)
        settings = self._settings(episode["leader"], asked_at_ms)
        is_known = episode["ending"] != "unrecorded"
        end = back if back is not None else self.record_end_ms if is_known else None
        start = began if left is None else left
        out_ms = None if end is None or start is None else end - start
        changes = {
            (row["at_ms"], row["leader_epoch"])
            for row in self.tables["elections"]
            if began is not None and end is not None and began <= row["at_ms"] <= end
        }
        sides = {(episode["follower"], "follower"), (episode["leader"], "leader")}
        held = {
            row["at_ms"] // 1_000
            for row in self.tables["throttle"]
            if (row["broker"], row["side"]) in sides
            and row["held_back_partitions"] > 0
            and began is not None
            and end is not None
            and began <= row["at_ms"] <= end
        }
        stalled_ms = sum(
            max(0, min(at_ms + stall_ms, left) - max(at_ms, began))
            for at_ms, stall_ms in {
                (row["at_ms"], row["stall_ms"])
                for row in self.tables["stalls"]
                if row["broker"] == episode["leader"] and left is not None and began is not None
            }
        )
        return episode | {
            "topic": self.topic,
            "partition": self.partition,
            "out_ms": out_ms,
            "policy": settings["policy"],
            "lag_time_max_ms": settings["lag_time_max_ms"],
            "under_min_isr_ms": self._under_min_isr(start, end),
            "leader_changes": len(changes),
            "leader_stall_ms": stalled_ms,
            "held_back_ms": 1_000 * len(held),
        }

    def _under_min_isr(self, start: int | None, end: int | None) -> int:
        if start is None or end is None:
            return 0
        replicas = {each for row in self.isr for each in (*row["isr_before"], *row["isr_after"])}
        states: dict[tuple[int, int], list[Row]] = {}
        for row in self.isr:
            states.setdefault((row["leader_epoch"], number(row)), []).append(row)
        spans = [(min(row["at_ms"] for row in rows), rows) for _, rows in sorted(states.items())]
        under_ms = 0
        for at, (from_ms, rows) in enumerate(spans):
            to_ms = spans[at + 1][0] if at + 1 < len(spans) else self.record_end_ms
            leader = max(row["leader"] for row in rows)
            asked_at_ms = min(decided_at_ms(row) for row in rows)
            minimum = min(self._settings(leader, asked_at_ms)["min_isr"], len(replicas))
            if max(len(row["isr_after"]) for row in rows) < minimum:
                under_ms += max(0, min(to_ms, end) - max(from_ms, start))
        return under_ms
