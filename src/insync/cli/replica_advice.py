"""A broker that causes something, in one sentence: what it does, what comes next, what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from insync.cli.replica_causes import BrokerTrouble
from insync.cli.replica_words import Reason, count_text, duration
from insync.client.each_broker import DOES_NOT_RESPOND
from insync.client.replica_lag import FollowerRow

BROKERS_NAMED: Final = 5
OTHER_REASONS: Final = 2
LONG_HELD_BACK_MS: Final = 30_000
"""A throttled follower that has fetched nothing for so long may be cut off as well."""


def broker_data(trouble: BrokerTrouble) -> dict[str, Any]:
    return {
        "broker": trouble.broker,
        "state": trouble.state,
        "registered": trouble.is_registered,
        "responds": trouble.is_registered and trouble.silence is None,
        "stopped_fetching_ms": trouble.stopped_ms,
        "evicted_in_ms": trouble.evicted_in_ms,
        "replicas": trouble.replicas,
        "out_of_sync": trouble.out,
        "leads": trouble.leads,
        "text": broker_text(trouble),
    }


def broker_text(trouble: BrokerTrouble) -> str:
    return "; ".join(
        [
            f"broker {trouble.broker} {_what_it_does(trouble)}: {_extent(trouble)}",
            *_other_reasons(trouble),
            *_what_comes_next(trouble),
            f"do: {_what_to_do(trouble)}",
        ]
    )


def _what_it_does(trouble: BrokerTrouble) -> str:
    ago = None if trouble.stopped_ms is None else f"{duration(trouble.stopped_ms)} ago"
    if not trouble.is_registered:
        return "is down" if ago is None else f"is down, its latest fetch was {ago}"
    if trouble.silence is None:
        if trouble.worst is Reason.NOT_REPORTED and trouble.offline:
            return f"has {count_text(trouble.offline, 'offline replica')}"
        return DOES[trouble.worst](trouble.rows[trouble.worst])
    how = "" if trouble.silence == DOES_NOT_RESPOND else f" ({trouble.silence})"
    if trouble.fetched_ms is not None:
        latest = duration(trouble.fetched_ms)
        return f"does not respond to this command{how}, but fetched {latest} ago"
    return f"{'' if ago is None else f'stopped fetching {ago} and '}does not respond{how}"


def _extent(trouble: BrokerTrouble) -> str:
    out = f"out of {count_text(trouble.out, 'ISR')}" if trouble.out else "still in all its ISRs"
    leads = f"leads {trouble.leads:,}"
    if trouble.silence is not None and trouble.leads:
        leads += " (not responding)"
    waits = "waits" if trouble.leaderless == 1 else "wait"
    without = f", {count_text(trouble.leaderless, 'partition')} without leader {waits} for it"
    return f"{out}, {leads}{without if trouble.leaderless else ''}"


def _other_reasons(trouble: BrokerTrouble) -> list[str]:
    """What else it does, if it is not one cause for all."""
    if not trouble.is_registered or trouble.silence is not None:
        return []
    others = sorted(
        (each for each in trouble.rows if each is not trouble.worst),
        key=lambda each: -len(trouble.rows[each]),
    )
    texts = [f"{each.value} in {len(trouble.rows[each]):,}" for each in others[:OTHER_REASONS]]
    return [f"also {', '.join(texts)}"] if texts else []


def _what_comes_next(trouble: BrokerTrouble) -> list[str]:
    if trouble.evicted_in_ms is not None:
        elects = " and elects other leaders" if trouble.leads else ""
        when = f"in about {duration(trouble.evicted_in_ms)}" if trouble.evicted_in_ms else "now"
        return [f"the controller evicts it {when}{elects}"]
    if trouble.outlives_its_fetches:
        elected = ", and elects no other leaders" if trouble.leads else ""
        return [f"the controller does not evict it{elected}: its heartbeats seem to arrive"]
    leaves = [
        row.leaves_in_ms
        for rows in trouble.rows.values()
        for row in rows
        if row.leaves_in_ms is not None and row.follower == trouble.broker
    ]
    if leaves and trouble.is_registered:
        return [f"leaders remove it from ISRs in {duration(min(leaves))}"]
    return []


def _what_to_do(trouble: BrokerTrouble) -> str:
    if not trouble.is_registered:
        return "start it; if its process runs, check its host"
    if trouble.silence is not None:
        network = "" if trouble.fetched_ms is None else ", and the network from here to it"
        first = "its network, " if trouble.outlives_its_fetches else ""
        return f"check {first}its host and its process{network}"
    worst, rows = trouble.worst, trouble.rows[trouble.worst]
    if worst is Reason.LOG_DAMAGED and any(row.leader is None for row in rows):
        return _what_to_do_about_damage(trouble)
    if worst is Reason.NOT_REPORTED and trouble.offline:
        return "check its disk and its log"
    if worst is Reason.THROTTLED and _held_back_ms(rows) >= LONG_HELD_BACK_MS:
        return f"raise the throttle; if it fetches still nothing, {CHECK_NETWORK}".format(
            leaders=_leaders(rows)
        )
    return DO.get(worst, "wait").format(leaders=_leaders(rows))


def _what_to_do_about_damage(trouble: BrokerTrouble) -> str:
    """Of partitions that have no leader to copy from."""
    if trouble.others:  # to elect a damaged replica now would lose what they have
        return f"start or repair {_names(trouble.others)}: it then copies the log from there"
    return (
        "restore its files; only if you cannot, insync topics --elect-damaged, "
        "which loses the records that are missing"
    )


CHECK_NETWORK: Final = "check the network between it and {leaders}"
DO: Final = {
    Reason.LOG_DAMAGED: "wait: it copies the log from the leader",
    Reason.LOG_FAILED: "check its disk and its log, then restart it",
    Reason.NOT_REPORTED: "wait; if it stays, check its disk and its log",
    Reason.STOPPED_FETCHING: CHECK_NETWORK,
    Reason.NEVER_FETCHED: f"wait; if it stays, {CHECK_NETWORK}",
    Reason.PENDING_READ: "check its disk",
    Reason.FALLING_BACK: "check its disk and network, or reduce the load",
    Reason.BEHIND: "check its disk and network, or reduce the load",
    Reason.THROTTLED: "wait, or raise the throttle",
}

Rows = Sequence[FollowerRow]


def _offline_log(rows: Rows) -> str:
    seen = rows[0].offline
    assert seen is not None, "its reason says so"
    kind = "damaged log" if seen.is_damaged else "failed log"
    return f"has {count_text(len(rows), kind)} ({seen.reason})"


def _stopped(rows: Rows) -> str:
    silences = [row.silent_ms for row in rows if row.silent_ms is not None and row.is_silent]
    if not silences:
        return f"has not fetched from {_leaders(rows)} yet"
    return f"responds, but stopped fetching {duration(min(silences))} ago, from {_leaders(rows)}"


def _slow_reads(rows: Rows) -> str:
    oldest = duration(max(row.oldest_read_ms or 0 for row in rows))
    waiting = count_text(len(rows), "replica")
    return f"reads slowly: fetches of {waiting} wait for its disk, the oldest for {oldest}"


def _behind(rows: Rows) -> str:
    lags_ms = [row.lag_ms for row in rows if row.lag_ms is not None]
    if not lags_ms:
        return "is behind"
    sign = "~" if any(row.lag_is_estimated for row in rows) else ""
    sign = ">" if any(row.lag_is_at_least for row in rows) else sign
    return f"is {sign}{duration(max(lags_ms))} behind"


def _time_left(rows: Rows) -> str:
    left_ms = max(row.catches_up_in_ms or 0 for row in rows)
    return f", {duration(left_ms)} left" if left_ms else ""


def _throttled(rows: Rows) -> str:
    held_back_ms = _held_back_ms(rows)
    if held_back_ms >= LONG_HELD_BACK_MS:
        return f"is throttled, its latest fetch was {duration(held_back_ms)} ago"
    return f"catches up, throttled{_time_left(rows)}"


def _held_back_ms(rows: Rows) -> int:
    """Since its latest fetch, if there was one."""
    return min((row.silent_ms for row in rows if row.silent_ms is not None), default=0)


DOES: Final[Mapping[Reason, Callable[[Rows], str]]] = {
    Reason.LOG_DAMAGED: _offline_log,
    Reason.LOG_FAILED: _offline_log,
    Reason.BROKER_DOWN: lambda _: "is registered, but its leaders do not see that yet",
    Reason.NOT_REPORTED: lambda rows: f"does not report {count_text(len(rows), 'replica')}",
    Reason.FORMER_INCARNATION: lambda rows: (
        f"restarted, and has not fetched {count_text(len(rows), 'partition')} since"
    ),
    Reason.NEVER_FETCHED: _stopped,
    Reason.STOPPED_FETCHING: _stopped,
    Reason.PENDING_READ: _slow_reads,
    Reason.FALLING_BACK: lambda rows: f"{_behind(rows)} and falling back",
    Reason.BEHIND: _behind,
    Reason.THROTTLED: _throttled,
    Reason.CATCHING_UP: lambda rows: f"catches up{_time_left(rows)}",
    Reason.LEAVING: lambda _: "is leaving",
    Reason.BELOW_EPOCH_START: lambda _: "is below the epoch's start",
    Reason.BELOW_WATERMARK: lambda _: "is below the watermark",
    Reason.CAUGHT_UP_OUTSIDE: lambda _: "is caught up, but out of sync",
    Reason.JOINS_NEXT: lambda _: "joins with its next fetch",
    Reason.JOINING: lambda _: "is joining",
    # Its leaders restarted or changed between two responses.
    Reason.LEADER_SILENT: lambda _: "led and did not respond",
}


def _leaders(rows: Iterable[FollowerRow]) -> str:
    return _names({row.leader for row in rows if row.leader is not None})


def _names(brokers: Collection[int]) -> str:
    names = ", ".join(map(str, sorted(brokers)[:BROKERS_NAMED]))
    more = f" and {len(brokers) - BROKERS_NAMED} more" if len(brokers) > BROKERS_NAMED else ""
    return f"broker{'' if len(brokers) == 1 else 's'} {names}{more}"
