"""The tables replayed through `rules`: what a leader must have decided, given what it saw.

This is the contract of the tables, and the reference for faster replays. It is written to
be read: one partition and epoch at a time, one event after the other.

- Rows take effect in the order of (time, seq): an append at `at_ms`, a fetch at `at_ms + read_ms`.
- A deadline that falls into the same millisecond as an event comes first.
- From the end of a stall until `drained_at_ms` nothing is due. In that millisecond the drain comes
  before the first shrink, or after all rows: while nothing is due, its place does not matter.
- A deadline in the millisecond in which a stall began was met before it only if the leader proposed
  something by then.
- What the replay proposes is pending until an `isr` row says that it was committed, or a row of
  `isr_events` that it was not. A change that the leader did not propose is `unmatched`, and ends
  the replay of its epoch.
- The watermark is the recorded one where it is higher: it also depends on which brokers lived.
- A gap in `seq` ends what can be replayed of an epoch (`is_whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from insync.rules.follower import Fetch
from insync.rules.isr import IsrChange, Stable, proposed
from insync.rules.leader_machine import (
    Appended,
    Effect,
    Event,
    FollowerFetched,
    HighWatermarkRecorded,
    LeaderStalled,
    PartitionStateRead,
    ProposalRefused,
    ProposeIsr,
    ReadFailed,
    ReadServed,
    ReadStarted,
    RuleChanged,
    SessionFetched,
    SocketsDrained,
    Woken,
    start,
    step,
)
from insync.rules.leadership import Leadership, Rule
from insync.rules.settings import LAG_MAX_MESSAGES_DEFAULT, InSyncSettings, in_sync_rule
from insync.rules.stalls import Stall
from insync.rules.values import NEVER_MS, BrokerId, Incarnation, LeaderEpoch, Offset
from insync.telemetry.schemas import (
    BEGAN,
    EXPAND,
    LEADER,
    OK,
    PROPOSED,
    REFUSED,
    RUN_BEGINS,
    SHRINK,
    SUPERSEDED,
)

Row = Mapping[str, Any]
Rows = Sequence[Row]
EpochKey = tuple[str, int, int, int]  # topic, partition, leader epoch, leader

REPLAYED_INCARNATION: Final = Incarnation(
    0
)  # the tables tell only of fetches of living incarnations
POINT_GAP_MS: Final = 10
"""Merged idle fetches closer together than this are taken as one: nothing happens in between."""

# What comes first in a millisecond: a stall that ended, another rule, rows, reads that began, the
# end of draining.
_STALLED, _RULED, _ROW, _BEGAN, _DRAINED = 0, 1, 2, 3, 4
_FIRST: Final = (0.0,)


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
    def identity(self) -> tuple[str, int, int, int, str]:
        return self.topic, self.partition, self.leader_epoch, self.replica, self.change

    @property
    def due_at_ms(self) -> int:
        return self.decided_at_ms - self.late_ms


@dataclass(frozen=True, slots=True)
class Replayed:
    proposals: Sequence[Decision]
    """What the rules come to, and when. One that the store did not commit may come again."""
    decisions: Sequence[Decision]
    """Those that were committed. A change that was proposed again was decided the first time."""
    unmatched: Sequence[Decision]
    """What the rules come to and no leader proposed."""


@dataclass(slots=True)
class Epoch:
    """One partition under one leader, as the tables tell of it."""

    key: EpochKey
    fetches: list[Row] = field(default_factory=list)
    appends: list[Row] = field(default_factory=list)
    isr: list[Row] = field(default_factory=list)
    isr_events: list[Row] = field(default_factory=list)

    def whole_until(self) -> int | None:
        """The first number that no row has; None if the epoch's beginning is missing."""
        numbers = sorted(row["seq"] for row in (*self.fetches, *self.appends))
        missing = next((at for at, seq in enumerate(numbers) if seq != at), len(numbers))
        return missing or None

    @property
    def is_whole(self) -> bool:
        numbers = sorted(row["number"] for row in self.isr_events)
        has_all_events = numbers == list(range(len(numbers))) != []
        return has_all_events and self.whole_until() == len(self.fetches) + len(self.appends)


def epochs(tables: Mapping[str, Iterable[Row]]) -> list[Epoch]:
    epochs_by_key: dict[EpochKey, Epoch] = {}
    for name in ("fetches", "appends", "isr", "isr_events"):
        for row in tables.get(name, ()):
            key = (row["topic"], row["partition"], row["leader_epoch"], row["leader"])
            getattr(epochs_by_key.setdefault(key, Epoch(key)), name).append(row)
    return [epochs_by_key[key] for key in sorted(epochs_by_key)]


