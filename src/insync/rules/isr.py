"""The in-sync set between a decision and its commitment.

The leader decides who is in sync, but the set counts only once the metadata store has taken it.
In between nobody knows which set a crash would leave behind, so a record is committed only when
*every* set that may turn out to be the true one holds it: a pending shrink still counts those
who leave, a pending expand already counts the one who joins. That is the maximal ISR.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from insync.rules.values import BrokerId


@dataclass(frozen=True, slots=True)
class Stable:
    """The store and the leader agree."""

    members: frozenset[BrokerId]


@dataclass(frozen=True, slots=True)
class Expanding:
    """The store was asked to let one replica in."""

    members: frozenset[BrokerId]
    joining: BrokerId


@dataclass(frozen=True, slots=True)
class Shrinking:
    """The store was asked to let some members go."""

    members: frozenset[BrokerId]
    leaving: frozenset[BrokerId]


Isr = Stable | Expanding | Shrinking


def committed(isr: Isr) -> frozenset[BrokerId]:
    """The set the store is known to have held last: what min ISR is compared with."""
    return isr.members


def maximal(isr: Isr) -> frozenset[BrokerId]:
    """Replicas a record needs to be committed: never fewer than any answer allows."""
    return isr.members | {isr.joining} if isinstance(isr, Expanding) else isr.members


def proposed(isr: Isr) -> frozenset[BrokerId]:
    """The set the leader has asked the store for."""
    return isr.members - isr.leaving if isinstance(isr, Shrinking) else maximal(isr)


def expand(isr: Isr, joining: BrokerId) -> Expanding:
    assert isinstance(isr, Stable), "one change at a time"
    assert joining not in isr.members, "a member cannot join"
    return Expanding(isr.members, joining)


def shrink(isr: Isr, leaving: AbstractSet[BrokerId]) -> Shrinking:
    assert isinstance(isr, Stable), "one change at a time"
    assert leaving, "a shrink needs somebody who leaves"
    assert leaving < isr.members, "only members leave, and never all of them"
    return Shrinking(isr.members, frozenset(leaving))


def settled(members: AbstractSet[BrokerId]) -> Stable:
    """What the store says now, whether it took our change, refused it or holds somebody else's.

    After a failed write the leader stays on its maximal ISR until it can say this.
    """
    assert members, "an ISR is never empty"
    return Stable(frozenset(members))
