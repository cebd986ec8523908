"""Random steps of several stores are one history: a dict that applies it agrees with all."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.metadata.errors import Conflict
from insync.metadata.store import (
    Change,
    Check,
    CheckAbsent,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    Write,
)
from support.metadata.store_kinds import WORLDS, World, play, record_notifications, until

PATHS = ("/a", "/a/b", "/a-b", "/c")
# A version that is sometimes right: the tree is small and steps are few.
VERSIONS = st.integers(0, 2)
Model = dict[str, Entry]


@dataclass(frozen=True, slots=True)
class Round:
    """Steps begun at the same moment, one by each of several stores."""

    steps: tuple[tuple[Operation, ...], ...]
    in_turn: bool


VALUES = st.binary(max_size=2)
PATH = st.sampled_from(PATHS)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, PATH, VALUES),
    st.builds(Write, PATH, VALUES, VERSIONS),
    st.builds(Delete, PATH, st.none() | VERSIONS),
    st.builds(Check, PATH, st.none() | VERSIONS),
    st.builds(CheckAbsent, PATH),
)
STEPS = st.lists(
    OPERATIONS, min_size=1, max_size=3, unique_by=lambda operation: operation.path
).map(tuple)
ROUNDS = st.builds(Round, st.tuples(STEPS, STEPS, STEPS), st.booleans())


def follow(model: Model, step: Sequence[Operation]) -> list[Change] | None:
    """Apply a step to the model; None if it conflicts."""
    for operation in step:
        entry = model.get(operation.path)
        if isinstance(operation, Create | CheckAbsent):
            if entry is not None:
                return None
        elif entry is None or operation.version not in {None, entry.version}:
            return None
    changes = []
    for operation in step:
        path, before = operation.path, model.get(operation.path)
        if isinstance(operation, Check | CheckAbsent):
            continue
        if isinstance(operation, Delete):
            changes.append(Change(path, model.pop(path), None))
            continue
        version = 0 if before is None else before.version + 1
        model[path] = Entry(path, operation.value, version)
        changes.append(Change(path, before, model[path]))
    return changes


async def make(
    stores: Sequence[MetadataStore], this: Round
) -> list[tuple[int, tuple[Operation, ...]]]:
    """Begin the round's steps, and return those that were made with their revisions."""

    async def one(store: MetadataStore, step: tuple[Operation, ...]) -> int | None:
        try:
            return await store.commit(*step)
        except Conflict:
            return None

    begun = [one(store, step) for store, step in zip(stores, this.steps, strict=True)]
    answers = [await step for step in begun] if this.in_turn else await asyncio.gather(*begun)
    return [
        (revision, step)
        for revision, step in zip(answers, this.steps, strict=True)
        if revision is not None
    ]


@pytest.mark.property
@pytest.mark.parametrize("kind", sorted(WORLDS))
def test_all_stores_agree_with_a_dict_and_get_every_change_once(kind: str) -> None:
    # Three SQLite stores cost twenty times what three in memory do.
    @settings(max_examples=settings().max_examples // (1 if kind == "memory" else 4))
    @given(rounds=st.lists(ROUNDS, max_size=6))
    def search(rounds: list[Round]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            play(kind, Path(folder), lambda world: agree(world, rounds))

    search()


async def agree(world: World, rounds: list[Round]) -> None:
    stores = [await world.open() for _ in range(3)]
    received = [record_notifications(store) for store in stores]
    model: Model = {}
    expected: list[tuple[int, list[Change]]] = []
    newest = 0
    for this in rounds:
        made = await make(stores, this)
        for revision, step in sorted(made, key=lambda pair: pair[0]):
            newest += 1
            assert revision == newest, "revisions have no gaps and no doubles"
            changes = follow(model, step)
            assert changes is not None, f"{step} should have been refused"
            if changes:
                expected.append((revision, changes))
        if not made:  # the tree did not change, so the model must refuse each as well
            for step in this.steps:
                assert follow(dict(model), step) is None, f"{step} should have been made"
    await until(lambda: all(store.revision == newest for store in stores), deadline_s=2)
    late = await world.open()  # reads the tree itself, not its changes
    assert dict(late.snapshot()) == model
    for store, notified in zip(stores, received, strict=True):
        assert dict(store.snapshot()) == model
        assert notified == expected
