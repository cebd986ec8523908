"""A scenario is a text that a reviewer can argue with.

    title     A pending fetch keeps its follower in sync
    document  KIP-501, "Example"
    columns   caught-up pending-reads
    lag-time-max-ms 10000

    | A note for the reader.
    0      append 1002
    300    fetch 1002 offset=950
    10301  expect caught-up isr=1001

Settings first, one a line; then steps, each `milliseconds verb words key=value ...`, in time
order. `100..900/50` repeats a step from 100 to 900 every 50 ms. `#` starts a comment. The player of
the scenario (`about`) defines the verbs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from insync.rules.refusals import Refusal

STEPS_MAX: Final = 10_000  # a file with more is not a scenario
AT_MS_MAX: Final = 10**12

SETTINGS: Final = frozenset(
    {"title", "document", "about", "columns"}
    | {"replicas", "isr", "lag-time-max-ms", "lag-max-messages", "fetch-wait-max-ms"}
    | {"process-time-max-ms", "resign-cooldown-ms"}
    | {"quota-bytes-per-s", "window-samples", "window-sample-ms"}
)

_TIME = re.compile(r"([0-9]+)(?:\.\.([0-9]+)/([0-9]+))?")


class BadScenario(Refusal):
    """A scenario text that cannot be read or played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    line: int
    at_ms: int
    verb: str
    words: tuple[str, ...]
    values: Mapping[str, str]
    is_repeat: bool = False  # not the first of a repeated step

    def __str__(self) -> str:
        pairs = (f"{key}={value}" for key, value in self.values.items())
        return " ".join((self.verb, *self.words, *pairs))

    def refuse(self, why: str) -> BadScenario:
        return BadScenario(f"line {self.line}: {why}")

    def word(self, index: int, what: str) -> str:
        if index >= len(self.words):
            raise self.refuse(f"{self.verb} needs {what}")
        return self.words[index]

    def number(self, index: int, what: str) -> int:
        return self.integer(self.word(index, what), what)

    def value_number(self, key: str) -> int:
        if key not in self.values:
            raise self.refuse(f"{self.verb} needs {key}=NUMBER")
        return self.integer(self.values[key], key)

    def integer(self, text: str, what: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise self.refuse(f"{what} is {text!r}; write a whole number")
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    settings: Mapping[str, str]
    steps: tuple[Step | Story, ...] = field(default=())

    @property
    def title(self) -> str:
        return self.setting("title")

    @property
    def document(self) -> str:
        return self.setting("document")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.setting("columns").split())

    def setting(self, key: str, default: str | None = None) -> str:
        value = self.settings.get(key, default)
        if value is None:
            raise BadScenario(f"{self.name}: there is no line {key!r} before the first step")
        return value

    def number(self, key: str, default: int) -> int:
        text = self.setting(key, str(default))
        if not (text.isascii() and text.isdigit()):
            raise BadScenario(f"{self.name}: {key} is {text!r}; write a whole number")
        return int(text)


def parse(name: str, text: str) -> Scenario:
    settings: dict[str, str] = {}
    steps: list[Step | Story] = []
    latest_ms = 0
    for line, raw in enumerate(text.splitlines(), start=1):
        content = raw.strip()
        if not content or content.startswith("#"):
            continue
        if len(steps) >= STEPS_MAX:
            raise BadScenario(f"line {line}: a scenario has at most {STEPS_MAX} steps")
        if content.startswith("|"):
            note = content.removeprefix("|").strip()
            before = steps[-1] if steps else None
            if isinstance(before, Story):
                note = f"{before.text} {note}"
                steps.pop()
            steps.append(Story(line=line, text=note))
        elif content[0].isdigit():
            repeats = _steps(line, content)
            first_ms = repeats[0].at_ms
            if first_ms < latest_ms:
                raise repeats[0].refuse(f"time goes back from {latest_ms} to {first_ms}")
            latest_ms = first_ms
            steps.extend(repeats)
        elif any(isinstance(step, Step) for step in steps):
            raise BadScenario(f"line {line}: a step begins with its time, as in '100 append 10'")
        else:
            key, _, value = content.partition(" ")
            settings[key] = value.strip()
    scenario = Scenario(name=name, settings=settings, steps=_in_time_order(steps))
    _check_settings(scenario)
    return scenario


def _check_settings(scenario: Scenario) -> None:
    for required in ("title", "document", "columns"):
        scenario.setting(required)
    unknown = sorted(set(scenario.settings) - SETTINGS)
    if unknown:
        known = ", ".join(sorted(SETTINGS))
        raise BadScenario(f"{scenario.name}: there is no setting {unknown[0]!r}; use {known}")


def _steps(line: int, content: str) -> list[Step]:
    time, *rest = content.partition("#")[0].split()
    match = _TIME.fullmatch(time)
    if match is None:
        raise BadScenario(f"line {line}: {time!r} is neither a time nor a range like 100..900/50")
    first_ms, last_ms, every_ms = (int(text) if text else None for text in match.groups())
    assert first_ms is not None, "the pattern has a first number"
    if not rest:
        raise BadScenario(f"line {line}: nothing happens at {time}")
    if max(first_ms, last_ms or 0) > AT_MS_MAX or every_ms == 0:
        raise BadScenario(f"line {line}: {time!r} is out of range")
    moments = range(first_ms, (first_ms if last_ms is None else last_ms) + 1, every_ms or 1)
    if not 0 < len(moments) <= STEPS_MAX:
        raise BadScenario(f"line {line}: {time!r} is no range of at most {STEPS_MAX} steps")
    verb, *arguments = rest
    pairs = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    words = tuple(argument for argument in arguments if "=" not in argument)
    return [
        Step(
            line=line,
            at_ms=at_ms,
            verb=verb,
            words=words,
            values=pairs,
            is_repeat=at_ms != first_ms,
        )
        for at_ms in moments
    ]


def _in_time_order(steps: list[Step | Story]) -> tuple[Step | Story, ...]:
    """Repeated steps are sorted among the others; at the same time, lines keep their order.

    A story belongs to the step that follows it in the text.
    """
    keyed: list[tuple[tuple[int, int], Step | Story]] = []
    next_ms = AT_MS_MAX
    for step in reversed(steps):
        if isinstance(step, Step) and not step.is_repeat:
            next_ms = step.at_ms
        at_ms = step.at_ms if isinstance(step, Step) else next_ms
        keyed.append(((at_ms, step.line), step))
    return tuple(step for _, step in sorted(keyed, key=lambda pair: pair[0]))
