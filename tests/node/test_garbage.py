"""Collections of a broker's garbage: how much they visit, and that all garbage goes in the end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from insync.node.garbage import collect_all, short_collections

PARTITIONS = 20_000


class Node:
    """One object of a cycle."""

    def __init__(self) -> None:
        self.other: Node = self


@pytest.fixture
def collections() -> Iterator[None]:
    with short_collections():
        yield


@pytest.mark.usefixtures("collections")
def test_a_full_collection_does_not_visit_what_survived_the_one_before() -> None:
    partitions = [Node() for _ in range(PARTITIONS)]
    gc.collect()
    assert gc.get_freeze_count() > PARTITIONS
    young = [Node() for _ in range(100)]
    visited = {id(each) for each in gc.get_objects()}
    assert not visited & {id(each) for each in partitions}
    assert visited >= {id(each) for each in young}


@pytest.mark.usefixtures("collections")
def test_an_automatic_full_collection_freezes_too() -> None:
    before = gc.get_freeze_count()
    partitions: list[Any] = []
    while gc.get_freeze_count() <= before:
        assert len(partitions) < 1_000_000, "no full collection"
        partitions += [Node() for _ in range(1_000)]
    assert gc.get_freeze_count() >= before + 10_000


@pytest.mark.usefixtures("collections")
def test_garbage_that_was_frozen_goes_when_all_is_collected() -> None:
    node = Node()
    is_alive = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert is_alive() is not None, "a full collection leaves frozen objects out"
    collect_all()
    assert is_alive() is None


def test_afterwards_the_collector_is_as_it_was() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    with short_collections():
        gc.collect()
    assert (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()) == (*before, 0)
