"""The episodes of one partition, from all that is told of it: plain Python, no Spark.

`episodes` explains what each cause means; this is where it is decided. Rows that come one per
change are dicts; fetches and appends, of which there are many, are columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from insync.telemetry.schemas import CONTROLLER, EXPAND, MOVED_AWAY, SHRINK

Row = dict[str, Any]
Column = npt.NDArray[np.int64]
Columns = dict[str, Column]

STUCK: Final = "stuck"
SLOW: Final = "slow"
BOOTSTRAPPING: Final = "bootstrapping"
SLOW_READS: Final = "leader-slow-reads"
THROTTLED: Final = "throttled"
BURST: Final = "burst"
BY_CONTROLLER: Final = "controller"
UNRECORDED: Final = "unrecorded"

REJOINED: Final = "rejoined"
OPEN: Final = "open"
MOVED: Final = "moved-away"

LOOKED_BACK: Final = 3
"""So many lag times before leaving: the fetch before a pending read is not older."""

FETCH_COLUMNS: Final = (
    "follower", "leader_epoch", "at_ms", "last_at_ms", "read_ms", "seq", "offset",
    "leader_end_low", "is_ok", "throttled",
)  # fmt: skip
APPEND_COLUMNS: Final = ("leader_epoch", "at_ms", "end_offset", "bytes")


@dataclass(slots=True, kw_only=True)
class Told:
    """What the tables tell of one partition."""

    record_end_ms: int
    changes: list[Row] = field(default_factory=list)  # `isr` rows, with what held for each
    heard: list[Row] = field(default_factory=list)  # the first and last fetch of each stay
    led: list[Row] = field(default_factory=list)  # each leader's first and last epoch
    elections: list[Row] = field(default_factory=list)  # those that changed the leader
    fetches: Columns = field(default_factory=dict)  # those before somebody left
    appends: Columns = field(default_factory=dict)  # those of epochs in which somebody left


def episodes_of(told: Told) -> Iterator[Row]:
    changes = sorted(told.changes, key=_order)
    heard = {(row["follower"], row["gone_epoch"]): row for row in told.heard}
    appends = _by_end(told.appends)
    first_ms = min((row["at_ms"] for row in (*changes, *told.heard, *told.led)), default=0)
    spans = under_min_isr(changes, first_ms=first_ms, record_end_ms=told.record_end_ms)
    by_replica = {
        follower: list(rows)
        for follower, rows in groupby(
            sorted(changes, key=lambda row: (row["follower"], *_order(row))),
            key=lambda row: row["follower"],
        )
    }
    first_isr = changes[0]["isr_before"] if changes else None
    for follower in sorted({*by_replica, *(row["follower"] for row in told.heard)}):
        found: list[Row] = []
        for stay in _stays(by_replica.get(follower, [])):
            first = heard.get((follower, stay.gone_epoch))
            found += _in_stay(stay, first, told, first_isr)
        known = Fetches(told.fetches, follower)
        for episode in _in_groups([_explained(each, known, appends) for each in found]):
            yield _surrounded(episode, told, spans)


def _order(change: Row) -> tuple[int, int, int]:
    return change["leader_epoch"], change["number"], change["at_ms"]


def _each_once(changes: Sequence[Row]) -> list[Row]:
    """A change that is told twice, by a block that came twice or by two brokers, is one."""
    once: list[Row] = []
    for row in changes:
        if not once or (once[-1]["change"], once[-1]["number"]) != (row["change"], row["number"]):
            once.append(row)
    return once


# Which episodes there are.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A replica's time from one move away to the next."""

    gone_epoch: int | None  # the one that the move before began; None: of none is told
    changes: list[Row]
    moved_at_ms: int | None


def _stays(changes: Sequence[Row]) -> Iterator[Stay]:
    """A row that tells of a move bears the epoch that the move began: all others are later."""
    moved_at_ms = {
        row["leader_epoch"]: row["at_ms"]
        for row in reversed(changes)
        if row["reason"] == MOVED_AWAY
    }
    others = [row for row in changes if row["reason"] != MOVED_AWAY]
    for gone, moved in pairwise([None, *sorted(moved_at_ms), None]):
        own = [
            row
            for row in others
            if (gone is None or gone <= row["leader_epoch"])
            and (moved is None or row["leader_epoch"] < moved)
        ]
        until_ms = None if moved is None else moved_at_ms[moved]
        yield Stay(gone_epoch=gone, changes=_each_once(own), moved_at_ms=until_ms)


