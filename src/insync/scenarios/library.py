"""The documented scenarios that come with Insync, by name."""

from __future__ import annotations

from importlib import resources
from typing import Final

from insync.scenarios import membership, quota
from insync.scenarios.text import BadScenario, Scenario, parse
from insync.scenarios.timeline import Timeline

ABOUT: Final = {"membership": membership.play, "quota": quota.play}


def names() -> tuple[str, ...]:
    folder = resources.files("insync.scenarios").joinpath("texts")
    return tuple(
        sorted(
            entry.name.removesuffix(".txt")
            for entry in folder.iterdir()
            if entry.name.endswith(".txt")
        )
    )


def names_from(beginning: str) -> list[str]:
    return [name for name in names() if name.startswith(beginning)]


def load(name: str) -> Scenario:
    if name not in names():
        raise BadScenario(f"there is no scenario {name!r}; 'insync explain' lists them")
    path = resources.files("insync.scenarios").joinpath("texts", f"{name}.txt")
    return parse(name, path.read_text(encoding="utf-8"))


def matching(prefix: str) -> tuple[str, ...]:
    """The scenario of this name, or all whose names begin with it: `kip-16` is four of them."""
    if prefix in names():
        return (prefix,)
    return tuple(name for name in names() if name.startswith(f"{prefix}-"))


def play(scenario: Scenario) -> Timeline:
    about = scenario.setting("about", "membership")
    if about not in ABOUT:
        known = ", ".join(ABOUT)
        raise BadScenario(f"{scenario.name}: about is {about!r}; use {known}")
    return ABOUT[about](scenario)
