"""Which limit to advise, and whether to advise one at all: a pure function of a few numbers.

The rules, from the first that decides:

1. A record that covers less than `min_record_ms` gives no advice: it has not seen a day's peaks.
   Covered is time with appends (`record.py`): no limit runs in idle time.
2. The floor: at least twice the longest silence of a healthy follower and four of the longest fetch
   waits, plus a quarter. No lower limit is ever advised, and none that the record does not resolve.
   Without any silence of a healthy follower there is no floor, and no advice to change anything.
3. The running policy stays, unless another one removes false evictions or time below min ISR that
   no limit up to twice the running one removes.
4. Of the limits at or above the floor without a false eviction or a flap, the one that does the
   least harm. Harm is the time for which acks=all stood still, plus the time below min ISR, plus
   the time that evicted followers took to catch up, each of every affected partition. Only what a
   limit decides is harm: a broker whose session ended is out under every limit.
5. No change for a gain below a tenth; equal limits leave the running one in force.

Where the running limit evicts falsely or makes a follower flap, to end that is the gain: then a
limit is advised that does not do a tenth more harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from insync.pipeline.words import SECOND_MS, count, duration, partition_seconds
from insync.rules.settings import LAG_MAX_MESSAGES_DEFAULT, POLICY_NAMES, InSyncSettings
from insync.telemetry.replay.scenario import Scenario

HOUR_MS: Final = 3_600_000
MIN_RECORD_MS: Final = 24 * HOUR_MS
SILENCES: Final = 2  # a limit has room for so many silences as long as the longest
FETCH_WAITS: Final = 4
MARGIN_PARTS: Final = 4  # the floor has one of so many parts on top
GAIN_PARTS: Final = 10  # a smaller part of the harm is not worth a change
LIMIT_FACTOR_MAX: Final = 2  # a limit that is longer than this is out of reason
TRADE_ROWS_MAX: Final = 12

TOO_SHORT, KEEP, SET = "too-short", "keep", "set"
RUNNING, ADVISED = "running", "advised"

_DEFAULTS: Final = InSyncSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How much was recorded, and how long healthy followers were silent in it."""

    covered_ms: int  # with appends; idle time and gaps are left out
    span_ms: int  # from the first row to the last
    idle_ms: int = 0  # without appends
    silences: int = 0
    silence_ms_p9999: int | None = None
    silence_ms_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The settings in force, the latest of the record."""

    policy: str = _DEFAULTS.replica_in_sync_policy
    lag_time_max_ms: int = _DEFAULTS.replica_lag_time_max_ms
    lag_max_messages: int = LAG_MAX_MESSAGES_DEFAULT  # of `messages` only
    fetch_wait_max_ms: int = _DEFAULTS.replica_fetch_wait_max_ms
    is_apache_kafka: bool = False  # where `caught-up`, looked at every T/2, is all that can be set
    changes: tuple[str, ...] = ()  # what the record says of other values

    @property
    def scenario(self) -> Scenario:
        return Scenario(
            policy=self.policy,
            lag_time_max_ms=self.lag_time_max_ms,
            lag_max_messages=self.lag_max_messages if self.policy == "messages" else None,
            half_period_check=self.is_apache_kafka,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one scenario would have done. `..._partition_ms` are sums over partitions."""

    scenario: Scenario
    evictions: int = 0
    false_evictions: int = 0
    flaps: int = 0
    is_resolved: bool = True  # the record is fine enough to say what this limit would have done
    acks_all_stall_ms_max: int = 0  # the longest of any partition
    acks_all_stall_partition_ms: int = 0
    under_min_isr_ms_max: int = 0  # of the partition that was longest below
    under_min_isr_partition_ms: int = 0  # by evictions, not by the controller
    catch_up_partition_ms: int = 0

    @property
    def limit_ms(self) -> int:
        return self.scenario.lag_time_max_ms

    @property
    def is_clean(self) -> bool:
        return self.false_evictions == 0 and self.flaps == 0

    @property
    def harm_partition_ms(self) -> int:
        return (
            self.acks_all_stall_partition_ms
            + self.under_min_isr_partition_ms
            + self.catch_up_partition_ms
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeRow:
    """A line of the table that a reader weighs the advice by."""

    role: str | None  # running, advised
    outcome: Outcome
    is_below_floor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    verdict: str  # too-short, keep, set
    scenario: Scenario  # to set, or the running one
    reason: str
    statements: tuple[str, ...]  # what the advice rests on
    floor_ms: int
    apply_command: str | None = None
    revert_command: str | None = None
    trade: tuple[TradeRow, ...] = ()


def floor_ms(recorded: Recorded, *, fetch_wait_max_ms: int) -> int:
    """No limit below this is advised."""
    least_ms = max(
        SILENCES * (recorded.silence_ms_max or 0),
        FETCH_WAITS * fetch_wait_max_ms,
    )
    return least_ms + -(-least_ms // MARGIN_PARTS)


def readable_limit_ms(limit_ms: int) -> int:
    """The limit, rounded up to what an operator would write."""
    steps = ((SECOND_MS, 100), (10 * SECOND_MS, 500), (60 * SECOND_MS, 1_000), (600_000, 5_000))
    step_ms = next((step for below, step in steps if limit_ms < below), 60 * SECOND_MS)
    return -(-limit_ms // step_ms) * step_ms


def advise(
    recorded: Recorded,
    running: Running,
    outcomes: Sequence[Outcome],
    *,
    min_record_ms: int = MIN_RECORD_MS,
) -> Advice:
    settable = [
        each for each in outcomes if each.scenario.half_period_check == running.is_apache_kafka
    ]
    if running.is_apache_kafka:
        settable = [each for each in settable if each.scenario.policy == running.policy]
    lowest_ms = floor_ms(recorded, fetch_wait_max_ms=running.fetch_wait_max_ms)
    verdict, scenario, reason = KEEP, running.scenario, ""
    if recorded.covered_ms < min_record_ms:
        verdict, reason = TOO_SHORT, _too_short(recorded, min_record_ms)
    elif recorded.silence_ms_max is None:
        reason = "no silence of a healthy follower was recorded, so no limit is known to be safe"
    else:
        choice, reason = _choose(running, settable, lowest_ms)
        if choice is not None:
            verdict, scenario = SET, choice.scenario
    is_set = verdict == SET
    return Advice(
        verdict=verdict,
        scenario=scenario,
        reason=reason,
        statements=_statements(recorded, running, lowest_ms, verdict),
        floor_ms=lowest_ms,
        apply_command=_command(scenario, running, scenario) if is_set else None,
        revert_command=_command(running.scenario, running, scenario) if is_set else None,
        trade=_trade(running, settable, scenario if is_set else None, lowest_ms),
    )


def _choose(
    running: Running, outcomes: Sequence[Outcome], lowest_ms: int
) -> tuple[Outcome | None, str]:
    """What to set, None to keep what is in force; and why."""
    now = next((each for each in outcomes if each.scenario == running.scenario), None)
    if now is None:
        rule = " and ".join(_settings(running.scenario, has_policy=True))
        return None, f"{rule}, which is running, was not replayed"
    own = [each for each in outcomes if _rule(each) == _rule(now)]
    other, why = _better_policy(now, own, outcomes, lowest_ms)
    if other is not None:
        return other, why
    sound = [
        each for each in own if each.is_clean and each.is_resolved and each.limit_ms >= lowest_ms
    ]
    if not sound:
        return None, (
            f"no limit replayed from the floor of {duration(lowest_ms)} up is without a false "
            "eviction or a flap; replay longer ones"
        )
    best = min(sound, key=lambda each: _rank(each, now))
    if best is now:
        return None, "no limit at or above the floor does less harm"
    return _weigh(now, best)


def _weigh(now: Outcome, best: Outcome) -> tuple[Outcome | None, str]:
    harm, least = now.harm_partition_ms, best.harm_partition_ms
    words = f"{partition_seconds(least)} of harm in place of {partition_seconds(harm)}"
    if not now.is_clean:
        faults = " and ".join(
            count(number, noun)
            for number, noun in (
                (now.false_evictions, "false eviction"),
                (now.flaps, "flap"),
            )
            if number
        )
        if least * GAIN_PARTS > harm * (GAIN_PARTS + 1):
            return None, (
                f"the running limit has {faults}, but every limit without does more harm: "
                f"{duration(best.limit_ms)} has {words}"
            )
        return best, f"{duration(best.limit_ms)} ends {faults}, with {words}"
    if (harm - least) * GAIN_PARTS < harm or harm == 0:
        if harm == 0:
            return None, "there is nothing to gain: the running limit did no harm"
        gain = max(0, 100 * (harm - least) // harm)
        return None, (
            f"no limit at or above the floor does a tenth less harm: {duration(best.limit_ms)}, "
            f"the best of them, gains {gain} %"
        )
    return best, f"{duration(best.limit_ms)} does the least harm: {words}"


def _better_policy(
    now: Outcome, own: Sequence[Outcome], outcomes: Sequence[Outcome], lowest_ms: int
) -> tuple[Outcome | None, str]:
    """Another policy that removes what no reasonable limit of the running one removes."""
    longest_ms = LIMIT_FACTOR_MAX * now.limit_ms
    within_reason = [each for each in own if each.limit_ms <= longest_ms]
    least_false = min(each.false_evictions for each in within_reason)
    least_under_ms = min(each.under_min_isr_partition_ms for each in within_reason)
    least_harm = min(each.harm_partition_ms for each in within_reason)

    def is_better(each: Outcome) -> bool:
        under_ms = each.under_min_isr_partition_ms
        removes_time = (least_under_ms - under_ms) * GAIN_PARTS >= least_under_ms > 0
        return (
            _rule(each) != _rule(now)
            and lowest_ms <= each.limit_ms <= longest_ms
            and each.is_clean
            and each.is_resolved
            and under_ms <= least_under_ms
            and each.harm_partition_ms <= least_harm
            and (least_false > 0 or removes_time)
        )

    better = [each for each in outcomes if is_better(each)]
    if not better:
        return None, ""
    best = min(better, key=lambda each: _rank(each, now))
    removed = []
    if least_false:
        removed.append(count(least_false, "false eviction"))
    if best.under_min_isr_partition_ms < least_under_ms:
        gone_ms = least_under_ms - best.under_min_isr_partition_ms
        removed.append(f"{partition_seconds(gone_ms)} below min ISR")
    return best, (
        f"{best.scenario.policy} removes {' and '.join(removed)} that no limit of "
        f"{now.scenario.policy} up to {duration(longest_ms)} removes"
    )


def _rank(each: Outcome, now: Outcome) -> tuple[int, bool, int, int]:
    """The least harm first; among equals the running limit, then the nearest to it."""
    return (
        each.harm_partition_ms,
        each.limit_ms != now.limit_ms,
        abs(each.limit_ms - now.limit_ms),
        POLICY_NAMES.index(each.scenario.policy),
    )


def _rule(outcome: Outcome) -> tuple[str, int | None]:
    return outcome.scenario.policy, outcome.scenario.lag_max_messages


def _trade(
    running: Running, outcomes: Sequence[Outcome], advised: Scenario | None, lowest_ms: int
) -> tuple[TradeRow, ...]:
    """The limits of the running rule, and the advised one; the nearest where there are many."""
    roles = {running.scenario: RUNNING} | ({} if advised is None else {advised: ADVISED})
    rule = (running.policy, running.scenario.lag_max_messages)
    rows = [each for each in outcomes if each.scenario in roles or _rule(each) == rule]
    limit_ms = running.lag_time_max_ms if advised is None else advised.lag_time_max_ms
    rows.sort(key=lambda each: (each.scenario not in roles, abs(each.limit_ms - limit_ms)))
    shown = sorted(
        rows[:TRADE_ROWS_MAX],
        key=lambda each: (each.limit_ms, POLICY_NAMES.index(each.scenario.policy)),
    )
    return tuple(
        TradeRow(
            role=roles.get(each.scenario),
            outcome=each,
            is_below_floor=each.limit_ms < lowest_ms,
        )
        for each in shown
    )


# In words.


def _too_short(recorded: Recorded, min_record_ms: int) -> str:
    return (
        f"{duration(recorded.covered_ms)} of record is less than the {_span(min_record_ms)} that "
        "advice needs (--min-record, which counts time with appends): a limit has to bear a day's "
        "peaks, backups and restarts, and a shorter record has not seen them"
    )


def _statements(
    recorded: Recorded, running: Running, lowest_ms: int, verdict: str
) -> tuple[str, ...]:
    gaps_ms = recorded.span_ms - recorded.covered_ms - recorded.idle_ms
    left_out = " and ".join(
        f"{what} of {duration(ms)}"
        for what, ms in (("idle time", recorded.idle_ms), ("gaps", gaps_ms))
        if ms > 0
    )
    left_out = f", {left_out} left out" if left_out else ""
    statements = [f"{duration(recorded.covered_ms)} were recorded{left_out}."]
    if verdict != TOO_SHORT and recorded.covered_ms < MIN_RECORD_MS:
        statements.append(
            f"This is advice from {duration(recorded.covered_ms)}, not from a day "
            f"({_span(MIN_RECORD_MS)}): it shows how the decision is made. Do not apply it to a "
            "cluster in use."
        )
    statements += running.changes
    if recorded.silence_ms_max is None:
        silent = "no silence of a healthy follower was recorded"
    else:
        silent = (
            f"healthy followers were silent for up to {duration(recorded.silence_ms_max)} "
            f"(p99.99 {duration(recorded.silence_ms_p9999 or 0)}), and a limit is at least twice "
            "that and four fetch waits, plus a quarter"
        )
    statements.append(f"The floor is {duration(lowest_ms)}: {silent}.")
    if running.lag_time_max_ms < lowest_ms:
        statements.append(
            f"The running limit of {duration(running.lag_time_max_ms)} is below the floor."
        )
    return tuple(statements)


def _settings(scenario: Scenario, *, has_policy: bool) -> list[str]:
    settings = [f"replica.in.sync.policy={scenario.policy}"] if has_policy else []
    if scenario.lag_max_messages is not None:
        settings.append(f"replica.lag.max.messages={scenario.lag_max_messages}")
    return [*settings, f"replica.lag.time.max.ms={scenario.lag_time_max_ms}"]


def _command(scenario: Scenario, running: Running, advised: Scenario) -> str:
    """How to set a scenario; the policy only if the advice changes it."""
    settings = _settings(scenario, has_policy=advised.policy != running.policy)
    if running.is_apache_kafka:
        values = " and ".join(settings)
        return f"{values} in server.properties of every broker, then restart them one by one"
    return (
        "insync configs --bootstrap-server HOST:PORT --entity-type brokers --entity-default "
        f"--alter --add-config {','.join(settings)}"
    )


def _span(ms: int) -> str:
    """Of an option: 24 h, not 1 d 0 h."""
    return f"{ms // HOUR_MS} h" if ms % HOUR_MS == 0 else duration(ms)
