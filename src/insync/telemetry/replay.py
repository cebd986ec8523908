"""The tables replayed through `rules`: what a leader must have decided, given what it saw.

This is the contract of the tables, and the oracle of whoever replays them faster. It is written to
be read: one partition and epoch at a time, one event after the other.

- Rows take effect in the order of (time, seq): an append at `at_ms`, a fetch at `at_ms + read_ms`.
- A deadline that falls into the same millisecond as an event comes first.
- What the replay proposes is committed when the `isr` rows say so. A proposal that they do not
  tell of is `unheeded`, with how long the leader went on without it: a store takes a moment, and
  may be out of reach until the leader's session ends; more than that has no excuse.
- The watermark is the recorded one where it is higher: it also depends on which brokers lived.
- A gap in `seq` ends what can be replayed of an epoch (`is_whole`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from insync.rules import isr as isr_rules
from insync.rules.follower import Fetch
from insync.rules.isr import Stable
from insync.rules.leadership import Leadership
from insync.rules.policy import Policy
from insync.rules.settings import InSyncSettings, in_sync_rule
from insync.rules.stalls import Stall, is_stall
from insync.rules.values import BrokerId, Incarnation, LeaderEpoch, Offset
from insync.telemetry.schemas import CONTROLLER, EXPAND, LEADER, OK, SHRINK, late_ms_of

Row = Mapping[str, Any]
Rows = Sequence[Row]
EpochKey = tuple[str, int, int, int]  # topic, partition, leader epoch, leader

HERE: Final = Incarnation(0)  # the tables tell only of fetches of living incarnations
POINT_GAP_MS: Final = 10
"""Merged idle fetches closer together than this are taken as one: nothing happens in between."""

# What comes first in a millisecond: a stall that ended, another rule, rows, reads that began.
_STALLED, _RULED, _ROW, _BEGAN = 0, 1, 2, 3
_AFTER_ROWS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    topic: str
    partition: int
    leader_epoch: int
    replica: int
    change: str
    decided_at_ms: int
    late_ms: int = 0
    """How long after its deadline a leader's loop came to it, as recorded. Rules are never late."""

    @property
    def what(self) -> tuple[str, int, int, int, str]:
        return self.topic, self.partition, self.leader_epoch, self.replica, self.change


@dataclass(frozen=True, slots=True)
class Unheeded:
    """What the rules came to and no row tells of, up to the last time that they still did."""

    decision: Decision
    until_ms: int

    @property
    def lasted_ms(self) -> int:
        return self.until_ms - self.decision.decided_at_ms


@dataclass(frozen=True, slots=True)
class Replayed:
    decisions: Sequence[Decision]
    """Those that were committed, when the rules come to them."""
    unheeded: Sequence[Unheeded]


@dataclass(slots=True)
class Epoch:
    """One partition under one leader, as the tables tell of it."""

    key: EpochKey
    fetches: list[Row] = field(default_factory=list)
    appends: list[Row] = field(default_factory=list)
    isr: list[Row] = field(default_factory=list)

    def whole_until(self) -> int | None:
        """The first number that no row has; None if the epoch's beginning is missing."""
        numbers = sorted(row["seq"] for row in (*self.fetches, *self.appends))
        missing = next((at for at, seq in enumerate(numbers) if seq != at), len(numbers))
        return missing or None

    @property
    def is_whole(self) -> bool:
        return self.whole_until() == len(self.fetches) + len(self.appends)


def epochs(tables: Mapping[str, Iterable[Row]]) -> list[Epoch]:
    found: dict[EpochKey, Epoch] = {}
    for name in ("fetches", "appends", "isr"):
        for row in tables.get(name, ()):
            key = (row["topic"], row["partition"], row["leader_epoch"], row["leader"])
            getattr(found.setdefault(key, Epoch(key)), name).append(row)
    return [found[key] for key in sorted(found)]


def recorded(epoch: Epoch) -> list[Decision]:
    """The leader's own decisions, in the order in which they were committed."""
    rows = sorted(epoch.isr, key=lambda row: (row["version"], row["replica"]))
    return [
        replace(
            _decision(epoch, row["replica"], row["change"], row["decided_at_ms"]),
            late_ms=late_ms_of(row["reason"]),
        )
        for row in rows
        if _is_leaders(row)
    ]


