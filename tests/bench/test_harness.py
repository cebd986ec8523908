from __future__ import annotations

import math
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import insync
from bench import report
from bench.__main__ import (
    PAIRS,
    PAIRS_QUICK,
    Record,
    between_trees,
    chosen_trials,
    contests,
    without_trees,
)
from bench.figures import FIGURES
from bench.loads import percentile
from bench.processes import resident_bytes
from bench.sides import APACHE_KAFKA, BROKERS, INSYNC, OTHER_TREE, WITHOUT_QUOTAS, WITHOUT_TELEMETRY
from bench.trials import PAIRS_OF, RIVALS, TREES, TRIALS
from bench.what_if import memory_of_all
from insync.rules.refusals import Refusal

INSYNC_SOURCE = Path(insync.__file__).parent


def test_every_figure_has_a_trial_and_a_name_of_its_own() -> None:
    assert {figure.trial for figure in FIGURES} == set(TRIALS)
    assert len({figure.key for figure in FIGURES}) == len(FIGURES)


def test_trials_are_chosen_by_their_name_or_a_figures() -> None:
    assert chosen_trials("") == list(TRIALS)
    assert chosen_trials("latency-p99,consume") == ["produce", "latency"]
    with pytest.raises(Refusal, match="no figure is called latncy"):
        chosen_trials("latncy")


def test_reduced_variants_of_insync_run_without_apache_kafka() -> None:
    chosen = contests(["produce", "telemetry"], with_kafka=False, pairs=0, is_quick=False)
    assert [each.contenders for each in chosen] == [(INSYNC,), (INSYNC, WITHOUT_TELEMETRY)]
    assert [each.pairs for each in chosen] == [PAIRS, PAIRS_OF["telemetry"]]
    beside = contests(["produce"], with_kafka=True, pairs=0, is_quick=False)
    assert beside[0].contenders == (INSYNC, APACHE_KAFKA)


def test_two_source_trees_are_compared_only_if_the_second_is_named() -> None:
    assert without_trees(chosen_trials(""), "") == [name for name in TRIALS if name != TREES]
    with pytest.raises(Refusal, match="say TREE_B=FOLDER"):
        without_trees([TREES], TREES)


@pytest.mark.process
def test_brokers_run_the_code_of_their_tree(tmp_path: Path) -> None:
    """The other tree is a copy of this one in which a broker says so when it starts."""
    tree = INSYNC_SOURCE.parent.parent
    shutil.copytree(INSYNC_SOURCE, tmp_path / "src" / "insync")
    with (tmp_path / "src/insync/node/__init__.py").open("a") as module:
        module.write("import sys\n\nsys.stderr.write('of another tree\\n')\n")
    (contest,) = contests([TREES], with_kafka=False, pairs=1, is_quick=True)
    assert contest.contenders == (INSYNC, OTHER_TREE)
    for contender, is_other in zip(
        between_trees(contest, tree, tmp_path).contenders, (False, True), strict=True
    ):
        with contender.cluster() as side:
            log = side.log_dir(1).with_suffix(".log").read_text()
            assert ("of another tree" in log) is is_other


@pytest.mark.process
def test_brokers_without_quotas_serve() -> None:
    with WITHOUT_QUOTAS.cluster() as side:
        assert len(side.pids) == BROKERS


def test_each_trial_has_its_default_number_of_pairs_unless_the_option_is_set() -> None:
    near_one = list(PAIRS_OF)
    for option, is_quick, pairs in [(9, False, 9), (9, True, 9), (0, True, PAIRS_QUICK)]:
        chosen = contests(near_one, with_kafka=False, pairs=option, is_quick=is_quick)
        assert {each.pairs for each in chosen} == {pairs}


def test_every_rival_has_a_name_and_a_trial() -> None:
    assert RIVALS.keys() <= TRIALS.keys()
    rivals = [INSYNC, APACHE_KAFKA, *dict.fromkeys(RIVALS.values())]
    assert len({each.name for each in rivals}) == len(rivals)


