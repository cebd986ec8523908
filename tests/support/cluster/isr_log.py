"""ISR changes in the brokers' logs: one line for each change, with its numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from insync.testing.cluster import Cluster

# Of the topics that tests write to: a cluster's own have ISRs too.
CHANGE = re.compile(r"\b(?!__)(\w\S*)-(\d+): ISR is now \S+: (.*)")
LEAVES = re.compile(r"(\d+) leaves \(\S+, limit \d+ ms(?:; (at once|\d+ ms after its deadline))?\)")
JOINS = re.compile(r"(\d+) joins .* lacks (\d+) messages")
CAUGHT_UP = re.compile(r"(\d+) joins [^;]* caught up (\d+) ms ago")
TIMESTAMP_CHARACTERS = len("2026-01-31 23:59:59,999")
STALLED = re.compile(r"\bbroker \d+: stalled (\d+) ms; eviction deadlines")


@dataclass(frozen=True, slots=True)
class Eviction:
    topic: str
    broker: int
    late_ms: int  # after its deadline


def log_of(cluster: Cluster, broker: int | None = None) -> str:
    chosen = [each for each in cluster.brokers.values() if broker in (None, each.broker)]
    return "".join(each.log.read_text() for each in chosen)


def evictions_of(cluster: Cluster, broker: int | None = None) -> list[Eviction]:
    """Followers evicted by their leader, from one broker's log or from all."""
    evictions = []
    for topic, _, why in CHANGE.findall(log_of(cluster, broker)):
        for follower, due in LEAVES.findall(why):
            late_ms = 0 if due in ("", "at once") else int(due.split()[0])
            evictions.append(Eviction(topic, int(follower), late_ms))
    return evictions


def joined(cluster: Cluster, follower: int, broker: int | None = None) -> list[int]:
    """How many messages it lacked, each time this broker joined."""
    changes = CHANGE.findall(log_of(cluster, broker))
    brokers = [each for _, _, why in changes for each in JOINS.findall(why)]
    return [int(lacks) for joining, lacks in brokers if int(joining) == follower]


def stalled_ms(cluster: Cluster, broker: int) -> list[int]:
    return [int(ms) for ms in STALLED.findall(log_of(cluster, broker))]


def logged_at_s(line: str) -> float:
    """When a broker wrote a line of its log, in seconds since the epoch."""
    return datetime.strptime(line[:TIMESTAMP_CHARACTERS], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def lines_of(cluster: Cluster, broker: int, *parts: str) -> list[str]:
    """The lines of a broker's log that have all of these in them."""
    lines = log_of(cluster, broker).splitlines()
    return [line for line in lines if all(part in line for part in parts)]


def caught_up_at_s(cluster: Cluster, follower: int, broker: int) -> list[float]:
    """The caught-up time of this follower in its leader's log, each time it joined."""
    return [
        logged_at_s(line) - int(ago_ms) / 1_000
        for line in lines_of(cluster, broker, ": ISR is now ")
        if CHANGE.search(line)
        for joining, ago_ms in CAUGHT_UP.findall(line)
        if int(joining) == follower
    ]
