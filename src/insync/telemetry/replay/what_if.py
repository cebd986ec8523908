"""What-if by the rules themselves: one partition, one scenario, one event after the other.

This is the definition that the compiled replay (`insync.pipeline.replay`) is held to, so it is
written to be read. `histories` decides what was recorded. What the design leaves open about a
replay is decided here:

- **Verdicts are not replayed.** A change of the ISR after the first, also a controller's, is a
  verdict: a broker that died leaves when its policy says so.
- **Moved away.** That a replica was removed is no verdict. With the epoch that this began the
  replica is gone: without leaving, its episode closed as the record's end closes it, not known
  until it fetches or leads again.
- **An epoch** begins at the leader's end offset of its first event; the watermark begins there too.
  After its last event, until the next epoch begins, a replica that is out stays out, and that time
  counts; nothing is missed in it.
- **Leadership.** The leader is in sync. The episode of a new leader that was out closes as the
  record's end closes it: not returned, no flap, false if the true lag had not passed T.
- **Not seen before.** A replica outside from the start is out since its first fetch.
- **Truth** leaves the leader's stalls out as the rules do: a stall moves earlier appends forward by
  its length, none past its end, and its own time is not looked at. Other durations are as recorded.
- **Kept fetching** (for the recommendation): at no time of the episode, nor when it began, was the
  last fetch more than T ago.
- **Half-period check**: the first check is at the epoch's first event; a check evicts every
  follower that is late.
- **Min ISR** is the one recorded; `min_insync_replicas` is used in its place if it is set.
- **A stall of acks=all** lasts while the watermark stands still below the leader's end; a follower
  that catches up or leaves ends it, and so does its epoch. `watermark_stall_ms` knows those that an
  eviction ended. `acks_all_stall_ms` has all that are longer than the record resolves, two fetch
  waits; shorter ones are what replication takes.
- **Catching up** (`catch_up_ms`): from an evicted follower's first fetch to its return, or to the
  end of its episode.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from insync.rules.follower import Fetch
from insync.rules.isr import Expanding, IsrChange
from insync.rules.leader_machine import (
    Appended,
    FollowerFetched,
    LeaderStalled,
    PartitionStateRead,
    ProposeIsr,
    ReadFailed,
    ReadServed,
    ReadStarted,
    SocketsDrained,
    Woken,
    start,
    step,
)
from insync.rules.leader_machine import Event as StateEvent
from insync.rules.leadership import Leadership, Rule
from insync.rules.policy import Policy
from insync.rules.stalls import Stall, is_stall
from insync.rules.values import NEVER_MS, BrokerId, Incarnation, LeaderEpoch, Offset
from insync.telemetry.replay.histories import (
    APPEND,
    BEGAN,
    LATER_THAN_ANY,
    Epoch,
    Event,
    History,
    Minimums,
    Row,
    Rows,
    is_ok,
    leader_end,
)
from insync.telemetry.replay.scenario import Scenario

REPLAYED_INCARNATION: Final = Incarnation(
    0
)  # the tables tell only of fetches of living incarnations


@dataclass(slots=True)
class Verdicts:
    """One partition under one scenario."""

    shrinks: int = 0
    expands: int = 0
    flaps: int = 0
    out_of_sync_ms: int = 0
    false_evictions: int = 0
    missed: int = 0
    missed_ms: int = 0
    under_min_isr_ms: int = 0
    under_min_isr_fetching_ms: int = 0
    watermark_stall_ms: int = 0
    catch_up_ms: int = 0
    acks_all_stall_ms: int = 0
    acks_all_stall_ms_max: int = 0
    detection_ms: list[int] = field(default_factory=list)


def replay(
    history: History,
    scenario: Scenario,
    *,
    min_insync_replicas: int | None,
    fetch_wait_max_ms: int,
) -> Verdicts:
    """`min_insync_replicas` None: as it was recorded."""
    partition = _Partition(history, scenario, min_insync_replicas)
    for index, epoch in enumerate(history.epochs):
        following = history.epochs[index + 1 : index + 2]
        _Term(partition, epoch, history.stalls, fetch_wait_max_ms).run()
        partition.time_passes(max([epoch.ends_at_ms, *(later.begins_at_ms for later in following)]))
    partition.end_of_record()
    return partition.verdicts


@dataclass(slots=True)
class _Episode:
    """One follower out of sync."""

    since_ms: int
    was_evicted: bool  # else it never was in
    detection_ms: int = 0
    has_passed: bool = False  # the true lag was above T at some time of it
    keeps_fetching: bool = False
    under_min_isr_ms: int = 0
    back_since_ms: int | None = None  # its first fetch since it was evicted


class _Partition:
    """What goes on from epoch to epoch: who is in, who is out since when, and the counts."""

    def __init__(
        self, history: History, scenario: Scenario, min_insync_replicas: int | None
    ) -> None:
        self.policy: Policy = scenario.rule()
        self.scenario = scenario
        self.replicas = history.replicas
        self.members = set(history.in_sync_at_start)
        self.gone: set[int] = set()
        self.episodes: dict[int, _Episode] = {}
        self.fetched_at_ms: dict[int, int] = {}
        self.verdicts = Verdicts()
        self.now_ms = history.epochs[0].begins_at_ms
        self._moves = set(history.moved_away)  # those yet to come
        self._asked = None if min_insync_replicas is None else [(NEVER_MS, min_insync_replicas)]
        self._minimums: Minimums = []

    @property
    def limit_ms(self) -> int:
        return self.scenario.lag_time_max_ms

    def begin(self, epoch: Epoch) -> None:
        self.now_ms = epoch.begins_at_ms
        self._minimums = self._asked or epoch.minimums
        begun = {move for move in self._moves if move[0] <= epoch.number}
        self._moves -= begun
        for _, broker in begun:
            self._remove_replica(broker)
        self.gone.discard(epoch.leader)
        if epoch.leader not in self.members:
            self.members.add(epoch.leader)
            self._close(epoch.leader, returned_at_ms=None)

    def _remove_replica(self, broker: int) -> None:
        self.gone |= self.replicas & {broker}
        self.members.discard(broker)
        self._close(broker, returned_at_ms=None)

    def time_passes(self, to_ms: int) -> None:
        for (_, minimum), (until_ms, _) in pairwise([*self._minimums, (LATER_THAN_ANY, 0)]):
            if until_ms > self.now_ms:
                self._time_passes(min(until_ms, to_ms), minimum)
            if until_ms >= to_ms:
                return

    def _time_passes(self, to_ms: int, minimum: int) -> None:
        passed_ms = to_ms - self.now_ms
        self.now_ms = to_ms
        known = len(self.replicas - self.gone)
        is_under = len(self.members) < min(minimum, known)
        for episode in self.episodes.values():
            self.verdicts.out_of_sync_ms += passed_ms
            if is_under and episode.was_evicted:
                episode.under_min_isr_ms += passed_ms
        if is_under:
            self.verdicts.under_min_isr_ms += passed_ms

    def record_eviction(self, broker: int, *, over_since_ms: int | None, is_over: bool) -> None:
        now_ms = self.now_ms
        self.members.remove(broker)
        self.verdicts.shrinks += 1
        self.episodes[broker] = episode = _Episode(
            since_ms=now_ms,
            was_evicted=True,
            detection_ms=0 if over_since_ms is None else now_ms - over_since_ms,
            keeps_fetching=not self._is_silent(broker),
        )
        if is_over:
            self.mark_true_eviction(episode)

    def mark_true_eviction(self, episode: _Episode) -> None:
        """The true lag is above T while it is out: its eviction was a true one."""
        if episode.was_evicted and not episode.has_passed:
            episode.has_passed = True
            self.verdicts.detection_ms.append(episode.detection_ms)

    def record_join(self, broker: int) -> None:
        self.members.add(broker)
        self.verdicts.expands += 1
        self._close(broker, returned_at_ms=self.now_ms)

    def fetches(self, broker: int) -> None:
        episode = self.episodes.get(broker)
        if episode is not None and self._is_silent(broker):
            episode.keeps_fetching = False
        if episode is not None and episode.back_since_ms is None:
            episode.back_since_ms = self.now_ms
        self.fetched_at_ms[broker] = self.now_ms
        self.gone.discard(broker)
        if broker not in self.members and broker not in self.episodes:
            self.episodes[broker] = _Episode(since_ms=self.now_ms, was_evicted=False)

    def end_of_record(self) -> None:
        for broker in sorted(self.episodes):
            self._close(broker, returned_at_ms=None)

    def _close(self, broker: int, *, returned_at_ms: int | None) -> None:
        episode = self.episodes.pop(broker, None)
        if episode is None or not episode.was_evicted:
            return
        self.verdicts.false_evictions += not episode.has_passed
        if episode.back_since_ms is not None:
            self.verdicts.catch_up_ms += self.now_ms - episode.back_since_ms
        if returned_at_ms is not None and returned_at_ms - episode.since_ms <= self.limit_ms:
            self.verdicts.flaps += 1
        if episode.keeps_fetching and not self._is_silent(broker):
            self.verdicts.under_min_isr_fetching_ms += episode.under_min_isr_ms

    def _is_silent(self, broker: int) -> bool:
        return self.now_ms - self.fetched_at_ms.get(broker, NEVER_MS) > self.limit_ms


class _Term:
    """One epoch: the leader's view by the rules, and the truth beside it."""

    def __init__(
        self, partition: _Partition, epoch: Epoch, stalls: Rows, fetch_wait_max_ms: int
    ) -> None:
        partition.begin(epoch)
        self._of = partition
        self._epoch = epoch
        self._stalls = stalls
        self._fetch_wait_max_ms = fetch_wait_max_ms
        begins_at_ms = epoch.begins_at_ms
        replicas = sorted(partition.replicas | {epoch.leader})
        half_period = partition.scenario.half_period_check
        self._replicas = tuple(BrokerId(broker) for broker in replicas)
        self._state, _ = start(
            Leadership.begin(
                rule=Rule(
                    policy=partition.policy,
                    fetch_wait_max_ms=fetch_wait_max_ms,
                    checks_from_ms=begins_at_ms if half_period else None,
                ),
                leader=BrokerId(epoch.leader),
                epoch=LeaderEpoch(epoch.number),
                replicas=self._replicas,
                members=frozenset(BrokerId(broker) for broker in partition.members),
                end=Offset(epoch.start),
                high_watermark=Offset(epoch.start),
                registered=dict.fromkeys(self._replicas, REPLAYED_INCARNATION),
                now_ms=begins_at_ms,
            ),
            now_ms=begins_at_ms,
        )
        self._reads: dict[int, int] = {}  # id(row) of each read under way, to its number
        self._blocked_since_ms: int | None = None  # the leader has more than the watermark
        self._blocked_counted_ms = begins_at_ms
        # The truth: each append's time and end, and since when it has been known of whom.
        self._appended: list[tuple[int, int]] = []
        self._began_ms = begins_at_ms
        self._accounted_until_ms = {
            broker: begins_at_ms for broker in replicas if broker != epoch.leader
        }
        self._over_since_ms: dict[int, int] = {}  # true lag above T without a break
        self._missed: set[int] = set()  # and it was in all that time

    # Events, one after the other.

    def run(self) -> None:
        events: list[tuple[int, int, Event | LeaderStalled]] = [
            (event.at_ms, 1, event) for event in self._epoch.events
        ]
        for row in self._stalls:
            stalled = self._stall(row)
            if stalled is not None:
                events.append((stalled.stall.ended_at_ms, 0, stalled))
        events.sort(key=lambda event: event[:2])  # stable: in the order of the epoch
        for at_ms, _, event in events:
            if isinstance(event, LeaderStalled):
                self._stalled(event)
                continue
            self._look_until(at_ms)
            self._of.time_passes(at_ms)
            if event.kind == APPEND:
                self._append(event.row)
            elif event.when == BEGAN:
                self._read_began(event.row)
            else:
                self._fetch(event.row)
        self._look_until(self._epoch.ends_at_ms)
        self._end_stall()
        for broker in self._accounted_until_ms:
            self._account_true_lag(broker)

    def _stall(self, row: Row) -> LeaderStalled | None:
        """The event, if it is a stall of this leader in this epoch that counts under this limit."""
        if row["broker"] != self._epoch.leader:
            return None
        if not is_stall(row["stall_ms"], lag_time_max_ms=self._of.limit_ms):
            return None
        began_at_ms, ends_at_ms = row["at_ms"], self._epoch.ends_at_ms
        ended_at_ms = min(began_at_ms + row["stall_ms"], ends_at_ms)
        if ended_at_ms < self._epoch.begins_at_ms or began_at_ms >= ends_at_ms:
            return None
        stall = Stall(began_at_ms=began_at_ms, ended_at_ms=ended_at_ms)
        return LeaderStalled(stall, recorded_ms=row["stall_ms"])

    def _stalled(self, event: LeaderStalled) -> None:
        stall = event.stall
        self._look_until(
            max(self._of.now_ms, stall.began_at_ms)
        )  # the leader did not look after that
        if self._of.now_ms < stall.began_at_ms:
            self._of.time_passes(stall.began_at_ms)
        for broker in self._accounted_until_ms:
            self._account_true_lag(broker)
            self._accounted_until_ms[broker] = stall.ended_at_ms
        self._of.time_passes(stall.ended_at_ms)
        self._report(event)
        self._report(SocketsDrained())

        def later(at_ms: int) -> int:
            return min(at_ms + stall.length_ms, stall.ended_at_ms)

        self._appended = [(later(at_ms), end) for at_ms, end in self._appended]
        self._began_ms = later(self._began_ms)

    def _append(self, row: Row) -> None:
        if row["end_offset"] <= self._state.end:
            return  # where an epoch began, or nothing new
        is_level = self._state.end == self._state.high_watermark
        self._appended.append((self._of.now_ms, row["end_offset"]))
        if is_level:
            self._blocked_since_ms = self._of.now_ms
        self._report(Appended(Offset(row["end_offset"])))

    def _read_began(self, row: Row) -> None:
        self._reads[id(row)] = number = len(self._reads)
        self._report(
            ReadStarted(
                follower=BrokerId(row["follower"]),
                read_id=number,
                connection=0,
                offset=Offset(row["offset"]),
                parsed_at_ms=row["at_ms"],
            )
        )

    def _fetch(self, row: Row) -> None:
        follower, now_ms = BrokerId(row["follower"]), self._of.now_ms
        end = Offset(leader_end(row) or 0)
        self._account_true_lag(follower)
        if row["read_ms"] and not is_ok(row):
            self._report(ReadFailed(follower, self._reads[id(row)]))
            return
        self._of.fetches(follower)
        if row["read_ms"]:
            self._report(
                ReadServed(
                    follower=follower,
                    read_id=self._reads[id(row)],
                    leader_end=end,
                    incarnation=REPLAYED_INCARNATION,
                )
            )
            return
        fetch = Fetch(
            offset=Offset(row["offset"]),
            leader_end=end,
            at_ms=now_ms,
            served_at_ms=now_ms,
            incarnation=REPLAYED_INCARNATION,
        )
        self._report(FollowerFetched(follower, fetch))

    def _report(self, event: StateEvent) -> None:
        """Drive the leader's state machine; here the store commits every proposal at once."""
        before = self._state.high_watermark
        self._state, effects = step(self._state, event, now_ms=self._of.now_ms)
        if self._state.high_watermark > before:
            self._end_stall()
            is_level = self._state.high_watermark >= self._state.end
            self._blocked_since_ms = None if is_level else self._of.now_ms
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self._commit(effect.change)

    def _end_stall(self) -> None:
        """The watermark moves, or the epoch ends."""
        if self._blocked_since_ms is None:
            return
        verdicts, stall_ms = self._of.verdicts, self._of.now_ms - self._blocked_since_ms
        verdicts.acks_all_stall_ms_max = max(verdicts.acks_all_stall_ms_max, stall_ms)
        if stall_ms > 2 * self._fetch_wait_max_ms:
            verdicts.acks_all_stall_ms += stall_ms

    def _commit(self, change: IsrChange) -> None:
        if isinstance(change, Expanding):
            self._of.record_join(change.joining)
        else:
            self._leave([broker for broker in self._state.followers if broker in change.leaving])
        members = frozenset(BrokerId(broker) for broker in self._of.members)
        self._report(PartitionStateRead(change.version + 1, self._replicas, members))

    # Deadlines.

    def _look_until(self, until_ms: int) -> None:
        """Meet every deadline up to then, the one of that millisecond included."""
        while self._state.wake_at_ms <= until_ms:
            self._of.time_passes(max(self._state.wake_at_ms, self._of.now_ms))
            self._report(Woken())

    def _leave(self, leaving: list[int]) -> None:
        state, now_ms = self._state, self._of.now_ms
        counted = self._of.members | state.pseudo_isr(now_ms=now_ms)
        ends = {
            broker: int(state.followers[BrokerId(broker)].end)
            for broker in counted - {state.leader}
        }
        ends[state.leader] = int(state.end)
        for broker in leaving:
            others = [end for other, end in ends.items() if other != broker]
            if ends[broker] < min(others) and self._blocked_since_ms is not None:
                from_ms = max(self._blocked_since_ms, self._blocked_counted_ms)
                self._of.verdicts.watermark_stall_ms += max(0, now_ms - from_ms)
                self._blocked_counted_ms = now_ms
        for broker in leaving:
            self._account_true_lag(broker)
            self._of.record_eviction(
                broker,
                over_since_ms=self._over_since_ms.get(broker),
                is_over=self._passes_at_ms(broker) <= now_ms,
            )

    # The truth.

    def _passes_at_ms(self, broker: int) -> int:
        """When its true lag is above T, as things stand."""
        end = self._state.followers[BrokerId(broker)].end
        if end < self._epoch.start:
            since_ms = self._began_ms
        else:
            past = (at_ms for at_ms, leader_end in self._appended if leader_end > end)
            since_ms = next(past, LATER_THAN_ANY)
        return since_ms + self._of.limit_ms + 1

    def _account_true_lag(self, broker: int) -> None:
        """Account for the true lag of the time since this was last done; nothing changed in it."""
        of = self._of
        from_ms, until_ms = self._accounted_until_ms[broker], of.now_ms
        if until_ms <= from_ms:
            return
        self._accounted_until_ms[broker] = until_ms
        over_ms = max(from_ms, self._passes_at_ms(broker))
        if over_ms >= until_ms:
            self._over_since_ms.pop(broker, None)
            self._missed.discard(broker)
            return
        if over_ms > from_ms or broker not in self._over_since_ms:
            self._over_since_ms[broker] = over_ms
            self._missed.discard(broker)
        if broker not in of.members:
            self._missed.discard(broker)
            if broker in of.episodes:
                of.mark_true_eviction(of.episodes[broker])
            return
        if broker not in self._missed:
            self._missed.add(broker)
            of.verdicts.missed += 1
        of.verdicts.missed_ms += until_ms - over_ms
