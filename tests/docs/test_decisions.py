"""docs/decisions: every decision has its four paragraphs, and names tests that exist."""

from __future__ import annotations

import ast
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
PARAGRAPHS = ("Context", "Decision", "Consequence", "Test")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def sections() -> list[tuple[str, str]]:
    """Each decision as file and heading, and its text."""
    sections_of_files = []
    for path in sorted(DECISIONS.glob("*.md")):
        _, *texts = re.split(r"(?m)^### ", path.read_text())
        for text in texts:
            heading, _, body = text.partition("\n")
            sections_of_files.append((f"{path.name}: {heading}", re.split(r"(?m)^## ", body)[0]))
    return sections_of_files


@cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def problem_of(path: str, name: str) -> str | None:
    if not (ROOT / path).exists():
        return f"there is no {path}"
    if name in functions_in(path):
        return None
    close = get_close_matches(name, functions_in(path), n=1, cutoff=0.0)
    return f"{path} has no {name}; the closest name is {', '.join(close)}"


@pytest.mark.parametrize(("heading", "body"), sections(), ids=[each[0] for each in sections()])
def test_a_decision_has_its_paragraphs_in_order(heading: str, body: str) -> None:
    assert tuple(re.findall(r"(?m)^\*\*(\w+)\.\*\* \S", body)) == PARAGRAPHS, heading


def test_every_test_that_a_decision_names_exists() -> None:
    named = [match for _, body in sections() for match in TEST.findall(body)]
    assert len(named) > 50
    problems = [problem for path, name in named if (problem := problem_of(path, name))]
    assert not problems, "\n" + "\n".join(problems)


def test_a_decision_names_tests_or_says_that_there_is_none() -> None:
    for heading, body in sections():
        tests, _, missing = " ".join(body.partition("**Test.** ")[2].split()).partition("; ")
        names = [name.strip() for name in tests.split(",")]
        assert tests == "none" or all(TEST.fullmatch(name) for name in names), heading
        assert re.fullmatch(r"(none for .+)?", missing), heading


def test_every_subject_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (DECISIONS / "README.md").read_text()))
    assert listed == {path.name for path in DECISIONS.glob("*.md")} - {"README.md"}