def replay(epoch: Epoch, tables: Mapping[str, Rows]) -> Replayed:
    """The decisions that the rules come to."""
    until = epoch.whole_until()
    if until is None:
        return Replayed((), ())
    done = _Replay(epoch, until, tables)
    return Replayed(done.decisions, done.unheeded)


def _is_leaders(row: Row) -> bool:
    return bool(row["decided_by"] == LEADER)


def _decision(epoch: Epoch, replica: int, change: str, decided_at_ms: int) -> Decision:
    topic, partition, leader_epoch, _ = epoch.key
    return Decision(
        topic=topic,
        partition=partition,
        leader_epoch=leader_epoch,
        replica=replica,
        change=change,
        decided_at_ms=decided_at_ms,
    )


class _Replay:
    def __init__(self, epoch: Epoch, until: int, tables: Mapping[str, Rows]) -> None:
        self.decisions: list[Decision] = []
        self.unheeded: list[Unheeded] = []
        self._wanted: dict[tuple[int, str], tuple[int, int]] = {}  # in vain: since, last seen
        self._epoch = epoch
        self._leader = BrokerId(epoch.key[3])
        rows = sorted((*epoch.fetches, *epoch.appends), key=lambda row: row["seq"])[:until]
        began = rows[0]
        self._changes = [  # committed while this leader led, several replicas together
            list(change)
            for _, change in groupby(
                sorted(epoch.isr, key=lambda row: (row["version"], row["replica"])),
                key=lambda row: row["version"],
            )
        ]
        members = self._members(rows, tables)
        self._now_ms: int = began["at_ms"]
        self._pending: list[Row] | None = None  # the committed change that was proposed
        self._policy, wait_ms = _rule(epoch, tables, at_ms=began["at_ms"])
        followers = {row["follower"] for row in rows if "follower" in row}
        changed = {row["replica"] for row in epoch.isr}
        replicas = sorted({self._leader, *members, *followers, *changed})
        self._term = Leadership.begin(
            policy=self._policy,
            fetch_wait_max_ms=wait_ms,
            leader=self._leader,
            epoch=LeaderEpoch(epoch.key[2]),
            replicas=tuple(BrokerId(broker) for broker in replicas),
            members=frozenset(BrokerId(broker) for broker in members),
            end=Offset(began["base_offset"]),
            high_watermark=Offset(0),
            registered={BrokerId(broker): HERE for broker in replicas},
            now_ms=began["at_ms"],
        )
        self._run(rows[1:], tables)

    def _members(self, rows: Rows, tables: Mapping[str, Rows]) -> set[int]:
        """Who was in sync when this leader began, by the first change or the last before."""
        began_at_ms = rows[0]["at_ms"]
        if self._changes:
            first = self._changes[0][0]
            if first["decided_by"] == CONTROLLER and first["seq"] == 0:
                del self._changes[0]  # the change that came with the leader
                return set(first["isr_after"])
            return set(first["isr_before"])
        topic, partition, leader_epoch, _ = self._epoch.key
        earlier = [
            row
            for row in tables.get("isr", ())
            if (row["topic"], row["partition"]) == (topic, partition)
            and row["leader_epoch"] < leader_epoch
            and row["at_ms"] <= began_at_ms
        ]
        if earlier:
            return set(max(earlier, key=lambda row: row["version"])["isr_after"])
        return {self._leader, *(row["follower"] for row in rows if "follower" in row)}

    # Events, one after the other.

    def _run(self, rows: Rows, tables: Mapping[str, Rows]) -> None:
        last = rows[-1]["seq"] if rows else 0
        changes = [change for change in self._changes if change[0]["seq"] <= last + 1]
        events = [event for row in rows for event in _events(row)]
        began_at_ms = min(row["at_ms"] for row in self._epoch.appends)
        # Before the row that has its number: so many the leader had seen.
        events += [(each[0]["at_ms"], _ROW, each[0]["seq"] - 0.5, each) for each in changes]
        # Nobody knows how long it led after the last that it saw of this partition.
        led_until_ms = max((event[0] for event in events), default=began_at_ms)
        for row in tables.get("stalls", ()):
            ended_at_ms = row["at_ms"] + row["stall_ms"]
            is_while_leading = began_at_ms <= ended_at_ms and row["at_ms"] <= led_until_ms
            if row["broker"] == self._leader and is_while_leading:
                events.append((ended_at_ms, _STALLED, 0, row))
        ruled = self._ruled_at_ms(tables, began_at_ms)
        events += [(at_ms, _RULED, 0, None) for at_ms in ruled if at_ms <= led_until_ms]
        events.sort(key=lambda event: event[:3])
        for at_ms, kind, _, what in events:
            if kind == _STALLED:
                self._stalled(Stall(began_at_ms=what["at_ms"], ended_at_ms=at_ms))
                continue
            self._look_until(at_ms)
            self._now_ms = at_ms
            if kind == _RULED:
                self._policy, wait_ms = _rule(self._epoch, tables, at_ms=at_ms)
                self._term = self._term.with_rule(
                    self._policy, fetch_wait_max_ms=wait_ms, now_ms=at_ms
                )
            elif isinstance(what, list):
                self._settle(what, at_ms)
            elif kind == _BEGAN:
                self._began(what)
            elif "follower" in what:
                self._fetched(what, at_ms)
            else:
                self._term = self._term.append(end=Offset(what["end_offset"]), now_ms=at_ms)
        self._want_no_more(tuple(self._wanted))

    def _ruled_at_ms(self, tables: Mapping[str, Rows], began_at_ms: int) -> list[int]:
        scope = f"broker:{self._leader}/topic:{self._epoch.key[0]}"
        rows = [row for row in tables.get("configs", ()) if row["scope"] == scope]
        return sorted({row["at_ms"] for row in rows if row["at_ms"] > began_at_ms})

    def _look_until(self, now_ms: int) -> None:
        """Every deadline up to now, the one of this millisecond included."""
        while self._pending is None:
            due_ms = min(self._term.deadlines().values(), default=None)
            if due_ms is None or due_ms > now_ms:
                self._want(SHRINK, (), since_ms=now_ms, now_ms=now_ms)
                return
            # Who was level and silent is late the moment there is something it lacks.
            due_ms = max(due_ms, self._now_ms)
            leaving = self._term.leaving(now_ms=self._looked_at_ms(due_ms, now_ms))
            if not self._propose({(broker, SHRINK) for broker in leaving}, due_ms):
                self._want(SHRINK, leaving, since_ms=due_ms, now_ms=now_ms)
                return

    def _looked_at_ms(self, due_ms: int, now_ms: int) -> int:
        """A timer that was late found all who were due by then, and they left together."""
        change = self._changes[0][0] if self._changes else None
        if change is None or not _is_leaders(change):
            return due_ms
        decided_at_ms: int = change["decided_at_ms"]
        return max(due_ms, min(decided_at_ms, now_ms))

    def _stalled(self, stall: Stall) -> None:
        if is_stall(stall.length_ms, lag_time_max_ms=self._policy.lag_time_max_ms):
            self._look_until(stall.began_at_ms)  # nobody looked after that
            self._now_ms = stall.ended_at_ms
            self._term = self._term.stalled(stall)

    def _settle(self, change: list[Row], at_ms: int) -> None:
        self._pending = None
        self._want_no_more(tuple(self._wanted))
        if change in self._changes:
            self._changes.remove(change)
        after = frozenset(BrokerId(broker) for broker in change[0]["isr_after"])
        self._term = self._term.settle(after, now_ms=at_ms)
        self._look_until(at_ms)

    def _began(self, row: Row) -> None:
        self._term = self._term.read_began(
            BrokerId(row["follower"]),
            read_id=row["seq"],
            connection=0,
            offset=Offset(row["offset"]),
            parsed_at_ms=row["at_ms"],
        )

    def _fetched(self, row: Row, at_ms: int) -> None:
        follower = BrokerId(row["follower"])
        if row["read_ms"]:
            if row["outcome"] != OK:
                self._term = self._term.read_failed(follower, read_id=row["seq"])
                return
            self._term = self._term.read_served(
                follower,
                read_id=row["seq"],
                leader_end=Offset(row["leader_end_low"]),
                served_at_ms=at_ms,
                log_start=Offset(row["log_start"]),
                incarnation=HERE,
            )
        elif row["outcome"] == OK:
            fetch = Fetch(
                offset=Offset(row["offset"]),
                leader_end=Offset(row["leader_end_low"]),
                at_ms=at_ms,
                served_at_ms=at_ms,
                log_start=Offset(row["log_start"]),
                incarnation=HERE,
            )
            self._term = self._term.fetch(follower, fetch)
        else:
            return
        if row["high_watermark"] is None:
            return  # told by its session for the rule's sake: it asked for nothing here
        known = Offset(max(self._term.high_watermark, row["high_watermark"]))
        self._term = replace(self._term, high_watermark=known)
        is_member = follower in isr_rules.committed(self._term.isr)
        if is_member or self._term.obstacles(follower, now_ms=at_ms):
            self._want_no_more({(follower, EXPAND)} & self._wanted.keys())
        elif not self._propose({(follower, EXPAND)}, at_ms):
            self._want(EXPAND, (follower,), since_ms=at_ms, now_ms=at_ms)

    # Decisions.

    def _propose(self, wanted: set[tuple[BrokerId, str]], at_ms: int) -> bool:
        """False: the tables tell of no such change."""
        if not self._changes or not isinstance(self._term.isr, Stable):
            return False
        change = self._changes[0]
        if not _is_leaders(change[0]):
            return False
        if {(row["replica"], row["change"]) for row in change} != wanted:
            return False
        self._pending = self._changes.pop(0)
        self.decisions += [
            _decision(self._epoch, row["replica"], row["change"], at_ms) for row in change
        ]
        brokers = {broker for broker, _ in wanted}
        if change[0]["change"] == SHRINK:
            self._term = self._term.propose_leave(brokers)
        else:
            self._term = self._term.propose_join(brokers.pop())
        return True

    def _want(
        self, change: str, replicas: Collection[BrokerId], *, since_ms: int, now_ms: int
    ) -> None:
        """The rules come to this, and no row tells of it."""
        if change == SHRINK:
            late = {(broker, SHRINK) for broker in replicas}
            self._want_no_more({key for key in self._wanted.keys() - late if key[1] == SHRINK})
        for broker in replicas:
            first_ms, _ = self._wanted.get((broker, change), (since_ms, since_ms))
            self._wanted[broker, change] = first_ms, now_ms

    def _want_no_more(self, keys: Iterable[tuple[int, str]]) -> None:
        for replica, change in sorted(keys):
            since_ms, until_ms = self._wanted.pop((replica, change))
            decision = _decision(self._epoch, replica, change, since_ms)
            self.unheeded.append(Unheeded(decision, until_ms))