def recorded(epoch: Epoch) -> list[Decision]:
    """The leader's own decisions, in the order in which they were committed."""
    rows = sorted(epoch.isr, key=lambda row: (row["version"], row["replica"]))
    return [
        replace(
            _decision(epoch, row["replica"], row["change"], row["decided_at_ms"]),
            late_ms=row.get("late_ms") or 0,
        )
        for row in rows
        if _is_leaders(row)
    ]


def recorded_proposals(epoch: Epoch) -> list[Decision]:
    """All that the leader proposed, in order, whether or not it was committed."""
    return [
        replace(each, late_ms=row["late_ms"] or 0)
        for row in _proposed(epoch)
        for each in _decisions(epoch, row["isr_before"], row["isr_after"], row["at_ms"])
    ]


def replay(epoch: Epoch, tables: Mapping[str, Rows]) -> Replayed:
    """The decisions that the rules come to."""
    until = epoch.whole_until()
    if until is None or not any(row["event"] == BEGAN for row in epoch.isr_events):
        return Replayed((), (), ())
    done = _Replay(epoch, until, tables)
    return Replayed(done.proposals, done.decisions, done.unmatched)


def _proposed(epoch: Epoch) -> list[Row]:
    rows = [row for row in epoch.isr_events if row["event"] == PROPOSED]
    return sorted(rows, key=lambda row: row["number"])


def _is_leaders(row: Row) -> bool:
    return bool(row["decided_by"] == LEADER)


def _decisions(
    epoch: Epoch, before: Iterable[int], after: Iterable[int], decided_at_ms: int
) -> list[Decision]:
    """One for each replica that joins or leaves."""
    members, joined = set(before), set(after) - set(before)
    return [
        _decision(epoch, replica, EXPAND if replica in joined else SHRINK, decided_at_ms)
        for replica in sorted(members ^ set(after))
    ]


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


class _Occurrence(NamedTuple):
    """What a leader saw; `sort_key` orders what has the same time."""

    at_ms: int
    kind: int
    sort_key: tuple[float, ...]
    apply: Callable[[], object]


