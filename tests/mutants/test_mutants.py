"""Every mutant is still a change of the source that compiles. `make test-mutants` measures them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mutants.measure import CHECK, SLICES, Finding, choose
from mutants.mutant import NOTHING, ROOT, SOURCE, DoesNotApply, Edit, Mutant
from mutants.planted import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_compiles(mutant: Mutant) -> None:
    for file, text in mutant.changed_files().items():
        assert text != (SOURCE / "insync" / file).read_text()
        compile(text, file, "exec")
    for finder in mutant.finders:
        assert (ROOT / finder).exists(), f"{mutant.name}: there is no {finder}"


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("before", ["no such line", "return"], ids=["gone", "ambiguous"])
def test_a_mutant_that_no_longer_applies_says_so(before: str) -> None:
    moved = replace(MUTANTS[0], edits=(Edit("rules/isr.py", before, "pass"),))
    with pytest.raises(DoesNotApply, match=f"{moved.name}: src/insync/rules/isr.py has this text"):
        moved.changed_files()


def test_a_mutant_is_planted_beside_the_work_tree(tmp_path: Path) -> None:
    mutant = MUTANTS[0]
    unchanged = {edit.file: (SOURCE / "insync" / edit.file).read_text() for edit in mutant.edits}
    mutant.plant(tmp_path)
    for file, text in unchanged.items():
        assert (SOURCE / "insync" / file).read_text() == text
        assert (tmp_path / "insync" / file).read_text() == mutant.changed_files()[file] != text


def test_every_mutant_is_in_one_slice() -> None:
    slices = [choose(None, number) for number in range(1, SLICES + 1)]
    names = sorted(mutant.name for measured in slices for mutant in measured)
    assert names == sorted(mutant.name for mutant in MUTANTS)


@pytest.mark.parametrize(
    ("lane", "found_runs", "expected"),
    [(CHECK, 2, None), (CHECK, 1, "1 of 20 runs find it"), (None, 20, "no test finds it")],
)
def test_a_protocol_mutant_survives_without_a_test_or_enough_runs(
    lane: str | None, found_runs: int, expected: str | None
) -> None:
    mutant = replace(MUTANTS[0], is_protocol=True)
    finding = Finding(mutant=mutant, lane=lane, found_runs=found_runs, runs=20)
    assert finding.survives == expected


def test_a_run_that_fails_without_a_bug_is_a_failure() -> None:
    assert Finding(mutant=NOTHING, runs=20).survives is None
    assert Finding(mutant=NOTHING, runs=20, found_runs=1).survives is not None
