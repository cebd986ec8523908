"""What a broker saw, kept in memory until it is published: bounded, and never in the way.

The data path appends one small row to a list, nothing more; columns, blocks and compression come
later and elsewhere. A row that finds the buffer full is counted and gone.

A follower that is level with its leader is not heard of partition by partition: its fetch session
speaks for all of them (`broker.fetch_sessions`). What the session said is written down when the
rule takes it over, as the idle fetches they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol
from zlib import crc32

from insync.rules import isr as isr_rules
from insync.rules.leadership import Leadership
from insync.rules.policy import Messages, Policy
from insync.rules.stalls import Stall
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET, BrokerId, LeaderEpoch
from insync.telemetry.schemas import (
    APPENDS,
    CONFIGS,
    CONTROLLER,
    ELECTED,
    ELECTIONS,
    EXPAND,
    FETCHES,
    ISR,
    LEADER,
    MERGED_GAP_MS,
    MOVED_AWAY,
    OK,
    SESSION_ENDED,
    SHRINK,
    STALLS,
    TABLES,
    TELEMETRY_TOPIC,
    THROTTLE,
    late_words,
)

ROW_BYTES: Final = 256
"""What a row takes in memory, about: a tuple of numbers, most of them small or shared."""

# Where the columns of an idle fetch's row are that change while it is kept.
_OFFSET, _HIGH_WATERMARK, _WAIT_MS, _REPEATS, _LAST_AT_MS = 4, 6, 10, 13, 14

Run = tuple[int, int, int, int]
"""Requests of a session close together: first, last, how many, how long they waited in all."""
Row = Sequence[Any]  # whose it is, then the columns that are not its partition's own


class Session(Protocol):
    @property
    def fetched_at_ms(self) -> int: ...
    @property
    def runs(self) -> Iterable[Run]: ...


class Place:
    """Rows of one place stay together and in order; for most a place is a partition."""

    __slots__ = ("hash", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.hash = crc32(f"{topic}-{partition}".encode())


class Recorder:
    def __init__(self, *, broker: BrokerId, anchor_ms: int, buffer_bytes: int) -> None:
        self.broker = broker
        self.anchor_ms = anchor_ms
        self.rows_max = max(1, buffer_bytes // ROW_BYTES)
        self.count = 0  # rows kept
        self.drops = dict.fromkeys(TABLES, 0)  # rows lost since the start
        self.rows: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.round = 0  # rows are taken away between two rounds
        self.is_needed = False  # somebody leads a partition worth telling of
        self._self = Place("", broker)
        self._settings: dict[str, dict[str, str]] = {}  # by scope, as last recorded

    def add(self, table: str, row: Row) -> bool:
        if self.count >= self.rows_max:
            self.drops[table] += 1
            return False
        self.count += 1
        self.rows[table].append(row)
        return True

    def take(self) -> dict[str, list[Row]]:
        """All rows since the last time, by table."""
        taken, self.rows = self.rows, {name: [] for name in TABLES}
        self.count = 0
        self.round += 1
        return taken

    # Of the broker as a whole.

    def stalled(self, stall: Stall) -> None:
        self.add(STALLS.name, (self._self, stall.began_at_ms, self.broker, stall.length_ms))

    def settings(
        self, values: Mapping[str, object], *, now_ms: int, topic: str | None = None
    ) -> None:
        """What holds from now on; only what is new is written down."""
        own = f"broker:{self.broker}"
        scope = own if topic is None else f"{own}/topic:{topic}"
        known = self._settings.setdefault(scope, {})
        general = {} if topic is None else self._settings.get(own, {})
        for name, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if known.get(name, general.get(name)) != text:
                known[name] = text
                self.add(CONFIGS.name, (self._self, now_ms, scope, name, text))

    def throttled(
        self,
        side: str,
        *,
        limit: int | None,
        size_bytes: int,
        exempt_bytes: int,
        held_back: int,
        lag_bytes: int | None,
        bytes_in: int,
        at_ms: int,
    ) -> None:
        row = (
            self._self, at_ms, self.broker, side, limit, size_bytes, exempt_bytes, held_back,
            lag_bytes, bytes_in,
        )  # fmt: skip
        self.add(THROTTLE.name, row)

    def elected(
        self,
        key: tuple[str, int],
        *,
        before: BrokerId | None,
        after: BrokerId | None,
        epoch: LeaderEpoch,
        cause: str,
        now_ms: int,
    ) -> None:
        if key[0] != TELEMETRY_TOPIC:
            place = Place(*key)
            self.add(ELECTIONS.name, (place, now_ms, *key, before, after, epoch, cause))

    # Of a partition led here.

    def lead(self, key: tuple[str, int], epoch: LeaderEpoch) -> PartitionRecord | None:
        """Where to write down what this leader sees; None: nobody tells of the telling."""
        if key[0] == TELEMETRY_TOPIC:
            return None
        self.is_needed = True
        return PartitionRecord(self, key, epoch)


class PartitionRecord(Place):
    """One partition in the hands of one leader, as it is written down."""

    __slots__ = ("_carried", "_decided", "_idle", "_idle_round", "_recorder", "epoch", "seq")

    def __init__(self, recorder: Recorder, key: tuple[str, int], epoch: LeaderEpoch) -> None:
        super().__init__(*key)
        self.epoch = epoch
        self.seq = 0
        self._recorder = recorder
        self._idle: dict[int, list[Any]] = {}  # the last row of a follower, if it was idle
        self._idle_round = -1
        self._carried: dict[int, int] = {}  # until when its session's requests are recorded
        self._decided: tuple[int, int, str, Leadership] | None = None

    @property
    def leader(self) -> BrokerId:
        return self._recorder.broker

    def _next(self) -> int:
        """A number is used up even if its row is dropped: the gap shows."""
        seq = self.seq
        self.seq = seq + 1
        return seq

    def append(self, *, base: int, end: int, size_bytes: int, now_ms: int) -> None:
        self._recorder.add(APPENDS.name, (self, now_ms, self._next(), base, end, size_bytes))

    def fetch(
        self,
        follower: int,
        *,
        offset: int,
        leader_end: int,
        high_watermark: int,
        log_start: int,
        size_bytes: int,
        at_ms: int,
        read_ms: int = 0,
        outcome: str = OK,
        is_held_back: bool = False,
        merges_within_ms: int = 0,
    ) -> None:
        """One fetch; merged with the one before it if both are idle and close together."""
        is_idle = size_bytes == 0 and offset == leader_end and read_ms == 0 and outcome is OK
        if is_idle and self._is_merged(follower, offset, high_watermark, at_ms, merges_within_ms):
            return
        recorder, seq = self._recorder, self.seq
        self.seq = seq + 1
        wait_ms = 0 if size_bytes else None
        row = (
            self, at_ms, seq, follower, offset, leader_end, high_watermark, log_start,
            size_bytes, read_ms, wait_ms, outcome, is_held_back, 1, at_ms,
        )  # fmt: skip
        if is_idle:
            mutable = list(row)
            if recorder.add(FETCHES.name, mutable):
                self._idle[follower] = mutable
        else:
            recorder.add(FETCHES.name, row)
            if self._idle:
                self._idle.pop(follower, None)

    def waited(self, follower: int, wait_ms: int) -> None:
        """How long its idle fetch waited for more, unless its row is on its way already."""
        if self._idle_round == self._recorder.round:
            row = self._idle.get(follower)
            if row is not None:
                row[_WAIT_MS] = (row[_WAIT_MS] or 0) + wait_ms

    def _is_merged(
        self, follower: int, offset: int, high_watermark: int, at_ms: int, within_ms: int
    ) -> bool:
        if self._idle_round != self._recorder.round:
            self._idle.clear()  # those rows are on their way
            self._idle_round = self._recorder.round
        last = self._idle.pop(follower, None)
        if (
            last is None
            or last[_OFFSET] != offset
            or last[_HIGH_WATERMARK] != high_watermark
            or not last[_LAST_AT_MS] < at_ms <= last[_LAST_AT_MS] + within_ms + MERGED_GAP_MS
        ):
            return False
        last[_REPEATS] += 1
        last[_LAST_AT_MS] = at_ms
        self._idle[follower] = last
        return True

    def carried(self, term: Leadership, follower: BrokerId, session: Session) -> None:
        """What its session said for this partition, if it is level and there is more of it."""
        known = term.followers.get(follower)
        if known is None or known.end != term.end:
            return
        since_ms = max(known.fetched_at_ms, self._carried.get(follower, NEVER_MS))
        until_ms = session.fetched_at_ms
        if until_ms <= since_ms:
            return
        self._carried[follower] = until_ms
        self._idle.pop(follower, None)
        runs: list[tuple[int, int, int, int | None]] = [
            part for run in session.runs if (part := _after(run, since_ms)) is not None
        ]
        # The watermark of those moments is not known any more.
        for first_ms, last_ms, repeats, wait_ms in runs or [(until_ms, until_ms, 1, None)]:
            row = (
                self, first_ms, self._next(), follower, known.end, term.end, None,
                known.log_start, 0, 0, wait_ms, OK, False, repeats, last_ms,
            )  # fmt: skip
            self._recorder.add(FETCHES.name, row)

    def decided(self, term: Leadership, why: str, *, now_ms: int, late_ms: int = 0) -> None:
        """A change of the ISR was proposed; it counts once it is committed.

        One that the store did not take, and that is proposed again before anything else is, was
        decided the first time, and was as late as it was then.
        """
        first = self._decided
        if first is None or first[3].isr != term.isr:
            self._decided = now_ms, late_ms, why, term
        else:
            decided_at_ms, late_ms, *_ = first
            again = f"; proposed again {now_ms - decided_at_ms} ms later"
            self._decided = decided_at_ms, late_ms, why + again, term

    def settled(
        self,
        term: Leadership | None,
        before: AbstractSet[BrokerId],
        after: AbstractSet[BrokerId],
        *,
        replicas: Collection[BrokerId],
        version: int,
        now_ms: int,
    ) -> None:
        """The store's word on the ISR: what this leader asked for, or what a controller did."""
        if before == after:
            return
        decided, self._decided = self._decided, None
        is_ours = term is not None and isr_rules.proposed(term.isr) == after
        decided_at_ms, why, asked = None, None, term
        if decided and is_ours:
            decided_at_ms, late_ms, why, asked = decided
            why += late_words(late_ms)
        for replica in sorted(before ^ after):
            known = None if asked is None else asked.followers.get(replica)
            self._recorder.add(
                ISR.name,
                (
                    self,
                    now_ms,
                    decided_at_ms,
                    LEADER if is_ours else CONTROLLER,
                    version,
                    sorted(before),
                    sorted(after),
                    replica,
                    EXPAND if replica in after else SHRINK,
                    why or by_controller(replica, before, replicas),
                    None if known is None or known.end == UNKNOWN_OFFSET else known.end,
                    None if asked is None else asked.end,
                    None
                    if known is None or known.caught_up_at_ms == NEVER_MS
                    else known.caught_up_at_ms,
                    self.seq,
                ),
            )

    def rule(self, policy: Policy, *, fetch_wait_max_ms: int, min_isr: int, now_ms: int) -> None:
        """The rule that decides here from now on."""
        values: dict[str, object] = {
            "replica.in.sync.policy": policy.name.removesuffix("+pending-reads"),
            "replica.lag.time.max.ms": policy.lag_time_max_ms,
            "replica.fetch.wait.max.ms": fetch_wait_max_ms,
            "follower.fetch.pending.reads.insync.enable": policy.pending_reads,
            "min.insync.replicas": min_isr,
        }
        if isinstance(policy, Messages):
            values["replica.lag.max.messages"] = policy.lag_max_messages
        self._recorder.settings(values, now_ms=now_ms, topic=self.topic)


def by_controller(
    replica: BrokerId, before: AbstractSet[BrokerId], replicas: Collection[BrokerId]
) -> str:
    """Why a change that no leader asked for was made."""
    if replica not in before:
        return ELECTED
    return SESSION_ENDED if replica in replicas else MOVED_AWAY


def _after(run: Run, since_ms: int) -> Run | None:
    """The part of a run that is later; how many that were is told by their even spacing."""
    first_ms, last_ms, count, wait_ms = run
    if last_ms <= since_ms:
        return None
    if first_ms > since_ms or count == 1:
        return run
    gap_ms = max(1, (last_ms - first_ms) // (count - 1))
    later = max(1, min(count, (last_ms - since_ms - 1) // gap_ms + 1))
    return last_ms - (later - 1) * gap_ms, last_ms, later, wait_ms * later // count