@pytest.mark.process
def test_the_memory_of_a_process_includes_its_child_processes() -> None:
    child = "import sys; held = b'x' * 30_000_000; print(flush=True); sys.stdin.read()"
    parent = (
        "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
        "stdin=subprocess.PIPE, stdout=subprocess.PIPE); c.stdout.readline();"
        "print(flush=True); sys.stdin.read(); c.communicate()"
    )
    command = [sys.executable, "-c", parent, child]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        alone = resident_bytes(Path(f"/proc/{process.pid}/status").read_text())
        assert memory_of_all(process.pid) > alone + 30_000_000
        process.communicate()
    assert memory_of_all(process.pid) == 0, "it has ended"


@given(values=st.lists(st.floats(0, 10), min_size=1), percent=st.sampled_from([50, 99]))
def test_a_percentile_is_the_smallest_value_that_covers_that_share(
    values: list[float], percent: int
) -> None:
    enough = math.ceil(len(values) * percent / 100)
    assert percentile(values, percent) == min(
        value for value in values if sum(other <= value for other in values) >= enough
    )


def test_the_table_has_medians_ratio_spread_and_verdict() -> None:
    record = Record()
    for pair, (ours, theirs) in enumerate([(130.0, 100.0), (90.0, 60.0), (200.0, 100.0)]):
        record.add(INSYNC, pair, {"produce": ours})
        record.add(APACHE_KAFKA, pair, {"produce": theirs})
    record.add(INSYNC, 1, {"telemetry-cpu": 5.2})
    record.add(WITHOUT_TELEMETRY, 1, {"telemetry-cpu": 5.0})
    record.add(APACHE_KAFKA, 1, {"telemetry-cpu": 99.0})
    shown = StringIO()
    Console(width=160, file=shown).print(report.table(FIGURES, record.samples()))
    rows = {line.split("  ")[0]: line.split() for line in shown.getvalue().splitlines()}
    assert rows["produce, 1 KiB"][3:] == (
        ["130", "100", "MB/s", "Apache", "Kafka", "1.50x", "1.30-2.00", ">=", "1.2x", "reached"]
    )
    assert rows["produce, CPU of all, telemetry on"][6:] == (
        ["5.2", "5", "s/GB", "telemetry", "off", "1.04x", "1.04-1.04", "<=", "1.05x", "reached"]
    )
    assert rows["produce, 100 B"][-1] == "-", "what was not measured has no verdict"


def test_stops_of_all_pairs_are_summarised_together() -> None:
    """The most of 24 stops is the worst of them, not the middle one of three pairs' worst."""
    names = ("eviction-min", "eviction", "eviction-max")
    stops = {
        INSYNC: [[1.0] * 7 + [1.2], [1.01] * 7 + [0.99], [1.03] * 8],
        APACHE_KAFKA: [[1.1] * 4 + [1.5] * 4, [0.7] + [1.3] * 7, [1.4] * 8],
    }
    record = Record()
    for contender, pairs in stops.items():
        for pair, limits in enumerate(pairs):
            record.add(contender, pair, dict.fromkeys(names, limits))
    figures = [each for each in FIGURES if each.key in names]
    rows = {each["key"]: each for each in report.as_json(figures, record.samples())}
    assert [rows[name]["insync_value"] for name in names] == [0.99, 1.01, 1.2]
    assert [rows[name]["peer_value"] for name in names] == [0.7, 1.35, 1.5]
    assert rows["eviction"]["reached"]
    assert rows["eviction-max"]["insync"] == dict(enumerate(stops[INSYNC])), "every single one"
    seen = dict.fromkeys(names, stops[INSYNC][0])
    assert report.line(seen) == "eviction-min 1, eviction 1, eviction-max 1.2"


def test_figures_have_three_significant_digits() -> None:
    assert [report.number(value) for value in (None, 0.012345, 1.5, 99.96, 1234.5)] == (
        ["-", "0.0123", "1.5", "100", "1234"]
    )
