from __future__ import annotations

import math
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench import report
from bench.__main__ import Record, chosen_trials
from bench.figures import FIGURES
from bench.loads import percentile
from bench.sides import APACHE_KAFKA, INSYNC
from bench.trials import TRIALS
from insync.rules.refusals import Refusal


def test_every_figure_has_a_trial_and_a_name_of_its_own() -> None:
    assert {figure.trial for figure in FIGURES} == set(TRIALS)
    assert len({figure.key for figure in FIGURES}) == len(FIGURES)


def test_trials_are_chosen_by_their_name_or_a_figures() -> None:
    assert chosen_trials("") == list(TRIALS)
    assert chosen_trials("latency-p99,consume") == ["produce", "latency"]
    with pytest.raises(Refusal, match="no figure is called latncy"):
        chosen_trials("latncy")


@given(values=st.lists(st.floats(0, 10), min_size=1), percent=st.sampled_from([50, 99]))
def test_percentile_is_the_smallest_value_that_covers_so_many(
    values: list[float], percent: int
) -> None:
    enough = math.ceil(len(values) * percent / 100)
    assert percentile(values, percent) == min(
        value for value in values if sum(other <= value for other in values) >= enough
    )


def test_the_table_tells_medians_ratio_spread_and_verdict() -> None:
    record = Record()
    for pair, (ours, theirs) in enumerate([(130.0, 100.0), (90.0, 60.0), (200.0, 100.0)]):
        record.add(INSYNC, pair, {"produce": ours})
        record.add(APACHE_KAFKA, pair, {"produce": theirs})
    shown = StringIO()
    Console(width=160, file=shown).print(report.table(FIGURES, record.samples()))
    rows = {line.split("  ")[0]: line.split() for line in shown.getvalue().splitlines()}
    assert rows["produce, 1 KiB"][3:] == (
        ["130", "100", "MB/s", "1.50x", "1.30-2.00", ">=", "1.2x", "reached"]
    )
    assert rows["produce, 100 B"][-1] == "-", "what was not measured has no verdict"


def test_three_digits_that_mean_something() -> None:
    assert [report.number(value) for value in (None, 0.012345, 1.5, 99.96, 1234.5)] == (
        ["-", "0.0123", "1.5", "100", "1234"]
    )
