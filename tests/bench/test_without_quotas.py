from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from bench import without_quotas
from bench.without_quotas import CUTS, StaleCut, source_without

DATA_PATH = {
    "insync.broker.fetch_sessions": ("on_news", "told"),
    "insync.broker.fetch": ("look", "_look", "_in_order", "_read_one", "_read_now", "_note_fetch"),
    "insync.broker.follower_fetch": ("_run", "_fetch", "_came", "_poke"),
}
OF_QUOTAS = {
    "passage", "quota", "_quota", "_treated", "_through", "limited", "is_limited", "is_held_back",
    "_held_back", "_reserved", "_take_turns", "_count", "_end_reservations",
}  # fmt: skip


@pytest.mark.parametrize("module", CUTS)
def test_nothing_of_the_quota_is_left_where_data_passes(module: str) -> None:
    functions = {
        each.name: each
        for each in ast.walk(ast.parse(source_without(module)))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name in DATA_PATH[module]:
        words = {
            getattr(each, "attr", getattr(each, "id", getattr(each, "arg", None)))
            for each in ast.walk(functions[name])
        }
        assert not words & OF_QUOTAS, f"{module}: {name}"


def test_a_cut_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CUTS, "insync.broker.fetch", [("no such line", "")])
    with pytest.raises(StaleCut, match=r"insync\.broker\.fetch does not say once: no such line"):
        source_without("insync.broker.fetch")


def test_whoever_imports_it_finds_the_cut_module() -> None:
    script = """
from bench.without_quotas import CUTS, load_without
for module in CUTS:
    load_without(module)
from insync.broker import fetch
from insync.node.node import Fetch, FollowerFetchers
assert Fetch is fetch.Fetch
assert "passage" not in fetch.Look.__slots__
import insync.broker.follower_fetch as fetchers
assert "_take_turns" not in fetchers._Fetcher._poke.__code__.co_names
assert FollowerFetchers is fetchers.FollowerFetchers
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=without_quotas.__file__.rpartition("/bench/")[0],
    )
    assert done.returncode == 0, done.stderr
