"""Plant each mutant, and measure which tests find it and in how many simulated runs.

    make test-mutants                        all of them; writes the table in docs/mutants.md
    make test-mutants ONLY=NAME[,NAME]       these
    make test-mutants SLICE=3                a few; .ci/run lets the commit choose the slice

Each mutant is measured twice:

- By the tests of `make check`, and if they do not find it, by the property searches of `make test`.
  Likely finders run first, and the first failure ends the measurement.
- A protocol mutant also by simulated runs of the default mix. At least one in ten has to find it.

A mutant lives in a temporary folder that is first on the path of the measuring processes. The work
tree stays as it is, so that several can run side by side.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.mutant import NOTHING, ROOT, DoesNotApply, Mutant
from mutants.planted import MUTANTS

SLICES = 12
RUNS = 20
SECONDS = 20.0
RATE_MIN = 0.1
TABLE = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- table: written by make test-mutants -->\n", "<!-- end of table -->\n"

NO_OTHERS = "not process and not spark and not interop and not long"
CHECK, SEARCH = "check", "test"
NEAR = tuple(f"tests/{folder}" for folder in ("rules", "storage", "broker", "controller", "sim"))
TESTS_END_WITHIN_S = 600.0

_FIRST_FAILURE = re.compile(r"^(FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class NotMeasured(Exception):
    """The measurement itself failed: nothing can be said about the mutant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one mutant's measurement has shown."""

    mutant: Mutant
    lane: str | None = None  # `make` target whose tests find it
    test: str = ""
    found_runs: int = 0
    runs: int = 0
    until_found: bool = False  # the runs ended with the first that found it: no rate
    seconds: float = 0.0

    @property
    def survives(self) -> str | None:
        """Why the tests are not good enough; None if they are."""
        if self.mutant is NOTHING:
            return f"{self.found_runs} runs fail without a bug" if self.found_runs else None
        if self.lane is None:
            return "no test finds it"
        needed_runs = 1 if self.until_found else self.runs * RATE_MIN
        is_rare = self.mutant.is_protocol and self.runs and self.found_runs < needed_runs
        return f"{self.found_runs} of {self.runs} runs find it" if is_rare else None

    def line(self) -> str:
        verdict = f"SURVIVES: {self.survives}" if self.survives else "found"
        if self.mutant is NOTHING and self.survives is None:
            verdict = "passes"
        runs = f"; {self.found_runs} of {self.runs} runs" if self.runs else ""
        test = f"; {self.test}" if self.test else ""
        return f"{self.mutant.name}: {verdict}{test}{runs}; {self.seconds:.0f} s"


class Planted:
    """A mutant in its private folder, and the processes that measure it."""

    def __init__(self, mutant: Mutant, folder: Path, *, workers: int) -> None:
        self._mutant = mutant
        self._folder = folder
        self._workers = workers
        mutant.plant(folder)

    def first_failure(self) -> tuple[str, str] | None:
        """The lane and the first test that fails; None if none does."""
        finders = self._mutant.finders
        stages: list[tuple[str, Sequence[str], str]] = [
            (CHECK, finders, NO_OTHERS),
            (CHECK, NEAR, NO_OTHERS),
            (CHECK, ["tests", *(f"--ignore={folder}" for folder in NEAR)], NO_OTHERS),
            (SEARCH, NEAR, f"property and {NO_OTHERS}"),
        ]
        for lane, paths, marks in stages:
            if paths and (test := self._pytest(lane, paths, marks)) is not None:
                return lane, test
        return None

    def _pytest(self, lane: str, paths: Sequence[str], marks: str) -> str | None:
        profile = "quick" if lane == CHECK else "thorough"
        command = ["-m", "pytest", "-x", "-q", "--no-header", "--tb=no"]
        command += ["-p", "no:cacheprovider", "-p", "mutants.no_shrinking"]
        if self._workers > 1:
            command += ["-n", str(self._workers)]
        command += ["--ignore=tests/mutants", "-m", marks, *paths]
        try:
            result = self._run(command, TESTS_END_WITHIN_S, HYPOTHESIS_PROFILE=profile)
        except subprocess.TimeoutExpired:
            return "a test that does not end"
        if result.returncode in (0, 5):  # 5: none of these paths has a test of this lane
            return None
        failure = _FIRST_FAILURE.search(result.stdout)
        if failure is None or "::" not in failure[2]:
            output = (result.stdout + result.stderr)[-2_000:]
            raise NotMeasured(f"{self._mutant.name}: pytest did not run the tests\n{output}")
        return failure[2]

    def simulated_runs(self, runs: int, *, until_found: bool) -> tuple[int, int]:
        """How many runs find it, and how many there were."""
        script = ["tests/mutants/simulated_runs.py", "0", str(runs), str(SECONDS)]
        command = [*script, "--until-found"] if until_found else script
        result = self._run(command, None)
        if result.returncode:
            raise NotMeasured(f"{self._mutant.name}: no simulated runs\n{result.stderr[-2_000:]}")
        outcomes = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
        return sum(outcome[1] == "found" for outcome in outcomes), len(outcomes)

    def _run(
        self, command: Sequence[str], timeout_s: float | None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self._folder), str(ROOT / "tests"))),
            # Examples that an earlier mutant failed on would not say how hard they are to find.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
            "NUMBA_DISABLE_JIT": "1",
            **variables,
        }
        return subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def measure(
    mutant: Mutant, *, runs: int, until_found: bool, workers: int, tests: bool = True
) -> Finding:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="insync-mutant-") as folder:
        planted = Planted(mutant, Path(folder), workers=workers)
        # Without a bug, `make check` and `make test` say already that every test passes.
        is_tested = tests and mutant is not NOTHING
        lane, test = (planted.first_failure() if is_tested else None) or (None, "")
        found_runs, made_runs = 0, 0
        if runs and (mutant.is_protocol or mutant is NOTHING):
            found_runs, made_runs = planted.simulated_runs(runs, until_found=until_found)
    return Finding(
        mutant=mutant,
        lane=lane,
        test=test,
        found_runs=found_runs,
        runs=made_runs,
        until_found=until_found,
        seconds=time.monotonic() - began_s,
    )


