"""Episodes from lists of rows, the slow and obvious way: every row for every question."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from insync.telemetry.replay.histories import by_creation
from insync.telemetry.schemas import REASSIGNMENT

Row = dict[str, Any]
Tables = dict[str, list[Row]]

LAST_EPOCH = 2**31 - 1
CONTROLLER_CAUSES = {
    "broker-gone": "broker-down",
    "broker-frozen": "frozen",
    "replica-offline": "replica-offline",
}
SETTINGS: dict[str, tuple[str, Callable[[str], Any], Any]] = {
    "policy": ("replica.in.sync.policy", str, "caught-up"),
    "lag_time_max_ms": ("replica.lag.time.max.ms", int, 30_000),
    "min_isr": ("min.insync.replicas", int, 1),
}


def episodes(tables: Tables) -> list[Row]:
    """Each creation of a topic is computed on its own."""
    return [episode for known in partitions_of(tables) for episode in known.episodes()]


def partitions_of(tables: Tables) -> list[Partition]:
    nothing: Tables = {"assignments": []}
    made: list[Tables] = [
        {name: [dict(row) for row in rows] for name, rows in some.items()}
        for some in by_creation(nothing | tables)
    ]
    ends = [row["at_ms"] for row in (*tables["isr"], *tables["appends"])]
    end_ms = max(ends + [row["last_at_ms"] for row in tables["fetches"]])
    activity = active_slots(tables)
    result = []
    for some, later in zip(made, [*made[1:], nothing], strict=True):
        keys = {
            (row["topic"], row["partition"]) for name in ("isr", "fetches") for row in some[name]
        }
        for key in sorted(keys):
            own = {
                name: [row for row in rows if (row.get("topic"), row.get("partition")) == key]
                for name, rows in some.items()
            }
            others = {name: tables[name] for name in ("configs", "stalls", "throttle")}
            known = Partition(own | others, *key, end_ms)
            known.activity = activity
            created_ms = (
                row["at_ms"]
                for row in later["assignments"]
                if (row["topic"], row["partition"]) == key
            )
            known.replaced_at_ms = min(created_ms, default=None)
            result.append(known)
    return result


Slots = dict[int, set[tuple[int, int, str, int]]]


def active_slots(tables: Tables) -> Slots:
    """By broker: when it did something, as first and last tenth of a second, and where."""
    slots: Slots = {}
    for row in (*tables["fetches"], *tables["appends"]):
        first, where = row["at_ms"] // 100, (row["topic"], row["partition"])
        slots.setdefault(row["leader"], set()).add((first, first, *where))
        if "follower" in row:
            last_ms = row["at_ms"] if row["last_at_ms"] is None else row["last_at_ms"]
            slots.setdefault(row["follower"], set()).add((first, last_ms // 100, *where))
    return slots


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
        self.replaced_at_ms: int | None = None  # when another topic got its name
        self.activity: Slots = {}
        self.assignments = sorted(
            tables.get("assignments", []),
            key=lambda row: (row["leader_epoch"], row["version"], row["at_ms"]),
        )
        self.isr = sorted(
            tables["isr"], key=lambda row: (row["leader_epoch"], number(row), row["at_ms"])
        )

    def episodes(self) -> list[Row]:
        fetching = {row["follower"] for row in self.tables["fetches"]}
        changing = {row["replica"] for row in self.isr}
        result = []
        for follower in sorted(fetching | changing):
            own = self._of_replica(follower)
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
            result += own
        return result

    def is_silent(self, follower: int, left_ms: int, limit_ms: int) -> bool:
        """And was not before, in another partition."""
        since_ms = left_ms - limit_ms
        before = [slot for slot in self.activity.get(follower, ()) if 100 * slot[0] <= left_ms - 99]
        is_silent = not any(100 * last >= since_ms for _, last, *_ in before)
        return is_silent and any(
            100 * last >= since_ms - limit_ms and where != [self.topic, self.partition]
            for _, last, *where in before
        )

    def removals(self, follower: int) -> list[Row]:
        moves = {
            row["leader_epoch"]: {"at_ms": row["at_ms"], "ending": "moved-away"}
            for row in reversed(self.isr)
            if row["replica"] == follower and row["cause"] == REASSIGNMENT
        }
        for before, after in pairwise(self.assignments):
            if follower in before["replicas"] and follower not in after["replicas"]:
                ending = "move-cancelled" if follower in before["adding"] else "moved-away"
                epoch = after["leader_epoch"]
                if not after["replicas"]:
                    ending, epoch = "topic-deleted", LAST_EPOCH
                moves[epoch] = {"at_ms": after["at_ms"], "ending": ending}
        if self.assignments and follower not in self.assignments[0]["replicas"]:
            first = self.assignments[0]
            seen = [row["leader_epoch"] for row in self.isr if row["replica"] == follower]
            seen += [
                row["leader_epoch"] for row in self.tables["fetches"] if row["follower"] == follower
            ]
            if seen and not first["replicas"]:
                moves[LAST_EPOCH] = {"at_ms": first["at_ms"], "ending": "topic-deleted"}
            elif seen and min(seen) < first["leader_epoch"]:
                moves[first["leader_epoch"]] = {"at_ms": first["at_ms"], "ending": "moved-away"}
        last = self.assignments[-1]["replicas"] if self.assignments else []
        if self.replaced_at_ms is not None and follower in last:
            moves[LAST_EPOCH] = {"at_ms": self.replaced_at_ms, "ending": "topic-deleted"}
        return [row | {"leader_epoch": epoch} for epoch, row in moves.items()]

    def deleted_at_ms(self) -> list[int]:
        """When its topic was deleted, or another one got its name: once, if at all."""
        brokers = {broker for row in self.assignments for broker in row["replicas"]}
        removals = [row for broker in brokers for row in self.removals(broker)]
        return sorted({row["at_ms"] for row in removals if row["ending"] == "topic-deleted"})

    def is_added(self, follower: int) -> bool:
        own = [row for row in self.assignments if follower in row["replicas"]]
        return bool(own) and follower in own[0]["adding"]

    def _of_replica(self, follower: int) -> list[Row]:
        """Each time that it was a replica is computed on its own."""
        moves = self.removals(follower)
        result = []
        for begun in (None, *sorted({row["leader_epoch"] for row in moves})):
            later = [each for each in moves if begun is None or each["leader_epoch"] > begun]
            moved = min(later, key=lambda row: (row["leader_epoch"], row["at_ms"]), default=None)

            def is_now(row: Row, begun: int | None = begun, moved: Row | None = moved) -> bool:
                is_early = begun is not None and row["leader_epoch"] < begun
                is_late = moved is not None and row["leader_epoch"] >= moved["leader_epoch"]
                return not is_early and not is_late

            changes = [
                row
                for row in self.isr
                if row["replica"] == follower and row["cause"] != REASSIGNMENT and is_now(row)
            ]
            fetches_of_follower = [
                row
                for row in self.tables["fetches"]
                if row["follower"] == follower
                and is_now(row)
                and (begun is None or row["outcome"] == "ok")
            ]
            if changes:
                result += self._from_changes(follower, changes, fetches_of_follower, begun, moved)
            elif fetches_of_follower:
                result += self._without_changes(follower, fetches_of_follower, begun, moved)
        return result

    def _from_changes(
        self,
        follower: int,
        rows: list[Row],
        fetches_of_follower: list[Row],
        begun: int | None,
        moved: Row | None,
    ) -> list[Row]:
        changes: list[Row] = []
        for row in rows:
            again = changes and (changes[-1]["change"], number(changes[-1])) == (
                row["change"],
                number(row),
            )
            if not again:
                changes.append(row)
        led = {
            row["leader_epoch"]
            for row in self.tables["appends"]
            if row["leader"] == follower
            and (begun is None or row["leader_epoch"] >= begun)
            and (moved is None or row["leader_epoch"] < moved["leader_epoch"])
        }

        def has_led(one: Row | None, other: Row | None) -> bool:
            """Between two changes, which a leader does not lose."""
            since = -1 if one is None else one["leader_epoch"]
            until = LAST_EPOCH if other is None else other["leader_epoch"]
            return any(since <= epoch < until for epoch in led)

        result = []
        for at, change in enumerate(changes):
            before = changes[at - 1] if at else None
            after = changes[at + 1] if at + 1 < len(changes) else None
            if change["change"] == "shrink":
                back = after if after and after["change"] == "expand" else None
                ending = "rejoined" if back else "open" if after is None else "unrecorded"
                if has_led(change, after):
                    back, ending = None, "unrecorded"
                if ending == "open" and moved is not None:
                    ending = moved["ending"]
                result.append(self._left(follower, change, back, ending, moved))
            elif before is None or before["change"] == "expand" or has_led(before, change):
                was_in_first = begun is None and follower in self.isr[0]["isr_before"]
                was_in = at > 0 or was_in_first or has_led(None, change)
                result.append(
                    self._came(follower, change, fetches_of_follower, begun, was_in=was_in)
                )
        return result

    def _without_changes(
        self, follower: int, fetches_of_follower: list[Row], begun: int | None, moved: Row | None
    ) -> list[Row]:
        appends = self.tables["appends"]
        has_led = any(
            row["leader"] == follower and (begun is None or row["leader_epoch"] >= begun)
            for row in appends
        )
        if has_led:
            return []
        if begun is not None:
            was_in = False
        elif self.isr:
            was_in = follower in self.isr[0]["isr_before"]
        elif not appends:
            was_in = True
        elif self.is_added(follower):
            was_in = False
        else:
            first_epoch = min(row["leader_epoch"] for row in appends)
            served = [row for row in fetches_of_follower if row["outcome"] == "ok"]
            is_behind = bool(served) and all(
                row["high_watermark"] is not None and row["high_watermark"] > row["offset"]
                for row in served
            )
            is_new = min(row["leader_epoch"] for row in fetches_of_follower) > first_epoch
            was_in = not is_new and not is_behind
        if was_in:
            return []
        last = max(
            fetches_of_follower, key=lambda row: (row["leader_epoch"], row["at_ms"], row["leader"])
        )
        facts = {"leader": last["leader"], "leader_epoch": last["leader_epoch"], "reason": None}
        ending = "open" if moved is None else moved["ending"]
        if moved is not None:
            facts["moved_at_ms"] = moved["at_ms"]
        return [
            self._outside(
                follower, facts, fetches_of_follower, begun, rejoined_at_ms=None, ending=ending
            )
        ]

    def _came(
        self,
        follower: int,
        change: Row,
        fetches_of_follower: list[Row],
        begun: int | None,
        *,
        was_in: bool,
    ) -> Row:
        facts = {name: change[name] for name in ("leader", "leader_epoch", "reason")}
        if not was_in:
            facts["asked_at_ms"] = decided_at_ms(change)
            return self._outside(
                follower,
                facts,
                fetches_of_follower,
                begun,
                rejoined_at_ms=change["at_ms"],
                ending="rejoined",
            )
        return self._finished(
            facts
            | {"asked_at_ms": decided_at_ms(change)}
            | {"follower": follower, "cause": "unrecorded", "began_at_ms": None}
            | {"left_at_ms": None, "rejoined_at_ms": change["at_ms"], "ending": "rejoined"}
            | {"kip501_would_hold": None, "lag_ms": None, "lag_messages": None, "lag_bytes": None}
        )

    def _outside(
        self,
        follower: int,
        facts: Row,
        fetches_of_follower: list[Row],
        begun: int | None,
        *,
        rejoined_at_ms: int | None,
        ending: str,
    ) -> Row:
        first = min(fetches_of_follower, key=lambda row: (row["at_ms"], row["seq"]), default=None)
        lacks = None if first is None else first["leader_end_low"] - first["offset"]
        is_empty = first is None or begun is not None or first["log_start"] is None
        if first is not None and not is_empty:
            is_empty = first["offset"] <= first["log_start"]
        return self._finished(
            facts
            | {"follower": follower, "cause": "bootstrapping" if is_empty else "unrecorded"}
            | {"began_at_ms": None if first is None else first["at_ms"], "left_at_ms": None}
            | {"rejoined_at_ms": rejoined_at_ms, "ending": ending}
            | {"kip501_would_hold": None, "lag_ms": None, "lag_messages": lacks, "lag_bytes": None}
        )

    def _left(
        self, follower: int, change: Row, back: Row | None, ending: str, moved: Row | None
    ) -> Row:
        left_ms = decided_at_ms(change)
        settings = self._settings(change["leader"], left_ms)
        limit_ms = settings["lag_time_max_ms"]
        by_leader = change["decided_by"] == "leader"
        fetches_of_follower = [row for row in self.tables["fetches"] if row["follower"] == follower]
        in_epoch = [
            row for row in fetches_of_follower if row["leader_epoch"] == change["leader_epoch"]
        ]

        def served(rows: list[Row]) -> list[int]:
            """The times of effective fetches that were recorded by then."""
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
            cause = CONTROLLER_CAUSES.get(change["cause"], "controller")
            recent_epochs = range(change["leader_epoch"] - 1, 2**31)
            recent_rows = [
                row for row in fetches_of_follower if row["leader_epoch"] in recent_epochs
            ]
            began_ms = max(served(recent_rows), default=left_ms)
        elif 2 * read_ms >= limit_ms:
            cause, began_ms = "leader-slow-reads", caught_up_ms
        elif was_throttled or (recent and 2 * 1_000 * len(held) >= limit_ms):
            cause, began_ms = "throttled", caught_up_ms
        elif not recent:
            is_silent = self.is_silent(follower, left_ms, limit_ms)
            cause = "frozen" if is_silent else "stuck"
            began_ms = max(served(in_epoch), default=caught_up_ms)
        elif settings["policy"] == "messages" and (lag_ms or 0) <= limit_ms:
            cause, began_ms = "burst", caught_up_ms
        else:
            cause, began_ms = "slow", caught_up_ms
        return self._finished(
            {
                "asked_at_ms": left_ms,
                "moved_at_ms": moved["at_ms"] if moved else None,
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
        epoch = [
            row for row in self.tables["appends"] if row["leader_epoch"] == change["leader_epoch"]
        ]
        lacking = [row for row in epoch if row["end_offset"] > max(end, row["base_offset"])]
        size = sum(row["bytes"] for row in lacking if row["end_offset"] <= leader_end)
        lag_ms = None
        if end >= leader_end:
            lag_ms = 0
        elif epoch and end < min(row["base_offset"] for row in epoch):
            lag_ms = left_ms - min(row["at_ms"] for row in epoch)
        elif lacking:
            lag_ms = left_ms - min(row["at_ms"] for row in lacking)
        return lag_ms, leader_end - end, size

    def _settings(self, leader: int, at_ms: int) -> Row:
        result = {}
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
            result[column] = default if value is None else read(value)
        return result

    def _finished(self, episode: Row) -> Row:
        left, began = episode["left_at_ms"], episode["began_at_ms"]
        back = episode["rejoined_at_ms"]
        fetched_at_ms = episode.pop("asked_at_ms", 2**62)
        settings = self._settings(episode["leader"], fetched_at_ms)
        moved_at_ms = episode.pop("moved_at_ms", None)
        end = {
            "rejoined": back,
            "open": self.record_end_ms,
            **dict.fromkeys(("moved-away", "move-cancelled", "topic-deleted"), moved_at_ms),
            "unrecorded": None,
        }[episode["ending"]]
        start = began if left is None else left
        out_ms = None if end is None or start is None else max(0, end - start)
        changes = {
            (row["at_ms"], row["leader_epoch"])
            for row in self.tables["elections"]
            if row["leader_before"] != row["leader_after"]
            and began is not None
            and end is not None
            and began <= row["at_ms"] <= end
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
        if spans:  # until the first change all was as that change found it
            changed_ms, first = spans[0]
            found_so = [row | {"isr_after": row["isr_before"]} for row in first]
            events = [self.isr, self.tables["fetches"], self.tables["appends"]]
            first_ms = min(row["at_ms"] for rows in events for row in rows)
            spans.insert(0, (first_ms, found_so))
            assert first_ms <= changed_ms
        under_ms = 0
        for at, (from_ms, rows) in enumerate(spans):
            to_ms = spans[at + 1][0] if at + 1 < len(spans) else self.record_end_ms
            leader = max(row["leader"] for row in rows)
            fetched_at_ms = min(decided_at_ms(row) for row in rows)
            minimum = min(self._settings(leader, fetched_at_ms)["min_isr"], len(replicas))
            if max(len(row["isr_after"]) for row in rows) < minimum:
                under_ms += max(0, min(to_ms, end) - max(from_ms, start))
        return under_ms
