"""One life of a cluster: brokers and what befalls them, clients that write and read.

The brokers are the real ones (`node`); clock, network, disks, store and chance are simulated, so a
seed is a life and a failure can be looked at again:

    python -m insync.sim.life SEED [SECONDS [MIX]]

What must hold, whatever happens, is in `checks`; what happens is in `troubles`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from insync.rules.settings import POLICY_NAMES
from insync.sim.checks import LifeFailed, Monitor, Witness
from insync.sim.clients import Admin, Clients
from insync.sim.cluster import Cluster, MishapHandler
from insync.sim.troubles import MIXES, Troubles
from insync.sim.virtual_loop import VirtualLoop, virtual_time

TOPIC = "life"
PARTITIONS = 2
SECONDS = 20.0
LOOK_EVERY_S = 0.02
COOLDOWN_MS = 3_000  # short enough that a life sees brokers rested again
CLIENTS_SETTLE_WITHIN_S = 60.0
HEALED_WITHIN_S = 30.0  # of virtual time after the last fault has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The kind of life, drawn from its seed."""

    mix: str
    factor: int
    min_isr: int
    unclean: bool
    segment_bytes: int
    policy: dict[str, str]
    brokers: int

    @classmethod
    def draw(cls, random: Random, mix: str | None) -> Plan:
        drawn = random.choice((*MIXES, "everything", "everything", "everything"))
        mix = mix or drawn
        factor, min_isr = random.choice(((3, 2), (3, 2), (3, 1), (2, 1), (2, 2)))
        is_power = mix == "power"
        return cls(
            mix=mix,
            # What is lost with one machine's power must be on two others.
            factor=3 if is_power else factor,
            min_isr=2 if is_power else min_isr,
            unclean=random.random() < 0.1 and not is_power,  # noqa: PLR2004
            segment_bytes=random.choice((2_048, 16_384, 1 << 30)),
            policy=_draw_policy(random),
            brokers=4 if mix == "moves" else 3,
        )


def _draw_policy(random: Random) -> dict[str, str]:
    name = random.choice(POLICY_NAMES)
    settings = {"replica.in.sync.policy": name}
    if name == "messages":
        settings["replica.lag.max.messages"] = str(random.choice((0, 5, 100)))
    has_flag = name == "true-lag" and random.choice((True, False))
    if has_flag:
        settings["follower.fetch.pending.reads.insync.enable"] = "true"
    if has_flag or name == "pending-reads":
        settings["follower.fetch.process.time.max.ms"] = str(random.choice((20, 300, 1_000)))
    return settings


class Life:
    def __init__(self, seed: int, loop: VirtualLoop, mix: str | None = None) -> None:
        self.random = Random(f"{seed} {mix}")  # noqa: S311 - chance, not secrecy
        self.plan = Plan.draw(self.random, mix)
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
                **self.plan.policy,
            },
            note=self.note,
        )
        self.witness = Witness(unclean=unclean)
        self.monitor = Monitor(self.cluster, unclean=unclean)
        self.clients = Clients(
            self.cluster, self.witness, self.monitor, self._new_random(), unclean=unclean
        )
        self.admin = Admin(self.cluster, self.clients.new_client((TOPIC, 0)))
        self.troubles = Troubles(
            self.cluster,
            self.clients,
            self.admin,
            self._new_random(),
            mix=self.plan.mix,
            topic=TOPIC,
            factor=self.plan.factor,
            is_healthy=self._is_healthy,
        )

    def note(self, *what: object) -> None:
        line = repr((self.loop.clock_ms(), *what))
        self.trace.update(line.encode())
        logger.debug("%s", line)

    async def live(self, seconds: float) -> str:
        for number in self.cluster.brokers:
            await self.cluster.start(number)
        await self.admin.create(TOPIC, PARTITIONS, factor=self.plan.factor)
        for number in range(PARTITIONS):
            self.clients.attend((TOPIC, number), busy=number == 0)
        looking = self.loop.create_task(self._look_again_and_again())
        trouble = self.loop.create_task(self.troubles.befall(seconds))
        while not trouble.done():
            await asyncio.wait([trouble, looking], timeout=0.5)
            self._see_to_failures(looking)
        trouble.result()
        await self.cluster.heal()
        healed_at_s = self.loop.time()
        self.clients.has_ended = True
        await self._see_clients_off(looking)
        await self._be_healed(healed_at_s)
        looking.cancel()
        self.monitor.look()
        self.monitor.raise_failure()
        await self._inspect()
        return self.trace.hexdigest()

    async def _see_clients_off(self, looking: asyncio.Task[None]) -> None:
        deadline_s = self.loop.time() + CLIENTS_SETTLE_WITHIN_S
        while waiting := [task for task in self.clients.tasks() if not task.done()]:
            await asyncio.wait([looking, *waiting], timeout=0.1)
            self._see_to_failures(looking)
            if self.loop.time() > deadline_s:
                raise LifeFailed(f"{len(waiting)} clients are still waiting for an answer")
        self._see_to_failures(looking)

    async def _look_again_and_again(self) -> None:
        while True:
            self.monitor.look()
            self.monitor.raise_failure()
            await asyncio.sleep(LOOK_EVERY_S)

    def _see_to_failures(self, *others: asyncio.Task[None]) -> None:
        for task in (*others, *self.clients.tasks()):
            if task.done() and not task.cancelled():
                task.result()

    def _is_healthy(self) -> bool:
        states = [seen.state for seen in self.monitor.states().values()]
        return all(s["leader"] is not None and set(s["isr"]) == set(s["replicas"]) for s in states)

    async def _be_healed(self, healed_at_s: float) -> None:
        while (unhealed := self.monitor.unhealed()) is not None:
            self.monitor.raise_failure()
            if self.loop.time() > healed_at_s + HEALED_WITHIN_S + CLIENTS_SETTLE_WITHIN_S:
                raise LifeFailed(f"{HEALED_WITHIN_S:g} s after all trouble: {unhealed}")
            await asyncio.sleep(0.1)
        self.note("healed")

    async def _inspect(self) -> None:
        self.monitor.check_replicas_are_identical()
        for partition in self.clients.partitions:
            end = self.monitor.end_of(partition)
            async with asyncio.timeout(CLIENTS_SETTLE_WITHIN_S):
                found = await self.clients.read_all(partition, end=end)
            self.witness.check(partition, found)

    def _new_random(self) -> Random:
        return Random(self.random.random())  # noqa: S311


logger = logging.getLogger(__name__)


def live(seed: int, seconds: float = SECONDS, mix: str | None = None) -> tuple[str, int]:
    """Live once; returns the hash of the life and how much was acknowledged."""
    with virtual_time() as loop:
        life = Life(seed, loop, mix)
        handler = MishapHandler(life.cluster)
        logging.getLogger("insync").addHandler(handler)
        try:
            trace = loop.run_until_complete(life.live(seconds))
            return trace, life.witness.acknowledged()
        except Exception as error:
            command = f"python -m insync.sim.life {seed} {seconds:g}" + (f" {mix}" if mix else "")
            error.add_note(f"{life.plan}\nreplay with: {command}")
            raise
        finally:
            logging.getLogger("insync").removeHandler(handler)


def main(arguments: list[str]) -> None:
    seed, seconds, mix = [*arguments, *[""] * 3][:3]
    print(*live(int(seed), float(seconds or SECONDS), mix or None))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
