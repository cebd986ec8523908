"""The episodes of one partition, from all that is recorded of it: plain Python, no Spark.

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

from insync.telemetry.schemas import (
    BROKER_FROZEN,
    BROKER_GONE,
    CONTROLLER,
    REASSIGNMENT,
    REPLICA_OFFLINE,
    SHRINK,
)

Row = dict[str, Any]
Column = npt.NDArray[np.int64]
Columns = dict[str, Column]

BROKER_DOWN: Final = "broker-down"
FROZEN: Final = "frozen"
LOG_OFFLINE: Final = "replica-offline"
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
CANCELLED: Final = "move-cancelled"
DELETED: Final = "topic-deleted"
REMOVED: Final = (MOVED, CANCELLED, DELETED)

BY_CONTROLLER_CAUSES: Final = {  # by `isr.cause`
    BROKER_GONE: BROKER_DOWN,
    BROKER_FROZEN: FROZEN,
    REPLICA_OFFLINE: LOG_OFFLINE,
}

AFTER_ALL: Final = 2**62  # larger than any version

LAG_TIMES_BEFORE: Final = 3
"""Of the time before a replica left: no fetch before a pending read is older than this."""

FETCH_COLUMNS: Final = (
    "follower", "leader_epoch", "at_ms", "last_at_ms", "read_ms", "seq", "offset",
    "leader_end_low", "is_ok", "throttled",
)  # fmt: skip
APPEND_COLUMNS: Final = ("leader_epoch", "at_ms", "end_offset", "bytes")


@dataclass(slots=True, kw_only=True)
class PartitionRecord:
    """The rows of all tables that concern one partition."""

    record_end_ms: int
    # `isr` rows, with the settings that were in force
    changes: list[Row] = field(default_factory=list)
    first_and_last_fetches: list[Row] = field(default_factory=list)  # of each membership
    led: list[Row] = field(default_factory=list)  # each leader's first and last epoch
    # `isr_events` that say with which ISR an epoch began, with the settings that were in force
    begun: list[Row] = field(default_factory=list)
    # by `assignments`, when each replica is first listed: epoch and version
    assigned: dict[int, tuple[int, int]] = field(default_factory=dict)
    elections: list[Row] = field(default_factory=list)  # those that changed the leader
    removals: list[Row] = field(default_factory=list)  # of replicas, by `assignments`
    added: frozenset[int] = frozenset()  # replicas that are first seen while they are added
    fetches: Columns = field(default_factory=dict)  # those before a shrink
    appends: Columns = field(default_factory=dict)  # those of epochs with a shrink


def episodes_of(record: PartitionRecord) -> Iterator[Row]:
    changes = sorted(record.changes, key=_order)
    begun = sorted(record.begun, key=_order)
    fetches_by_membership = {
        (row["follower"], row["gone_epoch"]): row for row in record.first_and_last_fetches
    }
    appends = _by_end(record.appends)
    first_ms = min(
        (row["at_ms"] for row in (*changes, *begun, *record.first_and_last_fetches, *record.led)),
        default=0,
    )
    spans = under_min_isr(changes, first_ms=first_ms, record_end_ms=record.record_end_ms)
    by_replica = {
        follower: list(rows)
        for follower, rows in groupby(
            sorted(changes, key=lambda row: (row["follower"], *_order(row))),
            key=lambda row: row["follower"],
        )
    }
    first_isr = next((row["isr_before"] for row in sorted([*changes, *begun], key=_order)), None)
    fetching = {row["follower"] for row in record.first_and_last_fetches}
    for follower in sorted({*by_replica, *fetching, *_assigned_first(record, begun)}):
        episodes: list[Row] = []
        removals = [row for row in record.removals if row["follower"] == follower]
        for membership in _memberships(by_replica.get(follower, []), removals):
            first = fetches_by_membership.get((follower, membership.gone_epoch))
            sightings = _sightings(follower, membership, record, begun)
            episodes += _in_membership(follower, membership, first, record, first_isr, sightings)
        known = Fetches(record.fetches, follower)
        for episode in _in_groups([_explained(each, known, appends) for each in episodes]):
            yield _add_context(episode, record, spans)


def _order(change: Row) -> tuple[int, int, int]:
    return change["leader_epoch"], change["number"], change["at_ms"]


def _each_once(changes: Sequence[Row]) -> list[Row]:
    """Duplicates of a change, of one block or of two brokers, are one change."""
    once: list[Row] = []
    for row in changes:
        if not once or (once[-1]["change"], once[-1]["number"]) != (row["change"], row["number"]):
            once.append(row)
    return once


# Which episodes there are.


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A replica's time as a replica of the partition, between two removals."""

    gone_epoch: int | None  # the one that the removal before began; None: none is recorded
    changes: list[Row]
    removed_at_ms: int | None
    ending: str | None  # how it was removed
    past_epoch: int | None  # the one that its removal began

    def has_epoch(self, epoch: int) -> bool:
        is_early = self.gone_epoch is not None and epoch < self.gone_epoch
        return not is_early and (self.past_epoch is None or epoch < self.past_epoch)


