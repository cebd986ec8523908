"""The in-sync set between decision and commitment: the design's maximal ISR, KIP-497 before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.isr import (
    Expanding,
    Isr,
    Shrinking,
    Stable,
    committed,
    expand,
    maximal,
    proposed,
    settled,
    shrink,
)
from insync.rules.values import BrokerId
from support.rules.partition_states import BROKERS, among


@pytest.mark.parametrize(
    ("isr", "is_committed", "is_maximal", "is_proposed"),
    [
        (Stable(among(1, 2)), among(1, 2), among(1, 2), among(1, 2)),
        (Expanding(among(1, 2), BrokerId(3)), among(1, 2), among(1, 2, 3), among(1, 2, 3)),
        (Shrinking(among(1, 2, 3), among(2, 3)), among(1, 2, 3), among(1, 2, 3), among(1)),
    ],
)
def test_kip_497_the_maximal_isr_includes_a_pending_expand_and_ignores_a_pending_shrink(
    isr: Isr,
    is_committed: frozenset[BrokerId],
    is_maximal: frozenset[BrokerId],
    is_proposed: frozenset[BrokerId],
) -> None:
    assert committed(isr) == is_committed
    assert maximal(isr) == is_maximal
    assert proposed(isr) == is_proposed


def test_a_change_starts_from_a_settled_set() -> None:
    assert expand(settled(among(1)), BrokerId(2)) == Expanding(among(1), BrokerId(2))
    assert shrink(settled(among(1, 2)), among(2)) == Shrinking(among(1, 2), among(2))


@pytest.mark.parametrize(
    "pending", [Expanding(among(1, 2), BrokerId(3)), Shrinking(among(1, 2), among(2))]
)
def test_kafka_single_in_flight_one_change_at_a_time(pending: Isr) -> None:
    with pytest.raises(AssertionError, match="one change at a time"):
        expand(pending, BrokerId(4))
    with pytest.raises(AssertionError, match="one change at a time"):
        shrink(pending, among(1))


def test_a_member_cannot_join() -> None:
    with pytest.raises(AssertionError, match="cannot join"):
        expand(Stable(among(1, 2)), BrokerId(2))


@pytest.mark.parametrize(
    ("leaving", "message"),
    [
        (among(), "a shrink removes at least one replica"),
        (among(3), "only members leave"),
        (among(1, 2), "never all of them"),
    ],
)
def test_a_shrink_takes_some_members_and_not_all(
    leaving: frozenset[BrokerId], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        shrink(Stable(among(1, 2)), leaving)


def test_an_isr_is_never_empty() -> None:
    with pytest.raises(AssertionError, match="never empty"):
        settled(among())


@st.composite
def changes(draw: st.DrawFn) -> tuple[Isr, list[frozenset[BrokerId]]]:
    """An ISR, and each set that may turn out to be the one the store holds."""
    members = draw(st.frozensets(st.sampled_from(BROKERS), min_size=1))
    stable = settled(members)
    outside = sorted(set(BROKERS) - members)
    kind = draw(st.sampled_from(["stable", "expanding", "shrinking"]))
    if kind == "expanding" and outside:
        joining = draw(st.sampled_from(outside))
        return expand(stable, joining), [members, frozenset([*members, joining])]
    if kind == "shrinking" and len(members) > 1:
        leaving = draw(
            st.frozensets(st.sampled_from(sorted(members)), min_size=1, max_size=len(members) - 1)
        )
        stay = frozenset(broker for broker in members if broker not in leaving)
        return shrink(stable, leaving), [members, stay]
    return stable, [members]


@pytest.mark.property
@given(changes())
def test_design_the_maximal_isr_contains_every_set_that_may_be_the_true_one(
    change: tuple[Isr, list[frozenset[BrokerId]]],
) -> None:
    isr, possible = change
    assert committed(isr) == possible[0]
    assert proposed(isr) == possible[-1]
    assert all(maximal(isr) >= members for members in possible)
    assert maximal(isr) == frozenset().union(*possible), "and no other broker"
