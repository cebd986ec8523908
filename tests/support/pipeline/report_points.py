"""What a busy day would give a report: every chart and table, and a topic with a hostile name."""

from __future__ import annotations

from random import Random
from typing import Any

from insync.pipeline.report.points import COLUMNS_MAX, Points
from insync.pipeline.tables.episodes import CAUSES

START_MS = 1_700_000_000_000
SPAN_MS = 40 * 60_000
HOSTILE = '</script><img src=x onerror="alert(1)">&amp;'
TOPICS = ("orders", "payments", HOSTILE, "clicks")
POLICIES = ("caught-up", "lag-begin", "messages", "pending-reads", "true-lag")
LIMITS_MS = (1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 45_000, 60_000)

Row = dict[str, Any]


def made_up_points(seed: int = 4, *, episodes: int = 60) -> Points:
    random = Random(seed)  # noqa: S311 - chance, not secrecy
    rows = [_episode(random) for _ in range(episodes)]
    incidents = _incidents(rows)
    end_ms = START_MS + SPAN_MS
    chance = Random(418)  # noqa: S311 - one topic is ok, one broker critical, whatever is above
    health = [_health("topic", topic, chance) for topic in TOPICS]
    health += [_health("broker", str(broker), chance) for broker in (1, 2, 3)]
    what_if = [
        _what_if(at, policy, limit_ms)
        for at, policy in enumerate(POLICIES)
        for limit_ms in LIMITS_MS
    ]
    return Points(
        span_ms=(START_MS - 30_000, end_ms),
        summary={
            "episodes": len(rows),
            "open": sum(row["ending"] == "open" for row in rows),
            "out_ms": SPAN_MS // 2,
            "replicas": len({_replica(row) for row in rows}),
            "incidents": len(incidents),
            "limit_ms_min": 30_000,
            "limit_ms_max": 30_000,
            "topics": len(TOPICS),
            "brokers": 3,
            **{
                f"{status} {level}s": sum(
                    (row["level"], row["status"]) == (level, status) for row in health
                )
                for level in ("topic", "broker")
                for status in ("critical", "warning")
            },
            "under_min_isr_ms": max(row["under_min_isr_ms"] for row in health[: len(TOPICS)]),
            "under_min_isr_topic": TOPICS[2],
            "leader_changes": sum(row["leader_changes"] for row in health[: len(TOPICS)]),
            "scenarios": len(what_if),
            "limits": 3,
            "spans": 2,
        },
        episodes_span_ms=(START_MS - 30_000, end_ms),
        incidents=incidents,
        lag=_lag(random),
        what_if=what_if,
        seconds=[_seconds(broker, random) for broker in (1, 2, 3)],
        throttle=[
            _throttle(2, verdict="safe", progress="done", real_ms=1_400_000),
            _throttle(3, verdict="cannot-finish", progress="stuck", real_ms=None),
        ],
        health=health,
    )


def _replica(row: Row) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row["follower"]


def _episode(random: Random) -> Row:
    left_ms = START_MS + random.randrange(SPAN_MS)
    out_ms = random.choice((500, 20_000, 200_000, 400_000))
    is_open = random.random() < 0.05
    back_ms = None if is_open else min(START_MS + SPAN_MS, left_ms + out_ms)
    return {
        "topic": random.choice(TOPICS),
        "partition": random.randrange(3),
        "follower": random.randrange(1, 4),
        "leader": random.randrange(1, 4),
        "leader_epoch": 2,
        "cause": random.choice(CAUSES),
        "began_at_ms": left_ms - random.randrange(1, 30_000),
        "left_at_ms": left_ms,
        "rejoined_at_ms": back_ms,
        "ending": "open" if is_open else "rejoined",
        "out_ms": (back_ms or START_MS + SPAN_MS) - left_ms,
        "kip501_would_hold": random.choice((None, True, False)),
        "lag_ms": random.randrange(40_000),
        "lag_messages": random.randrange(90_000),
        "lag_bytes": random.randrange(10**7),
        "lag_time_max_ms": 30_000,
        "under_min_isr_ms": random.choice((0, 0, 3_000)),
        "leader_changes": random.randrange(2),
        "flaps": random.randrange(1, 4),
    }


def _incidents(rows: list[Row]) -> list[Row]:
    """The episodes of a broker and a cause, whenever they were: five to a broker's incident."""
    incidents: list[Row] = []
    for key in sorted({(row["follower"], row["cause"]) for row in rows}):
        own = [row for row in rows if (row["follower"], row["cause"]) == key]
        own.sort(key=lambda row: row["began_at_ms"])
        incidents += [_incident(own[at : at + 5]) for at in range(0, len(own), 5)]
    return incidents