def _memberships(changes: Sequence[Row], removals: Sequence[Row]) -> Iterator[Membership]:
    """A removal has the epoch that it began; all other rows of that epoch are later.

    An ISR change by reassignment is a removal as well; what `assignments` say of it comes first.
    """
    removed = {
        row["leader_epoch"]: (row["at_ms"], MOVED)
        for row in reversed(changes)
        if row["cause"] == REASSIGNMENT
    }
    in_time = sorted(removals, key=lambda row: row["at_ms"], reverse=True)
    removed |= {row["leader_epoch"]: (row["at_ms"], row["ending"]) for row in in_time}
    others = [row for row in changes if row["cause"] != REASSIGNMENT]
    for gone, moved in pairwise([None, *sorted(removed), None]):
        own = [
            row
            for row in others
            if (gone is None or gone <= row["leader_epoch"])
            and (moved is None or row["leader_epoch"] < moved)
        ]
        until_ms, ending = (None, None) if moved is None else removed[moved]
        yield Membership(
            gone_epoch=gone,
            changes=_each_once(own),
            removed_at_ms=until_ms,
            ending=ending,
            past_epoch=moved,
        )


@dataclass(frozen=True, slots=True, order=True)
class Sighting:
    """Evidence, beside the changes of the ISR, that a replica was in it or not: rows of changes may
    be lost, or older than the record."""

    epoch: int
    number: int
    is_in: bool
    source: Row | None = field(default=None, compare=False)  # the row that says so, if it was out


def _assigned_first(record: PartitionRecord, begun: Sequence[Row]) -> set[int]:
    """The replicas that were assigned when an epoch began: one that is down does not fetch."""
    if not begun:
        return set()
    last = begun[-1]["leader_epoch"], begun[-1]["number"]
    return {replica for replica, since in record.assigned.items() if since <= last}


def _sightings(
    follower: int, membership: Membership, record: PartitionRecord, begun: Sequence[Row]
) -> list[Sighting]:
    """A leader is in the ISR; and an epoch begins with a known one."""
    led = {epoch for row in record.led if row["leader"] == follower for epoch in _epochs(row)}
    sightings = [Sighting(epoch, AFTER_ALL, is_in=True) for epoch in led]
    since = record.assigned.get(follower)
    for row in begun:
        place = row["leader_epoch"], row["number"]
        if follower in row["isr_before"]:
            sightings.append(Sighting(*place, is_in=True))
        elif since is not None and since <= place:
            sightings.append(Sighting(*place, is_in=False, source=row | {"follower": follower}))
    return sorted(each for each in sightings if membership.has_epoch(each.epoch))


def _epochs(led: Row) -> list[int]:
    epochs: list[int] | None = led.get("epochs")
    return [led["leader_epoch"], led["last_epoch"]] if epochs is None else epochs


def _in_membership(  # noqa: PLR0917 - each is of another kind
    follower: int,
    membership: Membership,
    first: Row | None,
    record: PartitionRecord,
    first_isr: list[int] | None,
    sightings: Sequence[Sighting],
) -> Sequence[Row]:
    was_removed = membership.gone_epoch is not None
    if was_removed and not membership.changes and first is None:
        return []  # it is not a replica any more
    was_in = not was_removed and first_isr is not None and follower in first_isr
    outside: list[Row] = []
    if not membership.changes and first is not None:
        outside = _never_in_sync(record, first, first_isr)
        was_in = not outside
    walk = Walk(first=first, was_in_before=was_in, episodes=outside)
    in_order: list[Row | Sighting] = [*membership.changes, *sightings]
    for each in sorted(in_order, key=_place):
        walk.add(each)
    episodes = walk.episodes
    if first is None and not membership.changes:
        cause = BOOTSTRAPPING if follower in record.added else UNRECORDED
        episodes = [episode | {"cause": cause} for episode in episodes]
    if episodes and episodes[-1]["ending"] == OPEN and membership.ending is not None:
        episodes[-1] |= {"ending": membership.ending, "end_ms": membership.removed_at_ms}
    return episodes


