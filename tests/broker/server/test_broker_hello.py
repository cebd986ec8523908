"""A caller that claims to be a broker proves it once, with a nonce; otherwise it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from kio.schema.errors import ErrorCode

from insync.sim.cluster import Cluster
from insync.wire.hello import NONCE_BYTES, PROOF_BYTES, proof
from support.sim.few_brokers import node_of, play
from support.sim.hello_client import Caller, caller_of, secret_of

REFUSED = ErrorCode.cluster_authorization_failed
ANOTHER_SECRET = b"the secret of another cluster"

Scenario = Callable[[Cluster, Caller, int], Awaitable[None]]


def play_with_caller(scenario: Scenario) -> None:
    """A connection to broker 1 that claims to be broker 2, in its current incarnation."""

    async def run_with_caller(cluster: Cluster) -> None:
        caller = await caller_of(cluster, 1)
        await scenario(cluster, caller, node_of(cluster, 2).replicas.incarnation)

    play(run_with_caller)


def test_only_a_broker_that_knows_the_secret_is_accepted() -> None:
    async def scenario(cluster: Cluster, caller: Caller, incarnation: int) -> None:
        assert await caller.fetch(2, incarnation) is REFUSED
        assert await caller.prove(secret_of(cluster), 2, incarnation) is ErrorCode.none
        assert await caller.fetch(2, incarnation) is ErrorCode.none
        assert await caller.fetch(3, incarnation) is REFUSED, "it proved to be another"
        other = await caller_of(cluster, 1)
        assert await other.fetch(2, incarnation) is REFUSED, "each connection for itself"

    play_with_caller(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda nonce, incarnation: proof(ANOTHER_SECRET, nonce, 2, incarnation),
        lambda _nonce, _incarnation: bytes(PROOF_BYTES),
    ],
    ids=["of another secret", "made up"],
)
def test_a_wrong_proof_is_refused(wrong: Callable[[bytes, int], bytes]) -> None:
    async def scenario(_cluster: Cluster, caller: Caller, incarnation: int) -> None:
        nonce = await caller.nonce(2, incarnation)
        assert await caller.offer(wrong(nonce, incarnation), 2, incarnation) is REFUSED
        assert await caller.fetch(2, incarnation) is REFUSED

    play_with_caller(scenario)


@pytest.mark.parametrize("proven", [(3, 0), (2, 1)], ids=["another broker", "another incarnation"])
def test_a_proof_for_another_broker_or_incarnation_is_refused(proven: tuple[int, int]) -> None:
    async def scenario(cluster: Cluster, caller: Caller, incarnation: int) -> None:
        broker, later = proven
        nonce = await caller.nonce(2, incarnation)
        theirs = proof(secret_of(cluster), nonce, broker, incarnation + later)
        assert await caller.offer(theirs, 2, incarnation) is REFUSED
        assert await caller.fetch(2, incarnation) is REFUSED

    play_with_caller(scenario)


def test_a_nonce_is_accepted_for_one_attempt() -> None:
    """After a wrong proof the right one comes too late; a new nonce is a new try."""

    async def scenario(cluster: Cluster, caller: Caller, incarnation: int) -> None:
        nonce = await caller.nonce(2, incarnation)
        right = proof(secret_of(cluster), nonce, 2, incarnation)
        assert await caller.offer(bytes(PROOF_BYTES), 2, incarnation) is REFUSED
        assert await caller.offer(right, 2, incarnation) is REFUSED
        assert await caller.fetch(2, incarnation) is REFUSED
        assert await caller.prove(secret_of(cluster), 2, incarnation) is ErrorCode.none
        assert await caller.fetch(2, incarnation) is ErrorCode.none

    play_with_caller(scenario)


def test_a_proof_is_accepted_once_and_on_its_own_connection() -> None:
    """An eavesdropper cannot replay it, neither on that connection nor on another."""

    async def scenario(cluster: Cluster, caller: Caller, incarnation: int) -> None:
        nonce = await caller.nonce(2, incarnation)
        seen_proof = proof(secret_of(cluster), nonce, 2, incarnation)
        assert await caller.offer(seen_proof, 2, incarnation) is ErrorCode.none
        assert await caller.offer(seen_proof, 2, incarnation) is REFUSED
        thief = await caller_of(cluster, 1)
        assert await thief.offer(seen_proof, 2, incarnation) is REFUSED, "it was given no nonce"
        assert await thief.nonce(2, incarnation) != nonce
        assert await thief.offer(seen_proof, 2, incarnation) is REFUSED, "of another nonce"
        assert await thief.fetch(2, incarnation) is REFUSED

    play_with_caller(scenario)


def test_a_proof_without_a_nonce_is_refused() -> None:
    async def scenario(cluster: Cluster, caller: Caller, incarnation: int) -> None:
        made_up = proof(secret_of(cluster), bytes(NONCE_BYTES), 2, incarnation)
        assert await caller.offer(made_up, 2, incarnation) is REFUSED
        assert await caller.fetch(2, incarnation) is REFUSED

    play_with_caller(scenario)


@pytest.mark.parametrize(
    ("broker", "later"),
    [(9, 0), (2, -1), (2, 1), (3, 0)],
    ids=[
        "unknown broker",
        "former incarnation",
        "later incarnation",
        "incarnation of another broker",
    ],
)
def test_an_unregistered_broker_is_refused_even_with_the_secret(broker: int, later: int) -> None:
    async def scenario(cluster: Cluster, caller: Caller, incarnation: int) -> None:
        claimed = incarnation + later
        assert await caller.prove(secret_of(cluster), broker, claimed) is REFUSED
        assert await caller.fetch(broker, claimed) is REFUSED
        assert await caller.fetch(2, incarnation) is REFUSED

    play_with_caller(scenario)