def _in_stay(
    stay: Stay, first: Row | None, told: Told, first_isr: list[int] | None
) -> Sequence[Row]:
    if stay.changes:
        follower = stay.changes[0]["follower"]
        was_in = stay.gone_epoch is None and first_isr is not None and follower in first_isr
        found = _told_by(stay.changes, first, was_in_before=was_in)
    else:
        found = [] if first is None else _never_in_sync(told, first, first_isr)
    if found and found[-1]["ending"] == OPEN and stay.moved_at_ms is not None:
        found[-1] |= {"ending": MOVED, "end_ms": stay.moved_at_ms}
    return found


def _told_by(changes: Sequence[Row], first: Row | None, *, was_in_before: bool) -> list[Row]:
    """A shrink and the expand after it; or an expand that nothing preceded."""
    found = []
    before = SHRINK if not was_in_before else EXPAND
    for at, change in enumerate(changes):
        after = changes[at + 1] if at + 1 < len(changes) else None
        if change["change"] == SHRINK:
            found.append(_left(change, after))
        elif at == 0 and not was_in_before:
            found.append(_met_outside(change, first, rejoined_at_ms=change["at_ms"]))
        elif before == EXPAND:
            unknown = {"cause": UNRECORDED, "began_at_ms": None, "left_at_ms": None}
            came = {"rejoined_at_ms": change["at_ms"], "ending": REJOINED}
            found.append(_episode(change) | unknown | came)
        before = change["change"]
    return found


def _episode(source: Row) -> Row:
    names = ("follower", "leader", "leader_epoch", "reason", "policy", "lag_time_max_ms")
    nothing = ("kip501_would_hold", "lag_ms", "lag_messages", "lag_bytes")
    return {name: source[name] for name in names} | dict.fromkeys(nothing)


def _left(change: Row, after: Row | None) -> Row:
    decided_at_ms = change["decided_at_ms"]
    is_back = after is not None and after["change"] == EXPAND
    return _episode(change) | {
        "change": change,
        "left_at_ms": change["at_ms"] if decided_at_ms is None else decided_at_ms,
        "rejoined_at_ms": after["at_ms"] if after is not None and is_back else None,
        "ending": REJOINED if is_back else OPEN if after is None else UNRECORDED,
    }


def _met_outside(source: Row, first: Row | None, *, rejoined_at_ms: int | None) -> Row:
    return _episode(source) | {
        "cause": UNRECORDED if first is not None and _has_a_log(first) else BOOTSTRAPPING,
        "began_at_ms": None if first is None else first["at_ms"],
        "left_at_ms": None,
        "rejoined_at_ms": rejoined_at_ms,
        "ending": OPEN if rejoined_at_ms is None else REJOINED,
        "lag_messages": None if first is None else first["leader_end_low"] - first["offset"],
    }


def _has_a_log(first: Row) -> bool:
    """Who goes on where a log ends was a replica before; one that was moved away left its log."""
    start, gone = first["log_start"], first["gone_epoch"]
    return start is not None and gone is None and first["offset"] > start


def _never_in_sync(told: Told, first: Row, first_isr: list[int] | None) -> list[Row]:
    """A replica that fetches, was not in the ISR when we met it, and never came into it."""
    follower, gone = first["follower"], first["gone_epoch"]
    led = [row for row in told.led if gone is None or row["last_epoch"] >= gone]
    if any(row["leader"] == follower for row in led) or not told.led:
        return []
    if gone is not None:
        was_in = False
    elif first_isr is not None:
        was_in = follower in first_isr
    else:
        is_old = first["first_epoch"] <= min(row["leader_epoch"] for row in told.led)
        was_in = is_old and not first["is_below_watermark"]
    return [] if was_in else [_met_outside(first, first, rejoined_at_ms=None)]


# Why.