@dataclass(slots=True, kw_only=True)
class Walk:
    """The episodes of a membership: from each shrink to the expand after it; also an expand without
    a shrink before, and what sightings say of rows that are lost."""

    first: Row | None  # fetch
    was_in_before: bool
    episodes: list[Row]  # at first, the one that is open at the begin, if any
    is_in: bool = field(init=False)
    is_open: bool = field(init=False)
    is_first: bool = True  # no change is known so far

    def __post_init__(self) -> None:
        self.is_in, self.is_open = self.was_in_before, bool(self.episodes)

    def add(self, each: Row | Sighting) -> None:
        if isinstance(each, Sighting):
            self._add_sighting(each)
            return
        was_outside = self.is_first and not self.was_in_before
        self.is_first = False
        if each["change"] == SHRINK:
            self._end_unrecorded()
            self.episodes.append(_left(each))
        elif was_outside and (self.first is not None or not self.is_open):
            came = _first_seen_outside_isr(each, self.first, rejoined_at_ms=each["at_ms"])
            self.episodes = [came]
        elif self.is_open:
            self.episodes[-1] |= {"rejoined_at_ms": each["at_ms"], "ending": REJOINED}
        elif self.is_in:
            unknown = {"cause": UNRECORDED, "began_at_ms": None, "left_at_ms": None}
            back = {"rejoined_at_ms": each["at_ms"], "ending": REJOINED}
            self.episodes.append(_episode(each) | unknown | back)
        self.is_in = each["change"] != SHRINK
        self.is_open = not self.is_in

    def _add_sighting(self, sighting: Sighting) -> None:
        if sighting.is_in:
            self._end_unrecorded()
            self.is_in, self.is_first = True, False
        elif sighting.source is not None and not self.is_open and (self.is_in or self.is_first):
            first = None if self.is_in else self.first
            self.episodes.append(_seen_outside(sighting.source, first))
            self.is_in, self.is_open = False, True

    def _end_unrecorded(self) -> None:
        if self.is_open:
            self.episodes[-1]["ending"] = UNRECORDED
        self.is_open = False


def _place(each: Row | Sighting) -> tuple[int, int, bool, int]:
    if isinstance(each, Sighting):
        return each.epoch, each.number, True, 0
    epoch, number, at_ms = _order(each)
    return epoch, number, False, at_ms


def _seen_outside(source: Row, first: Row | None) -> Row:
    """It left, and no row says when: out since an epoch began without it."""
    if first is not None:
        return _first_seen_outside_isr(source, first, rejoined_at_ms=None)
    return _episode(source) | {
        "cause": UNRECORDED,
        "began_at_ms": source["at_ms"],
        "left_at_ms": None,
        "rejoined_at_ms": None,
        "ending": OPEN,
    }


def _episode(source: Row) -> Row:
    names = ("follower", "leader", "leader_epoch", "reason", "policy", "lag_time_max_ms")
    nothing = ("kip501_would_hold", "lag_ms", "lag_messages", "lag_bytes")
    return {name: source[name] for name in names} | dict.fromkeys(nothing)


def _left(change: Row) -> Row:
    decided_at_ms = change["decided_at_ms"]
    return _episode(change) | {
        "change": change,
        "left_at_ms": change["at_ms"] if decided_at_ms is None else decided_at_ms,
        "rejoined_at_ms": None,
        "ending": OPEN,
    }


def _first_seen_outside_isr(source: Row, first: Row | None, *, rejoined_at_ms: int | None) -> Row:
    return _episode(source) | {
        "cause": UNRECORDED if first is not None and _has_a_log(first) else BOOTSTRAPPING,
        "began_at_ms": None if first is None else first["at_ms"],
        "left_at_ms": None,
        "rejoined_at_ms": rejoined_at_ms,
        "ending": OPEN if rejoined_at_ms is None else REJOINED,
        "lag_messages": None if first is None else first["leader_end_low"] - first["offset"],
    }


def _has_a_log(first: Row) -> bool:
    """A replica that fetches past the log start has a log; a removed one deleted its log."""
    start, gone = first["log_start"], first["gone_epoch"]
    return start is not None and gone is None and first["offset"] > start


def _never_in_sync(record: PartitionRecord, first: Row, first_isr: list[int] | None) -> list[Row]:
    """A replica that fetches, and is outside the ISR from its first fetch to the end."""
    follower, gone = first["follower"], first["gone_epoch"]
    led = [row for row in record.led if gone is None or row["last_epoch"] >= gone]
    if any(row["leader"] == follower for row in led) or not record.led:
        return []
    if gone is not None:
        was_in = False
    elif first_isr is not None:
        was_in = follower in first_isr
    elif follower in record.added:
        was_in = False
    else:
        is_old = first["first_epoch"] <= min(row["leader_epoch"] for row in record.led)
        was_in = is_old and not first["is_below_watermark"]
    return [] if was_in else [_first_seen_outside_isr(first, first, rejoined_at_ms=None)]


