"""One simulated run of a cluster: brokers, clients that write and read, and injected faults.

The brokers are the real ones (`node`). Clock, network, disks, store and chance are simulated, so
a seed determines a run, and a failure can be replayed:

    python -m insync.sim.run SEED [SECONDS [MIX]] [--only FAULTS] [--without KINDS]

`faults` has the faults that a run injects; `checks` has what must hold in spite of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random

from insync.metadata.memory import MemoryTree
from insync.rules.settings import POLICY_NAMES
from insync.sim.checks import Monitor, RunFailed
from insync.sim.clients import Admin
from insync.sim.cluster import Cluster, ErrorLogHandler
from insync.sim.faults import (
    MIXES,
    NEEDS_FLUSHES,
    NEEDS_STEADY_ISR,
    NEEDS_THREE_REPLICAS,
    FaultInjector,
    ScheduledFault,
)
from insync.sim.history import History, describe, find_missing
from insync.sim.load import Clients
from insync.sim.sqlite_tree import SqliteTree
from insync.sim.store import CLOCK_DRIFT_MAX
from insync.sim.virtual_loop import VirtualLoop, virtual_time

TOPIC = "orders"
PARTITIONS = 2
SECONDS = 20.0
SHRINK_ATTEMPTS_MAX = 40
CHECK_EVERY_S = 0.02
CHECK_ALL_EVERY_S = 1.0  # partitions without clients
PROCESS_TIME_WITH_STALLS_MS = 300  # with this limit, stalls of the leader count
FLUSHES_CHANCE = 0.2
DRIFT_CHANCE = 0.2
WIDE_CHANCE = 0.03
SQLITE_CHANCE = 0.15
SEGMENT_BYTES = (2_048, 16_384, 1 << 30)
WIDE_PARTITIONS = 150
COOLDOWN_MS = 3_000  # short enough that cool-downs end within a run
CLIENTS_SETTLE_WITHIN_S = 60.0
RUN_COLLECTION_THRESHOLDS = (20_000, 20, 50)
HEALED_WITHIN_S = 30.0  # of virtual time after the last fault has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings and kinds of faults of a run, drawn from its seed."""

    mix: str
    factor: int
    min_isr: int
    unclean: bool
    segment_bytes: int
    policy: dict[str, str]
    brokers: int
    retention_bytes: int
    flushes: bool  # log.flush.interval.messages=1
    latency_s_max: float
    spread_s: float  # how much later than others a connection's messages may arrive
    clock_drift: float
    wide: int  # partitions of a topic that makes all tables larger; 0 for none
    sqlite: bool = False  # the SQLite store makes the steps

    @classmethod
    def draw(cls, random: Random, mix: str | None) -> Plan:
        drawn = random.choice((*MIXES, *["elections"] * 4, *["everything"] * 4))
        mix = mix or drawn
        factor, min_isr = random.choice(((3, 2), (3, 2), (3, 1), (2, 1), (2, 2)))
        is_power, is_elections = mix.startswith("power"), mix == "elections"
        if is_power or is_elections:
            # Two other brokers must have what one machine loses with its power. After an election
            # the watermark is behind only if the new leader has to wait for another member.
            factor, min_isr = (3 if is_power else 4), 2
        return cls(
            mix=mix,
            factor=factor,
            min_isr=min_isr,
            unclean=random.random() < 0.1 and not (is_power or is_elections),  # noqa: PLR2004
            # Where complete segments are lost there have to be some, and retention removes none.
            segment_bytes=min(SEGMENT_BYTES) if is_elections else random.choice(SEGMENT_BYTES),
            # By true lag a follower is in sync that has not reached the new leader's end yet.
            policy=_draw_policy(random, ("true-lag",) if is_elections else POLICY_NAMES),
            brokers=4 if mix in ("moves", "elections") else 3,
            retention_bytes=-1 if is_elections else random.choice((-1, -1, 4_096, 20_000)),
            flushes=mix == "power everywhere"
            or (random.random() < FLUSHES_CHANCE and not is_elections),
            latency_s_max=random.choice((0.002, 0.002, 0.002, 0.03)),
            spread_s=random.choice((0.0, 0.0, 0.02)),
            clock_drift=CLOCK_DRIFT_MAX if random.random() < DRIFT_CHANCE else 0.0,
            wide=WIDE_PARTITIONS if random.random() < WIDE_CHANCE else 0,
        )

    def unbearable(self) -> frozenset[str]:
        """Kinds of faults under which these settings promise nothing."""
        kinds: set[str] = set()
        if not self.flushes:
            kinds |= NEEDS_FLUSHES
        if self.factor < 3 or self.min_isr != 2 or self.unclean:  # noqa: PLR2004
            kinds |= NEEDS_THREE_REPLICAS
        if self.policy["replica.in.sync.policy"] == "messages":  # a few records evict a follower
            kinds |= NEEDS_STEADY_ISR
        return frozenset(kinds)