def _incident(own: list[Row]) -> Row:
    members: dict[str, set[int]] = {}
    for row in own:
        members.setdefault(row["topic"], set()).add(row["partition"])
    began_ms = min(row["began_at_ms"] for row in own)
    ended_ms = max(row["left_at_ms"] + row["out_ms"] for row in own)
    return {
        "broker": own[0]["follower"],
        "cause": own[0]["cause"],
        "began_at_ms": began_ms,
        "ended_at_ms": None if any(row["ending"] == "open" for row in own) else ended_ms,
        "duration_ms": ended_ms - began_ms,
        "partitions": sum(map(len, members.values())),
        "topics": len(members),
        "members": {topic: sorted(numbers) for topic, numbers in sorted(members.items())},
        "episodes": own,
        "episode_count": len(own),
    }


def _lag(random: Random) -> Row:
    series = []
    for name in (*(f"{topic}-0 on 2" for topic in TOPICS), "orders-1 on 3", "all others"):
        lag_ms, values = 0.0, []
        for _ in range(COLUMNS_MAX):
            lag_ms = lag_ms * 0.9 + (random.randrange(18_000) if random.random() < 0.02 else 40)
            values.append(int(lag_ms) if random.random() < 0.97 else None)
        series.append(
            {"name": name, "ms": values}
            | {
                unit: [None if value is None else value * factor for value in values]
                for unit, factor in (("messages", 12), ("bytes", 1_200))
            }
        )
    step_ms = SPAN_MS // COLUMNS_MAX
    return {
        "span_ms": (START_MS, START_MS + SPAN_MS),
        "at_ms": [START_MS + at * step_ms for at in range(COLUMNS_MAX)],
        "step_ms": step_ms,
        "series": series,
    }


def _what_if(at: int, policy: str, limit_ms: int) -> Row:
    falls = max(0, int((40 - 6 * at) * (1 - limit_ms / (12_000 + 9_000 * at))))
    is_none = policy == "messages" and limit_ms == LIMITS_MS[-1]
    return {
        "policy": policy,
        "half_period_check": False,
        "lag_max_messages": 4_000 if policy == "messages" else None,
        "lag_time_max_ms": limit_ms,
        "false_evictions": {"true-lag": 0, "messages": 22}.get(policy, falls),
        "detection_ms_p99": None if is_none else limit_ms * at // 50 + 30 * at,
        "flaps": 0,
        "under_min_isr_fetching_ms": 0,
        "below_resolution": limit_ms <= 1_000,
    }


def _seconds(broker: int, random: Random) -> Row:
    columns = range(40, 200)
    step_ms = SPAN_MS // COLUMNS_MAX
    return {
        "broker": broker,
        "side": "leader" if broker == 1 else "follower",
        "step_ms": step_ms,
        "at_ms": [START_MS + at * step_ms for at in columns],
        "limit": [10_000_000 if at < 120 else 25_000_000 for at in columns],
        "bytes": [
            (9_500_000 if at < 120 else 18_000_000) + random.randrange(10**6) for at in columns
        ],
        "bytes_in": [None if broker == 1 else 4_000_000 for _ in columns],
        "held": [9 if at < 125 and broker != 1 else 0 for at in columns],
    }


def _throttle(broker: int, **judged: Any) -> Row:
    estimated_ms = 1_300_000 if judged["verdict"] == "safe" else None
    return judged | {
        "broker": broker,
        "side": "follower",
        "limit_bytes_per_s": 10_000_000,
        "use": 0.97,
        "held_back_s": 790,
        "lag_bytes_first": 13_000_000_000,
        "estimated_ms": estimated_ms,
        "difference": "as estimated" if estimated_ms else "2 GB left to copy when the record ended",
    }


def _health(level: str, name: str, random: Random) -> Row:
    status, reason = random.choice(
        (
            ("critical", "1 still out of sync; lag up to 31.0 s"),
            ("warning", "2 leader changes"),
            ("ok", ""),
        )
    )
    return {
        "level": level,
        "name": name,
        "status": status,
        "reason": reason,
        "lag_ms_max": random.choice((None, random.randrange(30_000))),
        "episodes": random.randrange(9),
        "out_ms": random.randrange(400_000),
        "under_min_isr_ms": random.choice((0, 3_000)),
        "leader_changes": random.randrange(3),
    }