class _Replay:
    """A driver of the leader's state machine: events and commits come from the tables."""

    def __init__(self, epoch: Epoch, until: int, tables: Mapping[str, Rows]) -> None:
        self.proposals: list[Decision] = []
        self.decisions: list[Decision] = []
        self.unmatched: list[Decision] = []
        self._to_come = _proposed(epoch)  # what the leader proposed and the replay has not yet
        self._pending = 0  # the number of the latest proposal; the row after it says how it ended
        self._decided: list[Decision] = []  # by the latest proposal, when it was first made
        self._epoch = epoch
        self._leader = BrokerId(epoch.key[3])
        rows = sorted((*epoch.fetches, *epoch.appends), key=lambda row: row["seq"])[:until]
        first = rows[0]
        # Rows of one version have the same ISR. A change before row 0 came with the leader.
        self._changes = {row["version"]: row for row in epoch.isr if row["seq"] > 0}
        members = next(row["isr_after"] for row in epoch.isr_events if row["event"] == BEGAN)
        self._now_ms: int = first["at_ms"]
        followers = {row["follower"] for row in rows if "follower" in row}
        changed = {row["replica"] for row in epoch.isr}
        replicas = sorted({self._leader, *members, *followers, *changed})
        self._replicas = tuple(BrokerId(broker) for broker in replicas)
        self._state, _ = start(
            Leadership.begin(
                rule=_rule(epoch, tables, at_ms=first["at_ms"]),
                leader=self._leader,
                epoch=LeaderEpoch(epoch.key[2]),
                replicas=self._replicas,
                members=frozenset(BrokerId(broker) for broker in members),
                end=Offset(first["base_offset"]),
                high_watermark=Offset(0),
                registered=dict.fromkeys(self._replicas, REPLAYED_INCARNATION),
                now_ms=first["at_ms"],
            ),
            now_ms=first["at_ms"],
        )
        self._run(rows[1:], tables)

    # Events, one after the other.

    def _run(self, rows: Rows, tables: Mapping[str, Rows]) -> None:
        last = rows[-1]["seq"] if rows else 0
        occurrences = [each for row in rows for each in self._occurrences(row)]
        occurrences += self._settlements(last)
        began_at_ms = min(row["at_ms"] for row in self._epoch.appends)
        # How long it led after its last row is not known.
        led_until_ms = max(
            [
                began_at_ms,
                *(each.at_ms for each in occurrences),
                *(row["at_ms"] for row in self._to_come),
            ]
        )
        occurrences += self._stalls(tables, began_at_ms, led_until_ms)
        for at_ms in self._ruled_at_ms(tables, began_at_ms):
            if at_ms <= led_until_ms:
                changed = RuleChanged(_rule(self._epoch, tables, at_ms=at_ms))
                occurrences.append(
                    _Occurrence(at_ms, _RULED, _FIRST, partial(self._report, changed))
                )
        for each in sorted(occurrences, key=lambda each: (each.at_ms, each.kind, each.sort_key)):
            if self.unmatched:
                return
            if each.kind != _STALLED:
                self._look_until(each.at_ms)
                self._now_ms = each.at_ms
            each.apply()
        if self._to_come:
            self._look_until(led_until_ms)

    def _occurrences(self, row: Row) -> list[_Occurrence]:
        """When a row takes effect; a merged one several times, a slow read has a beginning too."""
        at_ms, sort_key = row["at_ms"], (row["seq"],)
        if "follower" not in row:
            appended = Appended(Offset(row["end_offset"]))
            return [_Occurrence(at_ms, _ROW, sort_key, partial(self._report, appended))]
        fetched = partial(self._fetched, row)
        if row["read_ms"]:
            return [
                _Occurrence(at_ms, _BEGAN, _FIRST, partial(self._read_started, row)),
                _Occurrence(at_ms + row["read_ms"], _ROW, sort_key, fetched),
            ]
        if row["repeats"] == 1:
            return [_Occurrence(at_ms, _ROW, sort_key, fetched)]
        span_ms = row["last_at_ms"] - at_ms
        gaps = max(1, min(row["repeats"] - 1, span_ms // POINT_GAP_MS))
        return [
            _Occurrence(at_ms + span_ms * point // gaps, _ROW, sort_key, fetched)
            for point in range(gaps + 1)
        ]

    def _settlements(self, last: int) -> list[_Occurrence]:
        """What became of proposals, each before the row that has its number: the leader had seen
        that many rows. Of those with one number, an earlier version of the state comes first."""
        settlements = []
        for row in self._changes.values():
            sort_key = (row["seq"] - 0.5, row["version"], 0)
            if row["seq"] <= last + 1:
                settle = partial(self._settle, row)
                settlements.append(_Occurrence(row["at_ms"], _ROW, sort_key, settle))
        for row in self._epoch.isr_events:
            if row["event"] in (REFUSED, SUPERSEDED) and row["seq"] <= last + 1:
                version = row["version"] + (row["event"] == SUPERSEDED)
                sort_key = (row["seq"] - 0.5, version, row["number"])
                end = partial(self._end_proposal, row)
                settlements.append(_Occurrence(row["at_ms"], _ROW, sort_key, end))
        return settlements

    def _stalls(
        self, tables: Mapping[str, Rows], began_at_ms: int, led_until_ms: int
    ) -> Iterator[_Occurrence]:
        for row in tables.get("stalls", ()):
            stall = Stall(began_at_ms=row["at_ms"], ended_at_ms=row["at_ms"] + row["stall_ms"])
            is_while_leading = (
                began_at_ms <= stall.ended_at_ms and stall.began_at_ms <= led_until_ms
            )
            if row["broker"] != self._leader or not is_while_leading:
                continue
            stalled = partial(self._stalled, stall)
            yield _Occurrence(stall.ended_at_ms, _STALLED, _FIRST, stalled)
            drained_at_ms = row.get("drained_at_ms") or stall.ended_at_ms
            if drained_at_ms <= led_until_ms:
                kind, sort_key = self._drained_in(drained_at_ms)
                drained = partial(self._report, SocketsDrained())
                yield _Occurrence(drained_at_ms, kind, sort_key, drained)

    def _drained_in(self, at_ms: int) -> tuple[int, tuple[float, ...]]:
        """The kind and sort key of a drain in its millisecond."""
        for row in self._to_come:
            if row["at_ms"] == at_ms and _is_shrink(row):
                return _ROW, (row["seq"] - 0.5, row["version"], 0.5)
        return _DRAINED, _FIRST

    def _report(self, event: Event) -> list[Effect]:
        self._state, effects = step(self._state, event, now_ms=self._now_ms, meets_deadlines=False)
        return effects

    def _ruled_at_ms(self, tables: Mapping[str, Rows], began_at_ms: int) -> list[int]:
        scope = f"broker:{self._leader}/topic:{self._epoch.key[0]}"
        rows = [row for row in tables.get("configs", ()) if row["scope"] == scope]
        return sorted({row["at_ms"] for row in rows if row["at_ms"] > began_at_ms})

    def _look_until(self, until_ms: int) -> None:
        """Meet every deadline up to then, the one of that millisecond included."""
        while not self.unmatched:
            due_ms = max(self._state.wake_at_ms, self._now_ms)
            if due_ms > until_ms:
                return
            self._now_ms = self._looked_at_ms(due_ms, until_ms)
            self._apply_proposals(self._report(Woken()))

    def _looked_at_ms(self, due_ms: int, until_ms: int) -> int:
        """A timer that was late epochs_by_key all that were due by then, and they left together."""
        row = self._to_come[0] if self._to_come else None
        if row is None or not _is_shrink(row):
            return due_ms
        proposed_at_ms: int = row["at_ms"]
        return max(due_ms, min(proposed_at_ms, until_ms))

    def _stalled(self, stall: Stall) -> None:
        looked_until_ms = stall.began_at_ms
        if not self._to_come or self._to_come[0]["at_ms"] > looked_until_ms:
            looked_until_ms -= 1
        self._look_until(looked_until_ms)
        self._now_ms = stall.ended_at_ms
        self._report(LeaderStalled(stall))

    def _settle(self, row: Row) -> None:
        if _is_leaders(row):
            self.decisions += self._decided
        self._decided = []
        self._read_state(frozenset(BrokerId(broker) for broker in row["isr_after"]))

    def _read_state(self, members: frozenset[BrokerId]) -> None:
        version = self._state.isr.version + 1
        self._report(PartitionStateRead(version, self._replicas, members))

    def _end_proposal(self, row: Row) -> None:
        change = self._state.isr
        if isinstance(change, Stable) or row["number"] != self._pending + 1:
            return  # superseded by a change that `isr` has
        if row["event"] == REFUSED:
            self._report(ProposalRefused(change))
        else:
            self._read_state(change.members)

    def _read_started(self, row: Row) -> None:
        self._report(
            ReadStarted(
                follower=BrokerId(row["follower"]),
                read_id=row["seq"],
                connection=0,
                offset=Offset(row["offset"]),
                parsed_at_ms=row["at_ms"],
            )
        )

    def _fetched(self, row: Row) -> None:
        follower = BrokerId(row["follower"])
        if row["outcome"] != OK:
            if row["read_ms"]:
                self._report(ReadFailed(follower, row["seq"]))
            return
        if row["high_watermark"] is None:
            # Recorded for its session: the follower asked for nothing here.
            self._report(SessionFetched(follower, self._now_ms))
            return
        self._report(HighWatermarkRecorded(Offset(row["high_watermark"])))
        self._apply_proposals(self._report(self._fetch_event(row, follower)))

    def _fetch_event(self, row: Row, follower: BrokerId) -> FollowerFetched | ReadServed:
        leader_end, log_start = Offset(row["leader_end_low"]), Offset(row["log_start"])
        if row["read_ms"]:
            return ReadServed(
                follower=follower,
                read_id=row["seq"],
                leader_end=leader_end,
                log_start=log_start,
                incarnation=REPLAYED_INCARNATION,
            )
        fetch = Fetch(
            offset=Offset(row["offset"]),
            leader_end=leader_end,
            at_ms=self._now_ms,
            served_at_ms=self._now_ms,
            log_start=log_start,
            incarnation=REPLAYED_INCARNATION,
        )
        return FollowerFetched(follower, fetch)

    # Decisions.

    def _apply_proposals(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self._propose(effect.change, due_at_ms=effect.due_at_ms)

    def _propose(self, change: IsrChange, *, due_at_ms: int) -> None:
        before, after = sorted(change.members), sorted(proposed(change))
        decisions = _decisions(self._epoch, before, after, due_at_ms)
        row = self._to_come[0] if self._to_come else None
        if row is None or (row["isr_before"], row["isr_after"]) != (before, after):
            self.unmatched += decisions
            return
        del self._to_come[0]
        self._pending = row["number"]
        self.proposals += decisions
        if [each.identity for each in self._decided] != [each.identity for each in decisions]:
            self._decided = decisions


def _is_shrink(row: Row) -> bool:
    return len(row["isr_after"]) < len(row["isr_before"])


def _rule(epoch: Epoch, tables: Mapping[str, Rows], *, at_ms: int) -> Rule:
    """The rule that was in force at that time."""
    leader, topic = epoch.key[3], epoch.key[0]
    values: dict[str, str] = {}
    scopes = (f"broker:{leader}", f"broker:{leader}/topic:{topic}")
    rows = [row for row in tables.get("configs", ()) if row["scope"] in scopes]
    rows = [row for row in rows if row["at_ms"] <= at_ms]
    run_ms = max((row["at_ms"] for row in rows if row["name"] == RUN_BEGINS), default=NEVER_MS)
    for row in sorted(rows, key=lambda row: (len(row["scope"]), row["at_ms"])):
        if row["scope"] == scopes[0] or row["at_ms"] >= run_ms:
            values[row["name"]] = row["value"]
    name = values.get("replica.in.sync.policy", "caught-up")
    default = InSyncSettings()
    wait_ms = int(values.get("replica.fetch.wait.max.ms", default.replica_fetch_wait_max_ms))
    lag_ms = values.get("replica.lag.time.max.ms", default.replica_lag_time_max_ms)
    messages = values.get("replica.lag.max.messages", LAG_MAX_MESSAGES_DEFAULT)
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
    return Rule(policy=rule.policy, fetch_wait_max_ms=wait_ms)