class Fetches:
    """One follower's, in the order of time."""

    def __init__(self, columns: Columns, follower: int) -> None:
        if not columns:
            columns = {name: np.empty(0, np.int64) for name in FETCH_COLUMNS}
        own = np.flatnonzero(columns["follower"] == follower)
        order = own[np.lexsort((columns["seq"][own], columns["at_ms"][own]))]
        self.columns = {name: column[order] for name, column in columns.items()}
        ended_ms = self.columns["at_ms"] + self.columns["read_ms"]
        self.columns["ended_ms"] = ended_ms
        latest_ms = np.maximum(self.columns["last_at_ms"], ended_ms)
        self.columns["latest_ms"] = latest_ms
        self._latest_so_far_ms = np.maximum.accumulate(latest_ms)

    def between(self, from_ms: int, to_ms: int) -> Columns:
        """Those of which some part lies there."""
        first = int(np.searchsorted(self._latest_so_far_ms, from_ms, side="left"))
        last = int(np.searchsorted(self.columns["at_ms"], to_ms, side="right"))
        part = slice(first, max(first, last))
        found = {name: column[part] for name, column in self.columns.items()}
        return _where(found, found["latest_ms"] >= from_ms)


def _where(columns: Columns, condition: npt.NDArray[np.bool_]) -> Columns:
    return {name: column[condition] for name, column in columns.items()}


def _explained(episode: Row, fetches: Fetches, appends: Columns) -> Row:
    change = episode.pop("change", None)
    if change is None:
        return episode
    left_ms, limit_ms = episode["left_at_ms"], episode["lag_time_max_ms"]
    rows = fetches.between(left_ms - LOOKED_BACK * limit_ms, left_ms)
    own = _where(rows, rows["leader_epoch"] == episode["leader_epoch"])
    episode |= _lag(change, left_ms, appends)
    if change["decided_by"] == CONTROLLER:
        heard_ms = _heard_ms(rows, left_ms)
        began_ms = left_ms if not heard_ms.size else int(heard_ms.max())
        return episode | {"cause": BY_CONTROLLER, "began_at_ms": began_ms}
    episode["cause"] = _cause(episode, change, own)
    episode["kip501_would_hold"] = _would_hold(own, left_ms)
    caught_up_ms = change["caught_up_at_ms"]
    began_ms = left_ms if caught_up_ms is None else min(caught_up_ms, left_ms)
    heard_ms = _heard_ms(own, left_ms)
    if episode["cause"] == STUCK and heard_ms.size:
        began_ms = int(heard_ms.max())
    return episode | {"began_at_ms": began_ms}


def _cause(episode: Row, change: Row, own: Columns) -> str:
    left_ms, limit_ms = episode["left_at_ms"], episode["lag_time_max_ms"]
    from_ms = left_ms - limit_ms
    reading_ms = np.minimum(own["ended_ms"], left_ms) - np.maximum(own["at_ms"], from_ms)
    if 2 * int(np.maximum(0, reading_ms).sum()) >= limit_ms:
        return SLOW_READS
    was_throttled = (own["throttled"] != 0) & (own["last_at_ms"] >= from_ms)
    if was_throttled.any():
        return THROTTLED
    if not (_heard_ms(own, left_ms) >= from_ms).any():
        return STUCK
    if 2 * change["held_back_ms_before"] >= limit_ms:
        return THROTTLED
    is_late = (episode["lag_ms"] or 0) > limit_ms
    return BURST if episode["policy"] == "messages" and not is_late else SLOW


def _heard_ms(rows: Columns, left_ms: int) -> Column:
    """When effective fetches were made; of merged ones, the last before it left."""
    took_effect = (rows["is_ok"] != 0) & (rows["ended_ms"] <= left_ms)
    heard_ms: Column = np.minimum(rows["last_at_ms"], left_ms)[took_effect]
    return heard_ms


def _would_hold(own: Columns, left_ms: int) -> bool:
    """KIP-501: a read is pending that asks for all that the leader had at earlier fetches."""
    for at in np.flatnonzero(own["ended_ms"] > left_ms):
        ends = own["leader_end_low"][:at][own["is_ok"][:at] != 0]
        if ends.size and own["offset"][at] >= ends.max():
            return True
    return False


