"""Random tables of clusters: every fault that the columns can show, from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from insync.telemetry.schemas import (
    APPENDS,
    ASSIGNMENTS,
    CONFIGS,
    ELECTIONS,
    FETCHES,
    ISR,
    REASSIGNMENT,
    REPLICAS_MOVED,
    STALLS,
)

Row = dict[str, Any]
Tables = dict[str, list[Row]]

START_MS = 1_700_000_000_000
MB = 1_000_000
BROKERS = (1, 2, 3, 4)
THROTTLE_COLUMNS = (
    "at_ms", "broker", "side", "limit_bytes_per_s", "bytes", "exempt_bytes",
    "held_back_partitions", "replica_lag_bytes", "bytes_in",
)  # fmt: skip


def made_up(seed: int, *, partitions: int) -> Tables:
    random = Random(seed)  # noqa: S311 - chance, not secrecy
    tables: Tables = {
        name: []
        for name in (
            *("fetches", "appends", "isr", "elections"),
            *("stalls", "configs", "throttle", "assignments"),
        )
    }
    for broker in BROKERS:
        _of_broker(tables, broker, random)
    for number in range(partitions):
        _Partition(tables, f"topic {number % 7}", number, random).generate()
    for table in (FETCHES, APPENDS, ISR, ELECTIONS, STALLS, CONFIGS, ASSIGNMENTS):
        assert all(set(row) == set(table.names) for row in tables[table.name]), table.name
    return tables


def _of_broker(tables: Tables, broker: int, random: Random) -> None:
    def setting(name: str, value: object, *, at_ms: int, topic: str = "") -> None:
        scope = f"broker:{broker}" + (f"/topic:{topic}" if topic else "")
        tables["configs"].append(
            {"at_ms": at_ms, "scope": scope, "name": name, "value": str(value)}
        )

    setting("log.segment.bytes", 1, at_ms=START_MS)
    if broker != BROKERS[-1]:  # of the last one nothing is known
        setting("replica.lag.time.max.ms", 4_000, at_ms=START_MS)
    setting("min.insync.replicas", 2, at_ms=START_MS + 5_000)
    for topic in ("topic 1", "topic 2"):
        setting("replica.in.sync.policy", "messages", at_ms=START_MS, topic=topic)
    later_ms = START_MS + random.randrange(60_000)
    setting("replica.lag.time.max.ms", 2_000, at_ms=later_ms, topic="topic 3")
    for _ in range(3):
        at_ms = START_MS + random.randrange(90_000)
        stall_ms = random.randrange(100, 3_000)
        stall = {"at_ms": at_ms, "broker": broker, "stall_ms": stall_ms}
        stall["drained_at_ms"] = at_ms + stall_ms
        tables["stalls"] += [stall] * random.choice((1, 2))
    for side in ("leader", "follower"):
        for second in range(90):
            if random.random() < 0.6:
                at_ms = START_MS + 1_000 * second + random.randrange(3)
                held = random.choice((0, 0, 0, 2))
                values = (at_ms, broker, side, 10**6, 10**6, 0, held, 10**7, 10**5)
                tables["throttle"].append(dict(zip(THROTTLE_COLUMNS, values, strict=True)))


class _Partition:
    def __init__(self, tables: Tables, topic: str, number: int, random: Random) -> None:
        self.tables, self.random = tables, random
        self.partition_columns = {"topic": topic, "partition": number}
        self.replicas = random.sample(BROKERS, 3)
        self.isr = set(random.sample(self.replicas, random.choice((1, 2, 3, 3))))
        self.version, self.epoch, self.end = 0, random.choice((0, 5)), random.choice((0, 400))
        self.leader = min(self.isr)
        self.ends = dict.fromkeys(self.replicas, 0)
        self.caught_up_ms: dict[int, int] = {}
        self.silent_until: dict[int, int] = {}
        self.has_versions = random.random() < 0.8
        self.is_always_behind = dict.fromkeys(BROKERS, False)
        self.is_always_behind[random.choice(BROKERS)] = self.end > 0
        self.log_start = random.choice((None, 0, 0, 300))
        self.changed_at_ms = -1
        self.creation = 0
        self.has_assignments = random.random() < 0.7

    def generate(self) -> None:
        random = self.random
        now_ms = START_MS + random.randrange(20_000)
        self.seq = 0
        self._append(now_ms, 0)
        self._assign(now_ms)
        has_changes = random.random() < 0.8
        for _ in range(random.randrange(20, 160)):
            now_ms += random.choice((0, 1, 10, 200, 900))
            what = random.random()
            if what < 0.3:
                self._append(now_ms, random.choice((1, 5, 500)))
            elif what < 0.8:
                self._fetch(now_ms, random.choice([b for b in self.replicas if b != self.leader]))
            elif what < 0.82:
                self._elect(now_ms)
            elif what < 0.94 and has_changes:
                self._change(now_ms)
            elif what < 0.96 and has_changes:
                self._move(now_ms)
            elif what < 0.98:
                now_ms += random.choice((2_000, 5_000))
            elif what < 0.985:
                now_ms = self._cancel_move(now_ms)
            elif what < 0.989 and self.has_assignments and self.has_versions:
                now_ms = self._create_again(now_ms)

    def _whose(self) -> Row:
        return self.partition_columns | {"leader": self.leader, "leader_epoch": self.epoch}

    def _next(self) -> int:
        self.seq += 1
        return self.seq - 1

    def _append(self, now_ms: int, count: int) -> None:
        row = self._whose() | {"at_ms": now_ms, "seq": self._next(), "base_offset": self.end}
        self.end += count
        self.tables["appends"].append(row | {"end_offset": self.end, "bytes": 10 * count})

    def _fetch(self, now_ms: int, follower: int, outcome: str | None = None) -> None:
        random = self.random
        if self.silent_until.get(follower, 0) > now_ms:
            return
        if random.random() < 0.08:
            self.silent_until[follower] = now_ms + random.choice((3_000, 9_000, 70_000))
        offset = random.choice((self.end, self.ends[follower], self.end - self.end // 3))
        high_watermark = random.choice((None, 0, self.end - self.end // 4, self.end))
        if self.is_always_behind[follower] and random.random() < 0.98:
            offset, high_watermark = self.end // 2, self.end
        repeats = random.choice((1, 1, 4)) if offset == self.end else 1
        read_ms = random.choice((0, 0, 0, 3, 400, 2_500, 5_000)) if repeats == 1 else 0
        if offset == self.end:
            self.caught_up_ms[follower] = now_ms
        self.ends[follower] = offset
        self.tables["fetches"].append(
            self._whose()
            | {"at_ms": now_ms, "seq": self._next(), "follower": follower, "offset": offset}
            | {"leader_end_low": self.end, "leader_end_high": self.end}
            | {"high_watermark": high_watermark, "log_start": self.log_start}
            | {"bytes": 0, "read_ms": read_ms, "wait_ms": None}
            | {"outcome": outcome or random.choice(("ok",) * 8 + ("error",)), "repeats": repeats}
            | {"throttled": random.random() < 0.01}
            | {"last_at_ms": now_ms + (repeats - 1) * random.choice((100, 900))}
        )

    def _elect(self, now_ms: int) -> None:
        before, self.leader = self.leader, self.random.choice(sorted(self.isr))
        self._begin(now_ms, before, "a broker came or went")
        self._append(now_ms, 0)
        self._assign(now_ms)

    def _begin(self, now_ms: int, leader_before: int, cause: str) -> None:
        self.epoch += 1
        self.seq = 0
        self.tables["elections"].append(
            self.partition_columns
            | {"at_ms": now_ms, "leader_before": leader_before, "leader_after": self.leader}
            | {"leader_epoch": self.epoch, "cause": cause}
        )

    def _assign(self, now_ms: int, replicas: list[int] | None = None, adding: int = 0) -> None:
        self.version += 1
        if self.has_assignments:
            row = self._whose() | {"at_ms": now_ms, "version": self.version}
            row |= {"topic_id": str(self.creation), "removing": []}
            row["replicas"] = self.replicas if replicas is None else replicas
            row["adding"] = [adding] if adding else []
            self.tables["assignments"] += [row] * self.random.choice((1, 1, 2))

    def _cancel_move(self, now_ms: int) -> int:
        """The fourth broker is added, fetches from the start, and is removed again."""
        (new,) = set(BROKERS) - set(self.replicas)
        before = self.replicas
        self.replicas = [*before, new]
        self.ends[new] = 0
        self._assign(now_ms, adding=new)
        self.is_always_behind[new] = self.end > 0
        self._fetch(now_ms + 1, new)
        self.replicas = before
        self._begin(now_ms + 20, self.leader, REPLICAS_MOVED)
        self._append(now_ms + 20, 0)
        self._assign(now_ms + 20)
        return now_ms + 20

    def _create_again(self, now_ms: int) -> int:
        """Mostly a deletion is recorded; else the leader of the deleted topic is down."""
        if self.random.random() < 0.6:
            self._assign(now_ms, [])
        self.creation += 1
        self.version = self.epoch = self.seq = self.end = 0
        self.isr = set(self.replicas)
        self.ends = dict.fromkeys(BROKERS, 0)
        self.caught_up_ms.clear()
        self.leader = min(self.isr)
        self._append(now_ms + 500, 0)
        self._assign(now_ms + 500)
        return now_ms + 500

    def _move(self, now_ms: int) -> None:
        """One replica is removed and the fourth broker added, which may have been one before.

        The successor of a removed leader is an ISR member; mostly the leader stays.
        """
        random = self.random
        before, others = self.leader, sorted(self.isr - {self.leader})
        if now_ms == self.changed_at_ms:
            return
        if others and random.random() < 0.2:
            self.leader = random.choice(others)
        gone = random.choice([broker for broker in self.replicas if broker != self.leader])
        (new,) = set(BROKERS) - set(self.replicas)
        self.replicas = [*(broker for broker in self.replicas if broker != gone), new]
        self.ends[new] = 0
        self.caught_up_ms.pop(new, None)
        self._begin(now_ms, before, REPLICAS_MOVED)
        if gone in self.isr:
            self._record_change(now_ms, gone, by_leader=False, cause=REASSIGNMENT)
        self._append(now_ms, 0)
        self._assign(now_ms)
        if random.random() < 0.5:
            self._fetch(now_ms + 1, gone, outcome="error")  # it has not learnt of it

    def _change(self, now_ms: int) -> None:
        if now_ms == self.changed_at_ms and not self.has_versions:
            return  # the order of the two would be unknown
        follower = self.random.choice([broker for broker in self.replicas if broker != self.leader])
        by_leader = self.random.random() < 0.7 or follower not in self.isr
        cause = self.random.choice((None, "lag-time", "from elsewhere"))
        if not by_leader:
            known = (None, "broker-gone", "broker-frozen", "replica-offline")
            cause = self.random.choice(known)
        self._record_change(now_ms, follower, by_leader=by_leader, cause=cause)

    def _record_change(
        self, now_ms: int, follower: int, *, by_leader: bool, cause: str | None
    ) -> None:
        self.changed_at_ms = now_ms
        random = self.random
        before = sorted(self.isr)
        self.isr ^= {follower}
        is_known = random.random() < 0.8
        self.version += 1
        caught_up_ms = self.caught_up_ms.get(follower)
        row = (
            self._whose()
            | {"at_ms": now_ms, "decided_at_ms": now_ms - 3 if by_leader else None}
            | {"decided_by": "leader" if by_leader else "controller", "seq": self.seq}
            | {"version": self.version if self.has_versions else None}
            | {"isr_before": before, "isr_after": sorted(self.isr), "replica": follower}
            | {
                "change": "expand" if follower in self.isr else "shrink",
                "reason": f"{follower} <went>",
            }
            | {"cause": cause, "late_ms": 0 if by_leader else None}
            | {"replica_end": self.ends[follower] if is_known else None, "leader_end": self.end}
            | {"caught_up_at_ms": caught_up_ms if is_known else None}
        )
        if random.random() < 0.92:  # else lost with its broker
            self.tables["isr"] += [row] * random.choice((1, 1, 1, 2))


def throttled_seconds(seed: int, side: str, inbound: Sequence[int], brokers: int = 20) -> list[Row]:
    """Moves that end, hang or never begin, under limits that are changed, too low or gone."""
    random = Random(seed)  # noqa: S311 - chance, not secrecy
    rows = []
    for broker in range(1, brokers + 1):
        limit: int | None = 10 * MB
        has_lag = random.random() < 0.8
        has_inbound = broker % 7 != 0
        # A rate that one broker records is known for all; a broker without one is an hour later.
        at_ms, lag = START_MS + 1_000 * random.randrange(5) + 3_600_000 * (not has_inbound), 0
        stays = random.random() < 0.3  # its lag falls no more
        for _ in range(random.randrange(30, 200)):
            at_ms += 1_000 + random.choice((0, 0, 0, 0, 0, 3))
            what = random.random()
            if what < 0.03:
                limit = random.choice((None, 0, 5 * MB, 10 * MB))
            elif what < 0.05:
                at_ms += random.choice((8_999, 9_000, 9_001, 20_000))
            elif what < 0.10 and not (stays and lag):
                lag = random.choice((30 * MB, 55 * MB + 1, 120 * MB))
            sent = random.randrange(8 * MB)
            lag = max(0, lag - (random.choice((0, 1, -1)) if stays else sent))
            row = {
                "at_ms": at_ms,
                "broker": broker,
                "side": side,
                "limit_bytes_per_s": limit,
                "bytes": sent,
                "exempt_bytes": random.randrange(sent + 1),
                "held_back_partitions": random.choice((0, 0, 1, 7)),
                "replica_lag_bytes": lag if has_lag and random.random() < 0.95 else None,
                "bytes_in": random.choice(inbound) if has_inbound else None,
            }
            rows += [row] * random.choice((1, 1, 1, 2))
    random.shuffle(rows)
    return rows
