"""KAFKA-4485's four guarantees, and nothing acknowledged lost, over random partition histories.

Twice over one model (`partition_model.py`): Hypothesis finds and shrinks short histories, and
seeded walks go much further than it can.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from insync.rules.policy import Policy
from insync.rules.values import BrokerId
from support.rules.partition_model import POLICIES, REPLICAS, PartitionWorld
from support.search_effort import times

brokers = st.sampled_from(REPLICAS)


class PartitionHistory(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        self.world = PartitionWorld(policy)

    @rule(count=st.integers(1, 7))
    def append(self, count: int) -> None:
        self.world.append(count)

    @rule(broker=brokers, taken=st.sampled_from((1, 1_000)))
    def fetch(self, broker: BrokerId, taken: int) -> None:
        self.world.fetch(broker, taken)

    @rule(broker=brokers)
    def read_begins(self, broker: BrokerId) -> None:
        self.world.read_begins(broker)

    @rule(broker=brokers, taken=st.sampled_from((1, 2, 1_000)))
    def read_is_served(self, broker: BrokerId, taken: int) -> None:
        self.world.read_is_served(broker, taken)

    @rule(broker=brokers)
    def connection_closes(self, broker: BrokerId) -> None:
        self.world.connection_closes(broker)

    @rule(by_ms=st.sampled_from((1, 5, 30, 99, 100, 101, 250)))
    def time_passes(self, by_ms: int) -> None:
        self.world.time_passes(by_ms)

    @rule(stall_ms=st.sampled_from((100, 150, 400)))
    def leader_stalls(self, stall_ms: int) -> None:
        self.world.leader_stalls(stall_ms)

    @rule(is_answered=st.booleans())
    def store_takes_the_change(self, is_answered: bool) -> None:  # noqa: FBT001
        self.world.store_takes_the_change(is_answered=is_answered)

    @rule()
    def leader_reads_store(self) -> None:
        self.world.leader_reads_store()

    @rule()
    def leader_reads_the_same_state_again(self) -> None:
        self.world.leader_reads_the_same_state_again()

    @rule(broker=brokers)
    def broker_dies(self, broker: BrokerId) -> None:
        self.world.broker_dies(broker)

    @rule(broker=brokers)
    def broker_returns(self, broker: BrokerId) -> None:
        self.world.broker_returns(broker)

    @rule(broker=brokers)
    def broker_restarts_at_once(self, broker: BrokerId) -> None:
        self.world.broker_restarts_at_once(broker)

    @rule(broker=brokers)
    def session_fetches(self, broker: BrokerId) -> None:
        self.world.session_fetches(broker)

    @rule(broker=brokers)
    def session_lists(self, broker: BrokerId) -> None:
        self.world.session_lists(broker)

    @rule(order=st.permutations(REPLICAS), count=st.integers(1, 4))
    def move_starts(self, order: list[BrokerId], count: int) -> None:
        self.world.move_starts(tuple(order[:count]))

    @rule()
    def move_completes(self) -> None:
        self.world.move_completes()

    @rule()
    def move_is_cancelled(self) -> None:
        self.world.move_is_cancelled()

    @invariant()
    def everything_holds(self) -> None:
        self.world.check()


TestPartitionHistory = PartitionHistory.TestCase
TestPartitionHistory.pytestmark = [pytest.mark.property]  # type: ignore[attr-defined]

HISTORIES = times(quick=15, thorough=700, exhaustive=3_000)
STEPS = 250


Action = Callable[[PartitionWorld, Random, BrokerId], None]


def _store(world: PartitionWorld, random: Random, _broker: BrokerId) -> None:
    world.store_takes_the_change(is_answered=random.random() < 0.7)
    if random.random() < 0.5:
        world.leader_reads_store()


def _move(world: PartitionWorld, random: Random, _broker: BrokerId) -> None:
    match random.randrange(8):
        case 0:
            world.move_starts(tuple(random.sample(REPLICAS, random.randint(1, 4))))
        case 1:
            world.move_is_cancelled()
        case _:
            world.move_completes()


ACTIONS: dict[Action, int] = {  # and how often
    lambda world, random, _: world.append(random.randint(1, 7)): 22,
    lambda world, random, broker: world.fetch(broker, random.choice((1, 3, 1_000, 1_000))): 34,
    lambda world, _, broker: world.read_begins(broker): 8,
    lambda world, random, broker: world.read_is_served(broker, random.choice((1, 1_000))): 8,
    lambda world, _, broker: world.connection_closes(broker): 2,
    lambda world, random, _: world.time_passes(random.choice((1, 2, 5, 20, 40, 99, 101))): 14,
    _store: 12,
    lambda world, _random, _: world.leader_reads_the_same_state_again(): 2,
    lambda world, random, _: world.leader_stalls(random.choice((100, 150, 400))): 2,
    lambda world, _, broker: world.session_fetches(broker): 6,
    lambda world, _, broker: world.session_lists(broker): 1,
    lambda world, _, broker: world.broker_dies(broker): 2,
    lambda world, _, broker: world.broker_returns(broker): 2,
    lambda world, _, broker: world.broker_restarts_at_once(broker): 1,
    _move: 3,
}


def walk(policy: Policy, seed: int) -> None:
    """One seed is one history: call this with the seed that a failure names."""
    random = Random(seed)  # noqa: S311 - chance, not secrecy
    world = PartitionWorld(policy)
    for action in random.choices(tuple(ACTIONS), weights=tuple(ACTIONS.values()), k=STEPS):
        action(world, random, random.choice(REPLICAS))
        world.check()


@pytest.mark.property
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_random_histories_of_a_partition_keep_every_guarantee(policy: Policy) -> None:
    for seed in range(HISTORIES):
        try:
            walk(policy, seed)
        except AssertionError as error:
            raise AssertionError(f"replay with walk({policy!r}, {seed})") from error
