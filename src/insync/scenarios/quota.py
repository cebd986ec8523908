"""Plays a scenario about KIP-73's quota.

| column          | is                                                                     |
|-----------------|------------------------------------------------------------------------|
| `window`        | the sampled rate and whether it exceeds the quota                      |
| `as-released`   | admission that holds every throttled replica back, in sync or not      |
| `amended`       | admission with KAFKA-4313: in-sync replicas pass, and are counted      |

| step                      | means                                                         |
|---------------------------|---------------------------------------------------------------|
| `measure`                 | the rate is read, which rolls the window                      |
| `record BYTES`            | throttled bytes are recorded                                  |
| `batch P BYTES in-sync`   | a throttled batch of partition P, for an in-sync replica ...  |
| `batch P BYTES behind`    | ... or for one that is behind, asks to go                     |
| `expect COLUMN key=value` | `rate` (two decimals), `exceeded`, `passed`, `credit` (bytes) |
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from insync.rules.quota_bucket import Bucket
from insync.rules.quota_window import SAMPLE_MS_DEFAULT, SAMPLES_DEFAULT, QuotaWindow
from insync.rules.throttling import Treatment, treatment
from insync.scenarios.text import BadScenario, Scenario, Step, Story
from insync.scenarios.timeline import (
    Cell,
    CellPart,
    Mood,
    Row,
    RowKind,
    Timeline,
    judged,
    timeline_of,
)


class QuotaColumn(Protocol):
    def apply(self, step: Step) -> None: ...
    def cell(self, now_ms: int) -> Cell: ...


class WindowColumn:
    def __init__(self, scenario: Scenario) -> None:
        self.quota_bytes_per_s = scenario.number("quota-bytes-per-s", 0)
        self.window = QuotaWindow(
            samples_max=scenario.number("window-samples", SAMPLES_DEFAULT),
            sample_ms=scenario.number("window-sample-ms", SAMPLE_MS_DEFAULT),
        )

    def apply(self, step: Step) -> None:
        if step.verb == "record":
            self.window = self.window.record(step.number(0, "bytes"), now_ms=step.at_ms)

    def cell(self, now_ms: int) -> Cell:
        self.window = self.window.measured(now_ms=now_ms)
        rate = f"{self.window.bytes_per_s(now_ms=now_ms):.2f}"
        is_exceeded = self.window.exceeds(self.quota_bytes_per_s, now_ms=now_ms)
        verdict = CellPart("exceeded", Mood.BAD) if is_exceeded else CellPart("within", Mood.GOOD)
        return Cell(
            parts=(CellPart(f"{rate} B/s"), verdict),
            values={"rate": rate, "exceeded": "yes" if is_exceeded else "no"},
        )


class AdmissionColumn:
    def __init__(self, scenario: Scenario, *, in_sync_pass: bool) -> None:
        rate = scenario.number("quota-bytes-per-s", 0)
        self.in_sync_pass = in_sync_pass
        self.bucket = Bucket(bytes_per_s=rate, at_ms=0)
        self.passed: bool | None = None

    def apply(self, step: Step) -> None:
        self.passed = None
        if step.verb != "batch":
            return
        size_bytes = step.number(1, "bytes")
        state = step.word(2, "in-sync or behind")
        if state not in ("in-sync", "behind"):
            raise step.refuse(f"a replica is in-sync or behind, not {state!r}")
        is_in_sync = state == "in-sync" and self.in_sync_pass
        match treatment(is_throttled=True, is_in_sync=is_in_sync):
            case Treatment.COUNTED:
                self.passed = True
                self.bucket = self.bucket.pass_in_sync(size_bytes, now_ms=step.at_ms)
            case _:
                self.passed = self.bucket.admits(size_bytes, now_ms=step.at_ms)
                if self.passed:
                    self.bucket = self.bucket.spend(size_bytes, now_ms=step.at_ms)

    def cell(self, now_ms: int) -> Cell:
        self.bucket = self.bucket.at(now_ms)
        credit_bytes = self.bucket.credit // 1_000
        parts = [CellPart(f"{credit_bytes} B left")]
        if self.passed is not None:
            passed = (
                CellPart("passes", Mood.GOOD) if self.passed else CellPart("held back", Mood.BAD)
            )
            parts.insert(0, passed)
        values = {"credit": str(credit_bytes), "passed": "yes" if self.passed else "no"}
        return Cell(parts=tuple(parts), values=values)


def play(scenario: Scenario) -> Timeline:
    columns = {name: _column(name, scenario) for name in scenario.columns}
    rows: list[Row] = []
    cells: dict[str, Cell] = {}
    for step in scenario.steps:
        if isinstance(step, Story):
            rows.append(Row(kind=RowKind.STORY, at_ms=None, text=step.text, cells={}))
        elif step.verb == "expect":
            rows.append(judged(step, cells, partial(_read_value, cells, step)))
        elif step.verb in ("measure", "record", "batch"):
            for column in columns.values():
                column.apply(step)
            cells = {name: column.cell(step.at_ms) for name, column in columns.items()}
            rows.append(Row(kind=RowKind.EVENT, at_ms=step.at_ms, text=str(step), cells=cells))
        else:
            raise step.refuse(f"nothing is called {step.verb!r} in a scenario about quotas")
    return timeline_of(scenario, rows)


def _column(name: str, scenario: Scenario) -> QuotaColumn:
    match name:
        case "window":
            return WindowColumn(scenario)
        case "as-released":
            return AdmissionColumn(scenario, in_sync_pass=False)
        case "amended":
            return AdmissionColumn(scenario, in_sync_pass=True)
        case _:
            raise BadScenario(f"there is no column {name!r} in a scenario about quotas")


def _read_value(cells: dict[str, Cell], step: Step, name: str, key: str) -> str:
    values = cells[name].values
    if key not in values:
        raise step.refuse(f"nothing is known of {key!r} in {name}; use {', '.join(values)}")
    return str(values[key])