def _draw_policy(random: Random, names: Sequence[str]) -> dict[str, str]:
    name = random.choice(names)
    settings = {"replica.in.sync.policy": name}
    if name == "messages":
        settings["replica.lag.max.messages"] = str(random.choice((0, 5, 100)))
    has_flag = name == "true-lag" and random.choice((True, False))
    if has_flag:
        settings["follower.fetch.pending.reads.insync.enable"] = "true"
    if has_flag or name == "pending-reads":
        process_time_max_ms = random.choice((20, 300, 1_000))
        settings["follower.fetch.process.time.max.ms"] = str(process_time_max_ms)
        if process_time_max_ms == PROCESS_TIME_WITH_STALLS_MS:
            settings["follower.fetch.process.time.include.stalls"] = "true"
    return settings


class SimulatedRun:
    def __init__(
        self,
        seed: int,
        loop: VirtualLoop,
        mix: str | None = None,
        *,
        off: frozenset[str] = frozenset(),
        only: frozenset[int] | None = None,
    ) -> None:
        self.random = Random(f"{seed} {mix}")  # noqa: S311 - chance, not secrecy
        # By a chance of its own, so that it does not change what else is drawn.
        is_sqlite = Random(f"{seed} sqlite").random() < SQLITE_CHANCE  # noqa: S311
        self.plan = replace(Plan.draw(self.random, mix), sqlite=is_sqlite)
        self.loop = loop
        self.trace = sha256()
        unclean = self.plan.unclean
        self.cluster = Cluster(
            loop,
            self._new_random(),
            brokers=self.plan.brokers,
            settings={
                "min.insync.replicas": str(self.plan.min_isr),
                "unclean.leader.election.enable": str(unclean).lower(),
                "log.segment.bytes": str(self.plan.segment_bytes),
                "leader.resign.cooldown.ms": str(COOLDOWN_MS),
                "log.retention.bytes": str(self.plan.retention_bytes),
                "log.retention.check.interval.ms": "1000",
                "log.scrub.interval.ms": "2000",
                **({"log.flush.interval.messages": "1"} if self.plan.flushes else {}),
                **self.plan.policy,
            },
            note=self.note,
            new_tree=SqliteTree if is_sqlite else MemoryTree,
        )
        self.history = History()
        self.monitor = Monitor(self.cluster, unclean=unclean, flushes=self.plan.flushes)
        self.clients = Clients(
            self.cluster, self.history, self.monitor, self._new_random(), unclean=unclean
        )
        self.admin = Admin(self.cluster, self.clients.new_client((TOPIC, 0)))
        self.faults = FaultInjector(
            self.cluster,
            self.clients,
            self.admin,
            self._new_random(),
            mix=self.plan.mix,
            topic=TOPIC,
            factor=self.plan.factor,
            is_healthy=self._is_healthy,
            check_brokers=self.monitor.check_brokers,
            off=off | self.plan.unbearable(),
            only=only,
        )
        network = self.cluster.network
        network.latency_s_max, network.spread_s = self.plan.latency_s_max, self.plan.spread_s
        for broker in self.cluster.brokers.values():
            drift = self.plan.clock_drift
            broker.clock_rate = 1 + self.random.uniform(-drift, drift)

    def note(self, *what: object) -> None:
        line = repr((self.loop.clock_ms(), *what))
        self.trace.update(line.encode())
        logger.debug("%s", line)

    async def run(self, seconds: float) -> str:
        for number in self.cluster.brokers:
            await self.cluster.start(number)
        await self.admin.create(TOPIC, PARTITIONS, factor=self.plan.factor)
        for number in range(PARTITIONS):
            self.clients.start_clients((TOPIC, number), busy=number == 0)
        if self.plan.wide:
            await self.admin.create("wide", self.plan.wide, factor=self.plan.factor)
            self.clients.start_clients(("wide", self.plan.wide - 1), busy=False)
        checking = self.loop.create_task(self._check_periodically())
        injecting = self.loop.create_task(self.faults.inject_faults(seconds))
        while not injecting.done():
            await asyncio.wait([injecting, checking], timeout=0.5)
            self._raise_failures(checking)
        injecting.result()
        await self.cluster.heal()
        healed_at_s = self.loop.time()
        self.clients.has_ended = True
        await self._wait_for_clients(checking)
        await self._wait_until_healed(healed_at_s)
        checking.cancel()
        self.monitor.check_brokers()
        self.monitor.raise_failure()
        await self._check_logs()
        return self.trace.hexdigest()

    async def _wait_for_clients(self, checking: asyncio.Task[None]) -> None:
        deadline_s = self.loop.time() + CLIENTS_SETTLE_WITHIN_S
        while waiting := [task for task in self.clients.tasks() if not task.done()]:
            await asyncio.wait([checking, *waiting], timeout=0.1)
            self._raise_failures(checking)
            if self.loop.time() > deadline_s:
                raise RunFailed(f"{len(waiting)} clients still wait for a response")
        self._raise_failures(checking)

    async def _check_periodically(self) -> None:
        next_of_all_s = 0.0
        while True:
            is_time_for_all = self.loop.time() >= next_of_all_s
            if is_time_for_all:
                next_of_all_s = self.loop.time() + CHECK_ALL_EVERY_S
            self.monitor.check_brokers(None if is_time_for_all else self.clients.partitions)
            self.monitor.raise_failure()
            await asyncio.sleep(CHECK_EVERY_S)

    def _raise_failures(self, *others: asyncio.Task[None]) -> None:
        for task in (*others, *self.clients.tasks()):
            if task.done() and not task.cancelled():
                task.result()

    def _is_healthy(self) -> bool:
        if not self.monitor.are_starts_handled():
            return False  # an ISR may still have a broker that lost records when it restarted
        states = [stored.state for stored in self.monitor.states().values()]
        return all(s["leader"] is not None and set(s["isr"]) == set(s["replicas"]) for s in states)

    async def _wait_until_healed(self, healed_at_s: float) -> None:
        while (unhealed := self.monitor.find_unhealed()) is not None:
            self.monitor.raise_failure()
            if self.loop.time() > healed_at_s + HEALED_WITHIN_S + CLIENTS_SETTLE_WITHIN_S:
                raise RunFailed(f"{HEALED_WITHIN_S:g} s after the last fault: {unhealed}")
            await asyncio.sleep(0.1)
        self.note("healed")

    async def _check_logs(self) -> None:
        self.monitor.check_replicas_are_identical()
        anomalies = []
        for partition in self.clients.partitions:
            start, end = self.monitor.bounds_of(partition)
            if not self.plan.unclean and all(f.name != "set_config" for f in self.faults.started):
                self.monitor.check_log_start(partition, retention_bytes=self.plan.retention_bytes)
            async with asyncio.timeout(CLIENTS_SETTLE_WITHIN_S):
                present = await self.clients.read_all(partition, start=start, end=end)
            start, _ = self.monitor.bounds_of(partition)  # retention goes on
            if not self.plan.unclean:
                missing = find_missing(self.history, partition, start=start, present=present)
                anomalies += missing
        anomalies += self.history.find_anomalies(
            unclean=self.plan.unclean, producers_expired=self.clients.producers_expired
        )
        if anomalies:
            raise RunFailed(describe(anomalies))

    def _new_random(self) -> Random:
        return Random(self.random.random())  # noqa: S311


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Everything that determines a run."""

    seed: int
    seconds: float = SECONDS
    mix: str | None = None
    off: frozenset[str] = frozenset()  # kinds of faults that are not injected
    only: frozenset[int] | None = None  # the numbers of the faults that are; None: all

    def command(self) -> str:
        words = ["python -m insync.sim.run", str(self.seed), f"{self.seconds:g}"]
        words += [shlex.quote(self.mix)] if self.mix else []
        words += [f"--without {','.join(sorted(self.off))}"] if self.off else []
        if self.only is not None:
            words.append(f"--only {','.join(map(str, sorted(self.only))) or 'none'}")
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    trace: str
    acknowledged: int
    faults: tuple[ScheduledFault, ...]
    error: Exception | None
    plan: Plan
    injected_s: float  # virtual time until the run failed or its faults ended


def run_once(replay: Replay) -> RunResult:
    """Run once; the result has the error of a run that failed."""
    with warnings.catch_warnings():
        # A killed broker leaves tasks that never began. They end here, not in what runs next.
        never_awaited = "coroutine .* was never awaited"
        warnings.filterwarnings("ignore", never_awaited, RuntimeWarning)
        with _rare_collections():
            result = _run_once(replay)
            if result.error is not None:
                traceback.clear_frames(result.error.__traceback__)  # they hold the whole cluster
            gc.collect()
    return result


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage seldom, and only what the run made: a tenth of a run's time otherwise."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*RUN_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _run_once(replay: Replay) -> RunResult:
    with virtual_time() as loop:
        run = SimulatedRun(replay.seed, loop, replay.mix, off=replay.off, only=replay.only)
        handler = ErrorLogHandler(run.cluster)
        logging.getLogger("insync").addHandler(handler)
        error: Exception | None = None
        trace = ""
        try:
            trace = loop.run_until_complete(run.run(replay.seconds))
        except Exception as failure:
            error = failure
        finally:
            logging.getLogger("insync").removeHandler(handler)
            run.cluster.tree.close()
        return RunResult(
            trace=trace,
            acknowledged=run.history.acknowledged(),
            faults=tuple(run.faults.started),
            error=error,
            plan=run.plan,
            injected_s=min(replay.seconds, loop.time()),
        )


def run_seed(
    seed: int,
    seconds: float = SECONDS,
    mix: str | None = None,
    *,
    off: frozenset[str] = frozenset(),
    attempts_max: int = SHRINK_ATTEMPTS_MAX,
) -> tuple[str, int]:
    """Run once. Returns the hash of the run's events and the number of acknowledged records.

    A failing run is minimised: the error names the command of the smallest that still fails.
    """
    replay = Replay(seed=seed, seconds=seconds, mix=mix, off=off)
    result = run_once(replay)
    if result.error is None:
        return result.trace, result.acknowledged
    smallest, last = minimise(replay, result, attempts_max=attempts_max)
    assert last.error is not None, "it fails"
    last.error.add_note(explain(replay, smallest, last))
    raise last.error


def explain(replay: Replay, smallest: Replay, last: RunResult) -> str:
    faults = ", ".join(f"{fault.number} {fault.name}" for fault in last.faults) or "none"
    return (
        f"{last.plan}\nfaults: {faults}\n"
        f"replay with: {smallest.command()}\nminimised from: {replay.command()}"
    )


def minimise(
    replay: Replay, result: RunResult, *, attempts_max: int = SHRINK_ATTEMPTS_MAX
) -> tuple[Replay, RunResult]:
    """Fewer faults and a shorter run that fails as well, by bisection within some attempts."""
    attempts = 0

    def still_fails(smaller: Replay) -> bool:
        nonlocal attempts, replay, result
        attempts += 1
        retried = run_once(smaller)
        if retried.error is None:
            return False
        replay, result = smaller, retried
        return True

    shorter_s = float(int(result.injected_s) + 1)
    if attempts < attempts_max and shorter_s < replay.seconds:
        still_fails(replace(replay, seconds=shorter_s))
    size = max(1, len(result.faults) // 2)
    while attempts < attempts_max and size:
        numbers = [fault.number for fault in result.faults]
        for start in range(0, len(numbers), size):
            removed = {*numbers[start : start + size]}
            kept = frozenset(fault.number for fault in result.faults) - removed
            if attempts >= attempts_max:
                break
            if removed:
                still_fails(replace(replay, only=kept))
        size //= 2
    return replay, result


def parse_replay(arguments: Sequence[str]) -> Replay:
    parser = argparse.ArgumentParser(prog="python -m insync.sim.run")
    parser.add_argument("seed", type=int)
    parser.add_argument("seconds", type=float, nargs="?", default=SECONDS)
    parser.add_argument("mix", nargs="?", choices=list(MIXES))
    parser.add_argument("--without", dest="off", default="", help="kinds to leave out")
    parser.add_argument("--only", help="numbers of the faults to inject, or none")
    options = parser.parse_args(arguments)
    numbers = options.only and options.only.replace("none", "").split(",")
    return Replay(
        seed=options.seed,
        seconds=options.seconds,
        mix=options.mix,
        off=_names(options.off),
        only=None if numbers is None else frozenset(int(each) for each in numbers if each),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name)


def main(arguments: Sequence[str]) -> None:
    result = run_once(parse_replay(arguments))
    if result.error is not None:
        result.error.add_note(f"{result.plan}")
        raise result.error
    print(result.trace, result.acknowledged)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
