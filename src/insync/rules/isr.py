"""The ISR between a leader's decision and its commitment.

The leader decides which replicas are in sync, but its decision counts only once the metadata store
has committed it. Until then a crash may leave either set behind, so a record is committed only
when every set that may turn out to be the ISR has it. A pending shrink still counts the replicas
that leave; a pending expand already counts the replica that joins. That is the maximal ISR.

A pending change builds on one version of the partition state. While that version is in force the
store may still commit the change; any later version settles it, whichever broker wrote it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from insync.rules.values import BrokerId


@dataclass(frozen=True, slots=True)
class Stable:
    """No change is pending: the ISR is what the partition state says."""

    members: frozenset[BrokerId]
    version: int = 0  # of the partition state that the leader read last


@dataclass(frozen=True, slots=True)
class Expanding:
    """The leader proposed to add one replica."""

    members: frozenset[BrokerId]
    joining: BrokerId
    version: int = 0  # of the partition state that the proposal builds on


@dataclass(frozen=True, slots=True)
class Shrinking:
    """The leader proposed to remove some members."""

    members: frozenset[BrokerId]
    leaving: frozenset[BrokerId]
    version: int = 0  # of the partition state that the proposal builds on


Isr = Stable | Expanding | Shrinking
IsrChange = Expanding | Shrinking


def committed(isr: Isr) -> frozenset[BrokerId]:
    """The ISR that the store is known to have held last; min ISR is compared with it."""
    return isr.members


def maximal(isr: Isr) -> frozenset[BrokerId]:
    """The replicas that a record needs to be committed, whatever becomes of a pending change."""
    return isr.members | {isr.joining} if isinstance(isr, Expanding) else isr.members


def proposed(isr: Isr) -> frozenset[BrokerId]:
    """The ISR that the leader has proposed to the store."""
    return isr.members - isr.leaving if isinstance(isr, Shrinking) else maximal(isr)


def expand(isr: Isr, joining: BrokerId) -> Expanding:
    assert isinstance(isr, Stable), "one change at a time"
    assert joining not in isr.members, "a member cannot join"
    return Expanding(isr.members, joining, isr.version)


def shrink(isr: Isr, leaving: AbstractSet[BrokerId]) -> Shrinking:
    assert isinstance(isr, Stable), "one change at a time"
    assert leaving, "a shrink removes at least one replica"
    assert leaving < isr.members, "only members leave, and never all of them"
    return Shrinking(isr.members, frozenset(leaving), isr.version)


def settled(members: AbstractSet[BrokerId], version: int = 0) -> Stable:
    """The ISR as the partition state has it, at its version."""
    assert members, "an ISR is never empty"
    return Stable(frozenset(members), version)
