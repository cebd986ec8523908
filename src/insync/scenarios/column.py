"""One partition's life under one policy: a column of a membership scenario.

A column's name is a policy, then what it does differently, after slashes:

    half-period         looks for laggards every T/2 only, as Apache Kafka does
    joins-at-watermark  lets in whoever has reached the watermark, however much it lags
    no-epoch-start      does not ask for the start of the leader's epoch
    no-stall-rule       holds its own stalls against its followers, as Apache Kafka does
    resigns             applies `process-time-max-ms`: KIP-501's second solution

The store answers at once and every read of the leader's log is whole; all else is the rules'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from insync.rules import election, resignation
from insync.rules.isr import committed
from insync.rules.leadership import Leadership
from insync.rules.membership import Obstacle
from insync.rules.partition_state import PartitionState
from insync.rules.policy import half_period_check_at_ms
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
from insync.scenarios.timeline import Cell, Mood, Part

VARIANTS: Final = frozenset(
    {"half-period", "joins-at-watermark", "no-epoch-start", "no-stall-rule", "resigns"}
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
        self.fetch_wait_max_ms = scenario.number("fetch-wait-max-ms", 500)
        self.process_time_max_ms = scenario.number("process-time-max-ms", 500)
        self.resign_cooldown_ms = scenario.number(
            "resign-cooldown-ms", resignation.COOLDOWN_MS_DEFAULT
        )
        self.policy = in_sync_rule(
            InSyncSettings(
                replica_in_sync_policy=policy_name,
                replica_lag_time_max_ms=scenario.number("lag-time-max-ms", 30_000),
                replica_lag_max_messages=scenario.number("lag-max-messages", 4_000),
                replica_fetch_wait_max_ms=self.fetch_wait_max_ms,
            )
        ).policy
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
        self.cooling = resignation.Cooling()
        self.ends: list[tuple[int, Offset]] = []  # the leader's end after each append
        self.acknowledged = FIRST_OFFSET
        self.lost = 0
        self.is_stalled = False
        self.looked_at_ms = -1
        self.decisions: list[Part] = []
        self.term: Leadership | None = self._begin_term(now_ms=0)

    # What happened.

    def append(self, count: int, *, now_ms: int) -> None:
        if self.term is None:
            self._decide("nobody leads: refused", Mood.BAD)
            return
        self.term = self.term.append(
            end=Offset(self.term.end + count),
            now_ms=now_ms,
            session_fetched_at_ms=self.session_fetched_at_ms,
        )
        self.log_ends[self.term.leader] = self.term.end
        self.ends.append((now_ms, self.term.end))

    def read_began(self, broker: BrokerId, offset: Offset, *, now_ms: int) -> None:
        if self.term is None or broker == self.term.leader:
            return  # traffic is taken as given; here this broker is not a follower
        self.reads[broker] = self.term.end
        self.term = self.term.read_began(
            broker,
            read_id=broker,
            connection=broker,
            # A follower past its leader's end cuts its log first (KIP-101).
            offset=Offset(min(offset, self.term.end)),
            parsed_at_ms=now_ms,
        )

    def read_served(self, broker: BrokerId, *, now_ms: int) -> None:
        leader_end = self.reads.pop(broker, None)
        if self.term is None or leader_end is None:
            return
        # An answer carries the watermark from before the fetch it answers.
        self.known_watermarks[broker] = self.term.high_watermark
        self.term = self.term.read_served(
            broker,
            read_id=broker,
            leader_end=leader_end,
            served_at_ms=now_ms,
            incarnation=self.registered[broker],
        )
        self.log_ends[broker] = self.term.followers[broker].end
        self._maybe_join(broker, now_ms=now_ms)

    def read_failed(self, broker: BrokerId) -> None:
        if self.reads.pop(broker, None) is not None and self.term is not None:
            self.term = self.term.read_failed(broker, read_id=broker)

    def disconnected(self, broker: BrokerId) -> None:
        if self.reads.pop(broker, None) is not None and self.term is not None:
            self.term = self.term.connection_closed(broker, connection=broker)

    def session_fetched(self, broker: BrokerId, *, now_ms: int) -> None:
        self.session_fetched_at_ms[broker] = now_ms

    def stalled(self, stall: Stall) -> None:
        self.is_stalled = True
        if self.term is not None and "no-stall-rule" not in self.variants:
            self.term = self.term.stalled(stall, session_fetched_at_ms=self.session_fetched_at_ms)

    def resumed(self) -> None:
        """Without the stall rule a leader that runs again first looks at its clocks."""
        self.is_stalled = "no-stall-rule" not in self.variants

    def drained(self, *, now_ms: int) -> None:
        self.is_stalled = False
        if self.term is not None:
            self.term = self.term.drained(now_ms=now_ms)

    def killed(self, broker: BrokerId, *, now_ms: int) -> None:
        self.registered.pop(broker, None)
        self.reads.pop(broker, None)
        self._change_state(election.broker_gone(self.state, broker, live=self._live), now_ms=now_ms)

    def restarted(self, broker: BrokerId, *, now_ms: int) -> None:
        """It returns as a new incarnation; one that was still taken for alive has ended."""
        self.lives[broker] += 1
        self.reads.pop(broker, None)
        was_live = broker in self.registered
        self.registered[broker] = Incarnation(self.lives[broker])
        returned = (
            election.broker_gone(self.state, broker, live=self._live)
            if was_live
            else election.elect(self.state, live=self._live)
        )
        self._change_state(returned, now_ms=now_ms)

    # What time alone does.

    def next_decision_ms(self, *, now_ms: int) -> int | None:
        """When this column does something of its own accord if nothing more happens."""
        if self.term is None or self.is_stalled:
            return None
        due_at_ms = self.term.next_deadline_ms(
            now_ms=now_ms, session_fetched_at_ms=self.session_fetched_at_ms
        )
        moments = [None if due_at_ms is None else self._look_at_ms(max(now_ms, due_at_ms))]
        if "resigns" in self.variants and self._heir_state(now_ms) is not None:
            moments.append(
                resignation.resigns_at_ms(
                    self.term.followers.values(), process_time_max_ms=self.process_time_max_ms
                )
            )
        return min((moment for moment in moments if moment is not None), default=None)

    def decide(self, *, now_ms: int) -> None:
        """Do what is due at this moment."""
        if self.term is None or self.is_stalled:
            return
        if "resigns" in self.variants:
            self._maybe_resign(self.term, now_ms=now_ms)
        leaving = self.term.leaving(now_ms=now_ms, session_fetched_at_ms=self.session_fetched_at_ms)
        if leaving and self._look_at_ms(now_ms) == now_ms:
            self.looked_at_ms = now_ms
            remaining = committed(self.term.isr) - set(leaving)
            self.term = self.term.propose_leave(frozenset(leaving)).settle(remaining, now_ms=now_ms)
            self._store_isr()
            for broker in leaving:
                self._decide(f"{broker} leaves", Mood.BAD)
        self.term = self.term.with_watermark(now_ms=now_ms)
        self._acknowledge()

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
        parts.append(Part("no leader" if self.term is None else f"hw {values['hw']}"))
        if self.lost:
            parts.append(Part(f"lost {self.lost}", Mood.BAD))
        decisions, self.decisions = self.decisions, []
        return Cell(
            parts=(*parts, *(Part(f"[{part.text}]", part.mood) for part in decisions)),
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
        due_at_ms = self.term.deadlines(self.session_fetched_at_ms).get(broker)
        return None if due_at_ms is None else self._look_at_ms(due_at_ms)

    @property
    def _live(self) -> frozenset[BrokerId]:
        return frozenset(self.registered)

    def _acknowledge(self) -> None:
        """Producers with acks=all were told of everything below the watermark."""
        if self.term is not None:
            self.acknowledged = Offset(max(self.acknowledged, self.term.high_watermark))

    def _begin_term(self, *, now_ms: int) -> Leadership | None:
        leader = self.state.leader
        if leader is None:
            return None
        end = self.log_ends[leader]
        self.lost += max(0, self.acknowledged - end)
        self.acknowledged = Offset(min(self.acknowledged, end))
        self.reads.clear()
        return Leadership.begin(
            policy=self.policy,
            fetch_wait_max_ms=self.fetch_wait_max_ms,
            leader=leader,
            epoch=self.state.leader_epoch,
            replicas=self.state.replicas,
            members=frozenset(self.state.isr),
            end=end,
            high_watermark=Offset(min(end, self.known_watermarks[leader])),
            registered=dict(self.registered),
            now_ms=now_ms,
        )

    def _change_state(self, state: PartitionState, *, now_ms: int) -> None:
        is_new_term = state.leader_epoch != self.state.leader_epoch
        self.state = state
        if is_new_term:
            self.term = self._begin_term(now_ms=now_ms)
            who = "nobody" if state.leader is None else str(state.leader)
            self._decide(f"{who} leads", Mood.PLAIN)
        elif self.term is not None:
            self.term = self.term.registration(dict(self.registered), now_ms=now_ms).settle(
                frozenset(state.isr), now_ms=now_ms
            )

    def _maybe_join(self, broker: BrokerId, *, now_ms: int) -> None:
        assert self.term is not None, "a fetch was just served"
        if broker in committed(self.term.isr):
            return
        ignored = {IGNORED_BY[variant] for variant in self.variants if variant in IGNORED_BY}
        if set(self.term.obstacles(broker, now_ms=now_ms)) - ignored:
            return
        members = committed(self.term.isr) | {broker}
        self.term = self.term.propose_join(broker).settle(members, now_ms=now_ms)
        self._store_isr()
        self._decide(f"{broker} joins", Mood.GOOD)

    def _maybe_resign(self, term: Leadership, *, now_ms: int) -> None:
        resigns_at_ms = resignation.resigns_at_ms(
            term.followers.values(), process_time_max_ms=self.process_time_max_ms
        )
        heir_state = self._heir_state(now_ms)
        if heir_state is None or resigns_at_ms is None or resigns_at_ms > now_ms:
            return
        self._decide(f"{term.leader} resigns", Mood.BAD)
        self.cooling = self.cooling.after(
            term.leader, now_ms=now_ms, cooldown_ms=self.resign_cooldown_ms
        )
        self._change_state(heir_state, now_ms=now_ms)

    def _heir_state(self, now_ms: int) -> PartitionState | None:
        cooling = self.cooling.brokers(now_ms=now_ms)
        return resignation.resign(self.state, live=self._live, cooling=cooling)

    def _look_at_ms(self, due_at_ms: int) -> int:
        """When this column notices what is due: at once, or at its next look."""
        if "half-period" not in self.variants:
            return due_at_ms
        return half_period_check_at_ms(
            max(due_at_ms, self.looked_at_ms + 1),
            lag_time_max_ms=self.policy.lag_time_max_ms,
            first_check_at_ms=0,
        )

    def _store_isr(self) -> None:
        assert self.term is not None, "only a leader changes the ISR"
        members = committed(self.term.isr)
        isr = tuple(broker for broker in self.state.replicas if broker in members)
        self.state = replace(self.state, isr=isr)

    def _replica_part(self, broker: BrokerId) -> Part:
        if broker == self.state.leader:
            return Part(f"*{broker}", Mood.GOOD)
        is_member = broker in self.state.isr
        return Part(
            f"+{broker}" if is_member else f"-{broker}", Mood.GOOD if is_member else Mood.BAD
        )

    def _decide(self, text: str, mood: Mood) -> None:
        self.decisions.append(Part(text, mood))


def _brokers(text: str) -> tuple[BrokerId, ...]:
    words = text.split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise BadScenario(f"{text!r} is not a list of broker ids, as in '1 2 3'")
    return tuple(BrokerId(int(word)) for word in words)
