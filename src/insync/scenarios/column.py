"""One partition under one policy: a column of a membership scenario.

A column's name is a policy, then what it does differently, after slashes:

    half-period         looks for laggards every T/2 only, as Apache Kafka does
    joins-at-watermark  lets a follower in that has reached the watermark, whatever its lag
    no-epoch-start      lets a follower in that is below the start of the leader's epoch
    no-stall-rule       counts the leader's stalls as its followers' lag, as Apache Kafka does
    resigns             applies `process-time-max-ms`: KIP-501's second solution
    includes-stalls     counts the leader's stalls towards that time

A driver of the leader's state machine (`rules.leader_machine`). Here the store commits every
proposal at once, and every read of the leader's log is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from insync.rules import election, resignation
from insync.rules.isr import Expanding, IsrChange, Shrinking, proposed
from insync.rules.leader_machine import (
    Appended,
    BrokersChanged,
    Committed,
    ConnectionClosed,
    Event,
    IsrSettled,
    LeaderStalled,
    PartitionStateRead,
    ProposeIsr,
    ReadFailed,
    ReadServed,
    ReadStarted,
    Resign,
    SocketsDrained,
    WakeAt,
    Woken,
    start,
    step,
)
from insync.rules.leadership import NO_WAKE_MS, Draining, Leadership, Rule
from insync.rules.membership import Obstacle
from insync.rules.partition_state import PartitionState
from insync.rules.settings import InSyncSettings, in_sync_rule
from insync.rules.stalls import Stall
from insync.rules.values import (
    FIRST_OFFSET,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
)
from insync.scenarios.text import BadScenario, Scenario
from insync.scenarios.timeline import Cell, CellPart, Mood

VARIANTS: Final = frozenset(
    {
        "half-period",
        "includes-stalls",
        "joins-at-watermark",
        "no-epoch-start",
        "no-stall-rule",
        "resigns",
    }
)
IGNORED_BY: Final[Mapping[str, Obstacle]] = {
    "joins-at-watermark": Obstacle.LAGGING,
    "no-epoch-start": Obstacle.BELOW_EPOCH_START,
}


class Column:
    """Events come in by their scenario verbs; `cell` tells how things stand."""

    def __init__(self, name: str, scenario: Scenario) -> None:
        policy_name, *variants = name.split("/")
        unknown = sorted(set(variants) - VARIANTS)
        if unknown:
            known = ", ".join(sorted(VARIANTS))
            raise BadScenario(f"column {name}: no variant {unknown[0]!r}; there are {known}")
        self.name = name
        self.variants = frozenset(variants)
        self.resign_cooldown_ms = scenario.number(
            "resign-cooldown-ms", resignation.COOLDOWN_MS_DEFAULT
        )
        fetch_wait_max_ms = scenario.number("fetch-wait-max-ms", 500)
        policy = in_sync_rule(
            InSyncSettings(
                replica_in_sync_policy=policy_name,
                replica_lag_time_max_ms=scenario.number("lag-time-max-ms", 30_000),
                replica_lag_max_messages=scenario.number("lag-max-messages", 4_000),
                replica_fetch_wait_max_ms=fetch_wait_max_ms,
            )
        ).policy
        process_time_max_ms = scenario.number("process-time-max-ms", 500)
        self.rule = Rule(
            policy=policy,
            fetch_wait_max_ms=fetch_wait_max_ms,
            process_time_max_ms=process_time_max_ms if "resigns" in variants else None,
            process_time_includes_stalls="includes-stalls" in variants,
            checks_from_ms=0 if "half-period" in variants else None,
            ignored_obstacles=frozenset(
                IGNORED_BY[variant] for variant in variants if variant in IGNORED_BY
            ),
        )
        replicas = _brokers(scenario.setting("replicas"))
        isr = _brokers(scenario.setting("isr", scenario.setting("replicas")))
        if not set(isr) <= set(replicas):
            raise BadScenario(f"{scenario.name}: isr lists a broker that replicas does not")
        self.state = PartitionState(
            replicas=replicas, isr=isr, leader=isr[0], leader_epoch=LeaderEpoch(0)
        )
        self.lives = dict.fromkeys(replicas, 1)
        self.registered = {broker: Incarnation(1) for broker in replicas}
        self.log_ends = dict.fromkeys(replicas, FIRST_OFFSET)
        self.known_watermarks = dict.fromkeys(replicas, FIRST_OFFSET)
        self.session_fetched_at_ms: dict[BrokerId, int] = {}
        self.reads: dict[BrokerId, Offset] = {}  # the leader's end when each read began
        self.cooling = resignation.Cooldowns()
        self.ends: list[tuple[int, Offset]] = []  # the leader's end after each append
        self.acknowledged = FIRST_OFFSET
        self.lost = 0
        self.now_ms = 0
        self.decisions: list[CellPart] = []
        self.term: Leadership | None = None
        self._begin_term()

    # What happened.

    def append(self, count: int, *, now_ms: int) -> None:
        self.now_ms = now_ms
        if self.term is None:
            self._decide("no leader: refused", Mood.BAD)
            return
        self._report(Appended(Offset(self.term.end + count)))
        if self.term is not None:
            self.log_ends[self.term.leader] = self.term.end
            self.ends.append((now_ms, self.term.end))

    def read_began(self, broker: BrokerId, offset: Offset, *, now_ms: int) -> None:
        self.now_ms = now_ms
        if self.term is None or broker == self.term.leader:
            return  # traffic is the same in every column; in this one the broker does not follow
        self.reads[broker] = self.term.end
        self._report(
            ReadStarted(
                follower=broker,
                read_id=broker,
                connection=broker,
                # A follower past its leader's end truncates its log first (KIP-101).
                offset=Offset(min(offset, self.term.end)),
                parsed_at_ms=now_ms,
            )
        )

    def read_served(self, broker: BrokerId, *, now_ms: int) -> None:
        self.now_ms = now_ms
        leader_end = self.reads.pop(broker, None)
        if self.term is None or leader_end is None:
            return
        # An answer carries the watermark from before the fetch it answers.
        self.known_watermarks[broker] = self.term.high_watermark
        self._report(
            ReadServed(
                follower=broker,
                read_id=broker,
                leader_end=leader_end,
                incarnation=self.registered[broker],
            )
        )
        if broker in self.term.followers:  # else the leader has just handed over to it
            self.log_ends[broker] = self.term.followers[broker].end

    def read_failed(self, broker: BrokerId, *, now_ms: int) -> None:
        self.now_ms = now_ms
        if self.reads.pop(broker, None) is not None:
            self._report(ReadFailed(broker, broker))

    def disconnected(self, broker: BrokerId, *, now_ms: int) -> None:
        self.now_ms = now_ms
        if self.reads.pop(broker, None) is not None:
            self._report(ConnectionClosed(broker, broker))

    def session_fetched(self, broker: BrokerId, *, now_ms: int) -> None:
        self.session_fetched_at_ms[broker] = now_ms

    def stalled(self, stall: Stall) -> None:
        self.now_ms = stall.ended_at_ms
        if "no-stall-rule" not in self.variants:
            self._report(LeaderStalled(stall))

    def drained(self, *, now_ms: int) -> None:
        self.now_ms = now_ms
        if "no-stall-rule" not in self.variants:
            self._report(SocketsDrained())

    def killed(self, broker: BrokerId, *, now_ms: int) -> None:
        self.now_ms = now_ms
        self.registered.pop(broker, None)
        self.reads.pop(broker, None)
        self._change_state(election.broker_gone(self.state, broker, live=self._live))

    def restarted(self, broker: BrokerId, *, now_ms: int) -> None:
        """The broker returns as a new incarnation; its old one, if still registered, has ended."""
        self.now_ms = now_ms
        self.lives[broker] += 1
        self.reads.pop(broker, None)
        was_live = broker in self.registered
        self.registered[broker] = Incarnation(self.lives[broker])
        self._change_state(
            election.broker_gone(self.state, broker, live=self._live)
            if was_live
            else election.elect(self.state, live=self._live)
        )

    # What time alone does.

    def next_decision_ms(self) -> int | None:
        """When the leader wants to be woken, if nothing more happens."""
        if self.term is None or self.term.draining is not Draining.NO:
            return None
        return None if self.term.wake_at_ms == NO_WAKE_MS else self.term.wake_at_ms

    def wake(self, *, now_ms: int) -> None:
        """Do what is due at this moment, and what that makes due at once."""
        self.now_ms = now_ms
        while True:
            due_ms = self.next_decision_ms()
            if due_ms is None or due_ms > now_ms:
                return
            self._report(Woken())

    def _report(self, event: Event) -> None:
        if self.term is None:
            return
        self.term, effects = step(
            self.term,
            event,
            now_ms=self.now_ms,
            session_fetched_at_ms=self.session_fetched_at_ms,
        )
        for effect in effects:
            match effect:
                case ProposeIsr(change):
                    self._commit(change)
                case Resign():
                    self._resign()
                case Committed() | IsrSettled() | WakeAt():
                    pass  # seen in the state

    def _commit(self, change: IsrChange) -> None:
        """The store takes every proposal at once."""
        members = proposed(change)
        isr = tuple(broker for broker in self.state.replicas if broker in members)
        self.state = replace(self.state, isr=isr)
        self._report(PartitionStateRead(change.version + 1, self.state.replicas, members))
        match change:
            case Expanding(joining=broker):
                self._decide(f"{broker} joins", Mood.GOOD)
            case Shrinking(leaving=leaving):
                for broker in self.state.replicas:
                    if broker in leaving:
                        self._decide(f"{broker} leaves", Mood.BAD)

    def _resign(self) -> None:
        """As the controller grants it, if another replica can lead."""
        cooling = self.cooling.brokers(now_ms=self.now_ms)
        state = resignation.resign(self.state, live=self._live, cooling=cooling)
        if state is None or self.term is None:
            return
        leader = self.term.leader
        self._decide(f"{leader} resigns", Mood.BAD)
        self.cooling = self.cooling.after(
            leader, now_ms=self.now_ms, cooldown_ms=self.resign_cooldown_ms
        )
        self._change_state(state)

    # How things stand.

    def values(self) -> dict[str, object]:
        term = self.term
        return {
            "leader": self.state.leader,
            "isr": sorted(self.state.isr),
            "hw": None if term is None else term.high_watermark,
            "end": None if term is None else term.end,
            "acknowledged": self.acknowledged,
            "lost": self.lost,
        }

    def cell(self) -> Cell:
        values = self.values()
        parts = [self._replica_part(broker) for broker in self.state.replicas]
        parts.append(CellPart("no leader" if self.term is None else f"hw {values['hw']}"))
        if self.lost:
            parts.append(CellPart(f"lost {self.lost}", Mood.BAD))
        decisions, self.decisions = self.decisions, []
        return Cell(
            parts=(*parts, *(CellPart(f"[{part.text}]", part.mood) for part in decisions)),
            values=values,
            decisions=tuple(part.text for part in decisions),
        )

    def end_ago(self, ago_ms: int, *, now_ms: int) -> Offset:
        """Where the leader's end was; after a change of leader, no further than it is now."""
        then = [end for at_ms, end in self.ends if at_ms <= now_ms - ago_ms]
        end_now = FIRST_OFFSET if self.term is None else self.term.end
        return Offset(min(then[-1] if then else FIRST_OFFSET, end_now))

    def read_so_far(self, broker: BrokerId) -> Offset:
        """All that the previous fetch of this broker could have been answered with."""
        follower = None if self.term is None else self.term.followers.get(broker)
        if follower is None or follower.leader_end_at_fetch is None:
            return self.log_ends[broker]
        return follower.leader_end_at_fetch

    def deadline_ms(self, broker: BrokerId) -> int | None:
        """When this member leaves if nothing more happens."""
        if self.term is None:
            return None
        due_ms = self.term.deadlines(self.session_fetched_at_ms).get(broker)
        return None if due_ms is None else self.term.noticed_at_ms(due_ms, now_ms=self.now_ms)

    @property
    def _live(self) -> frozenset[BrokerId]:
        return frozenset(self.registered)

    def acknowledge(self) -> None:
        """Producers with acks=all hear of everything below the watermark."""
        if self.term is not None:
            self.acknowledged = Offset(max(self.acknowledged, self.term.high_watermark))

    def _begin_term(self) -> None:
        leader = self.state.leader
        self.term = None
        if leader is None:
            return
        end = self.log_ends[leader]
        self.lost += max(0, self.acknowledged - end)
        self.acknowledged = Offset(min(self.acknowledged, end))
        self.reads.clear()
        self.term, _ = start(
            Leadership.begin(
                rule=self.rule,
                leader=leader,
                epoch=self.state.leader_epoch,
                replicas=self.state.replicas,
                members=frozenset(self.state.isr),
                end=end,
                high_watermark=Offset(min(end, self.known_watermarks[leader])),
                registered=dict(self.registered),
                now_ms=self.now_ms,
            ),
            now_ms=self.now_ms,
        )

    def _change_state(self, state: PartitionState) -> None:
        is_new_term = state.leader_epoch != self.state.leader_epoch
        self.state = state
        if is_new_term:
            self._begin_term()
            self._decide("no leader" if state.leader is None else f"{state.leader} leads")
        elif self.term is not None:
            self._report(BrokersChanged(dict(self.registered)))
            version = self.term.isr.version + 1
            self._report(PartitionStateRead(version, state.replicas, frozenset(state.isr)))

    def _replica_part(self, broker: BrokerId) -> CellPart:
        if broker == self.state.leader:
            return CellPart(f"*{broker}", Mood.GOOD)
        is_member = broker in self.state.isr
        return CellPart(
            f"+{broker}" if is_member else f"-{broker}", Mood.GOOD if is_member else Mood.BAD
        )

    def _decide(self, text: str, mood: Mood = Mood.PLAIN) -> None:
        self.decisions.append(CellPart(text, mood))


def _brokers(text: str) -> tuple[BrokerId, ...]:
    words = text.split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise BadScenario(f"{text!r} is not a list of broker ids, as in '1 2 3'")
    return tuple(BrokerId(int(word)) for word in words)