def _events(row: Row) -> list[tuple[int, int, float, Any]]:
    """When a row takes effect; a merged one several times, a slow read has a beginning too."""
    at_ms, seq = row["at_ms"], row["seq"]
    if row.get("read_ms"):
        return [(at_ms, _BEGAN, _AFTER_ROWS, row), (at_ms + row["read_ms"], _ROW, seq, row)]
    if row.get("repeats", 1) == 1:
        return [(at_ms, _ROW, seq, row)]
    span_ms = row["last_at_ms"] - at_ms
    gaps = max(1, min(row["repeats"] - 1, span_ms // POINT_GAP_MS))
    return [(at_ms + span_ms * point // gaps, _ROW, seq, row) for point in range(gaps + 1)]


def _rule(epoch: Epoch, tables: Mapping[str, Rows], *, at_ms: int) -> tuple[Policy, int]:
    """The rule that held when the leader began."""
    leader, topic = epoch.key[3], epoch.key[0]
    values: dict[str, str] = {}
    scopes = (f"broker:{leader}", f"broker:{leader}/topic:{topic}")
    rows = [row for row in tables.get("configs", ()) if row["scope"] in scopes]
    for row in sorted(rows, key=lambda row: (len(row["scope"]), row["at_ms"])):
        if row["at_ms"] <= at_ms:
            values[row["name"]] = row["value"]
    name = values.get("replica.in.sync.policy", "caught-up")
    usual = InSyncSettings()
    wait_ms = int(values.get("replica.fetch.wait.max.ms", usual.replica_fetch_wait_max_ms))
    lag_ms = values.get("replica.lag.time.max.ms", usual.replica_lag_time_max_ms)
    messages = values.get("replica.lag.max.messages", usual.replica_lag_max_messages)
    holds = values.get("follower.fetch.pending.reads.insync.enable") == "true"
    rule = in_sync_rule(
        InSyncSettings(
            replica_in_sync_policy=name,
            replica_lag_time_max_ms=int(lag_ms),
            replica_lag_max_messages=int(messages),
            replica_fetch_wait_max_ms=wait_ms,
            follower_fetch_pending_reads_insync_enable=True if holds else None,
        )
    )
    return rule.policy, wait_ms