# Why.


class Fetches:
    """The fetches of one follower, in the order of time."""

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
        """The fetches that overlap this time."""
        first = int(np.searchsorted(self._latest_so_far_ms, from_ms, side="left"))
        last = int(np.searchsorted(self.columns["at_ms"], to_ms, side="right"))
        selected = slice(first, max(first, last))
        episodes = {name: column[selected] for name, column in self.columns.items()}
        return _where(episodes, episodes["latest_ms"] >= from_ms)


def _where(columns: Columns, condition: npt.NDArray[np.bool_]) -> Columns:
    return {name: column[condition] for name, column in columns.items()}


def _explained(episode: Row, fetches: Fetches, appends: Columns) -> Row:
    change = episode.pop("change", None)
    if change is None:
        return episode
    left_ms, limit_ms = episode["left_at_ms"], episode["lag_time_max_ms"]
    rows = fetches.between(left_ms - LAG_TIMES_BEFORE * limit_ms, left_ms)
    own = _where(rows, rows["leader_epoch"] == episode["leader_epoch"])
    episode |= _lag(change, left_ms, appends)
    if change["decided_by"] == CONTROLLER:
        # A broker that led the epoch before did not fetch in it: it was in sync until now.
        recent = _where(rows, rows["leader_epoch"] >= episode["leader_epoch"] - 1)
        fetched_ms = _fetched_ms(recent, left_ms)
        began_ms = left_ms if not fetched_ms.size else int(fetched_ms.max())
        cause = BY_CONTROLLER_CAUSES.get(change["cause"], BY_CONTROLLER)
        return episode | {"cause": cause, "began_at_ms": began_ms}
    episode["cause"] = _cause(episode, change, own)
    episode["kip501_would_hold"] = _would_hold(own, left_ms)
    caught_up_ms = change["caught_up_at_ms"]
    began_ms = left_ms if caught_up_ms is None else min(caught_up_ms, left_ms)
    fetched_ms = _fetched_ms(own, left_ms)
    if episode["cause"] in {STUCK, FROZEN} and fetched_ms.size:
        began_ms = int(fetched_ms.max())
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
    if not (_fetched_ms(own, left_ms) >= from_ms).any():
        return FROZEN if change["is_broker_silent"] else STUCK
    if 2 * change["held_back_ms_before"] >= limit_ms:
        return THROTTLED
    is_late = (episode["lag_ms"] or 0) > limit_ms
    return BURST if episode["policy"] == "messages" and not is_late else SLOW


def _fetched_ms(rows: Columns, left_ms: int) -> Column:
    """When effective fetches were made; of merged ones, the last before it left."""
    took_effect = (rows["is_ok"] != 0) & (rows["ended_ms"] <= left_ms)
    fetched_ms: Column = np.minimum(rows["last_at_ms"], left_ms)[took_effect]
    return fetched_ms


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

    An epoch's first row is an append of nothing, which ends where the epoch starts: for a follower
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


def _add_context(episode: Row, record: PartitionRecord, spans: Sequence[tuple[int, int]]) -> Row:
    began_ms, left_ms = episode["began_at_ms"], episode["left_at_ms"]
    start_ms = began_ms if left_ms is None else left_ms
    end_ms = episode["end_ms" if episode["ending"] in REMOVED else "rejoined_at_ms"]
    if episode["ending"] == OPEN:
        end_ms = record.record_end_ms
    is_known = start_ms is not None and end_ms is not None
    changes = {
        (row["at_ms"], row["leader_epoch"])
        for row in record.elections
        if is_known and began_ms <= row["at_ms"] <= end_ms
    }
    under = (min(to_ms, end_ms) - max(from_ms, start_ms) for from_ms, to_ms in spans if is_known)
    return episode | {
        "end_ms": end_ms,
        # The clock of a later leader may be behind; `problems` says so.
        "out_ms": max(0, end_ms - start_ms) if is_known else None,
        "leader_changes": len(changes),
        "under_min_isr_ms": sum(max(0, overlap_ms) for overlap_ms in under),
    }


def under_min_isr(
    changes: Sequence[Row], *, first_ms: int, record_end_ms: int
) -> list[tuple[int, int]]:
    """The spans with fewer in sync than min(min.insync.replicas, replicas known).

    The first change says which replicas were in sync before it, and which minimum was in force.
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