def choose(only: str | None, slice_number: int | None) -> list[Mutant]:
    """The mutants to measure. A slice takes every twelfth, so that its mutants are unlike."""
    if only is None:
        if slice_number is None:
            return [NOTHING, *MUTANTS]
        return list(MUTANTS[(slice_number - 1) % SLICES :: SLICES])
    by_name = {mutant.name: mutant for mutant in (NOTHING, *MUTANTS)}
    names = only.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise SystemExit(f"no mutant {', '.join(unknown)}; there are: {', '.join(by_name)}")
    return [by_name[name] for name in names]


def table(findings: Sequence[Finding]) -> str:
    lines = ["| mutant | bug | found by | runs that find it |", "|---|---|---|---|"]
    for finding in findings:
        mutant = finding.mutant
        found_by = f"`{finding.test}`" if finding.lane else "nothing"
        if finding.lane == SEARCH:
            found_by += " (`make test`)"
        if mutant is NOTHING:
            found_by = "runs alone are measured"
        rate = f"{finding.found_runs} of {finding.runs}" if finding.runs else ""
        lines.append(f"| {mutant.name} | {mutant.title} | {found_by} | {rate} |")
    return "\n".join(lines) + "\n"


def write_table(findings: Sequence[Finding]) -> None:
    before, _, rest = TABLE.read_text().partition(BEGIN)
    TABLE.write_text(before + BEGIN + "\n" + table(findings) + "\n" + END + rest.partition(END)[2])


def results(mutants: Sequence[Mutant], options: argparse.Namespace) -> Iterator[Finding]:
    end_s = None if options.within_s is None else time.monotonic() + options.within_s
    runs = options.runs or (RUNS if options.slice is None else 0)  # a slice must be short
    for number, mutant in enumerate(mutants):
        if end_s is not None and time.monotonic() > end_s:
            say(f"the time is up: {', '.join(each.name for each in mutants[number:])} not measured")
            return
        yield measure(
            mutant,
            runs=runs,
            until_found=options.slice is not None,
            workers=options.workers,
            tests=not options.runs_only,
        )


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-mutants")
    parser.add_argument("--only", help="names of mutants, with commas")
    parser.add_argument("--slice", type=int, help=f"a few of them: 1 to {SLICES}, modulo {SLICES}")
    parser.add_argument("--runs", type=int, help=f"simulated runs of each (default: {RUNS})")
    parser.add_argument("--runs-only", action="store_true", help="measure simulated runs alone")
    parser.add_argument("--workers", type=int, default=1, help="pytest workers (default: 1)")
    parser.add_argument("--within-s", type=float, help="start no measurement after so many seconds")
    parser.add_argument("--write", action="store_true", help="write the table in docs/mutants.md")
    options = parser.parse_args()
    mutants = choose(options.only, options.slice)
    findings, surviving = [], 0
    try:
        for finding in results(mutants, options):
            findings.append(finding)
            surviving += finding.survives is not None
            say(finding.line())
    except (DoesNotApply, NotMeasured) as error:
        say(f"ERROR: {error}")
        return 2
    if options.write:
        write_table(findings)
    say(f"{len(findings)} measured, {surviving} survive")
    return 1 if surviving else 0


if __name__ == "__main__":
    sys.exit(main())
