"""Simulated runs of the default mix, on whatever source is first on the path. One line per run:

python tests/mutants/simulated_runs.py FIRST_SEED RUNS SECONDS [--until-found]
"""

from __future__ import annotations

import logging
import signal
import sys

from insync.sim.run import run_seed

RUN_ENDS_WITHIN_S = 120  # of real time: a planted bug may let a run go on for ever


class DoesNotEnd(Exception):
    pass


def _end_run(*_: object) -> None:
    raise DoesNotEnd


def main(first_seed: int, runs: int, seconds: float, *, until_found: bool) -> None:
    logging.disable(logging.INFO)  # warnings and errors are what a run collects
    logging.getLogger("insync").addHandler(logging.NullHandler())
    signal.signal(signal.SIGALRM, _end_run)
    for seed in range(first_seed, first_seed + runs):
        signal.alarm(RUN_ENDS_WITHIN_S)
        outcome = "passed"
        try:
            run_seed(seed, seconds, attempts_max=0)  # a smaller failing run is not needed
        except Exception as error:
            outcome = f"found {type(error).__name__}: {error}".splitlines()[0]
        signal.alarm(0)
        print(seed, outcome, flush=True)  # noqa: T201
        if until_found and outcome != "passed":
            return


if __name__ == "__main__":
    first_seed, runs, seconds = sys.argv[1:4]
    main(int(first_seed), int(runs), float(seconds), until_found="--until-found" in sys.argv)