def _by_end(appends: Columns) -> Columns:
    if not appends:
        return {name: np.empty(0, np.int64) for name in APPEND_COLUMNS}
    order = np.lexsort((appends["at_ms"], appends["end_offset"], appends["leader_epoch"]))
    return {name: column[order] for name, column in appends.items()}


def _lag(change: Row, left_ms: int, appends: Columns) -> Row:
    """Since the first append of this epoch that it lacked.

    An epoch's first row is an append of nothing, which ends where the epoch starts: for whoever is
    below that, it is the first.
    """
    end, leader_end = change["replica_end"], change["leader_end"]
    if end is None or leader_end is None:
        return {}
    epoch = change["leader_epoch"]
    first, last = (
        int(np.searchsorted(appends["leader_epoch"], epoch, side=side))
        for side in ("left", "right")
    )
    ends = appends["end_offset"][first:last]
    lacks_from = first + int(np.searchsorted(ends, end, side="right"))
    lacks_to = first + int(np.searchsorted(ends, leader_end, side="right"))
    lag_ms: int | None = None
    if end >= leader_end:
        lag_ms = 0
    elif lacks_from < last:
        lag_ms = left_ms - int(appends["at_ms"][lacks_from])
    return {
        "lag_ms": lag_ms,
        "lag_messages": leader_end - end,
        "lag_bytes": int(appends["bytes"][lacks_from:lacks_to].sum()),
    }


# What happened around it.


def _in_groups(episodes: Sequence[Row]) -> Sequence[Row]:
    group, back_ms = 0, None
    counts: dict[int, int] = {}
    for episode in episodes:
        left_ms = episode["left_at_ms"]
        is_new = (
            back_ms is None or left_ms is None or left_ms - back_ms > episode["lag_time_max_ms"]
        )
        group += is_new
        counts[group] = counts.get(group, 0) + 1
        episode["flap_group"] = group
        back_ms = episode["rejoined_at_ms"]
    for episode in episodes:
        episode["flaps"] = counts[episode["flap_group"]]
    return episodes


def _surrounded(episode: Row, told: Told, spans: Sequence[tuple[int, int]]) -> Row:
    began_ms, left_ms = episode["began_at_ms"], episode["left_at_ms"]
    start_ms = began_ms if left_ms is None else left_ms
    end_ms = episode["end_ms" if episode["ending"] == MOVED else "rejoined_at_ms"]
    if episode["ending"] == OPEN:
        end_ms = told.record_end_ms
    is_known = start_ms is not None and end_ms is not None
    changes = {
        (row["at_ms"], row["leader_epoch"])
        for row in told.elections
        if is_known and began_ms <= row["at_ms"] <= end_ms
    }
    under = (min(to_ms, end_ms) - max(from_ms, start_ms) for from_ms, to_ms in spans if is_known)
    return episode | {
        "end_ms": end_ms,
        "out_ms": end_ms - start_ms if is_known else None,
        "leader_changes": len(changes),
        "under_min_isr_ms": sum(max(0, overlap_ms) for overlap_ms in under),
    }


def under_min_isr(
    changes: Sequence[Row], *, first_ms: int, record_end_ms: int
) -> list[tuple[int, int]]:
    """The spans with fewer in sync than min(min.insync.replicas, replicas known).

    Who was in sync before the first change is told by it, and what was asked for then.
    """
    replicas = {each for row in changes for each in (*row["isr_before"], *row["isr_after"])}
    states: list[tuple[int, int, int]] = []  # since when, how many are in sync, how many must be
    for _, together in groupby(changes, key=lambda row: _order(row)[:2]):
        rows = list(together)
        minimum = min(max(rows, key=lambda row: row["leader"])["min_isr"], len(replicas))
        if not states:
            states.append((first_ms, max(len(row["isr_before"]) for row in rows), minimum))
        in_sync = max(len(row["isr_after"]) for row in rows)
        states.append((min(row["at_ms"] for row in rows), in_sync, minimum))
    return [
        (from_ms, to_ms)
        for (from_ms, in_sync, minimum), (to_ms, *_) in pairwise([*states, (record_end_ms, 0, 0)])
        if in_sync < minimum
    ]
