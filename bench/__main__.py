"""`python -m bench`: every figure, ours beside Apache Kafka's, in alternating pairs."""

from __future__ import annotations

import json
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.figures import FIGURES, Figure
from bench.ratios import Samples, as_many
from bench.sides import APACHE_KAFKA, INSYNC, Contender, of_tree
from bench.trials import FULL, PAIRS_OF, QUICK, TREES, TRIALS, Duel, Scale, Seen, rival
from insync.rules.refusals import Refusal
from peers.apache_kafka import PeerUnavailable, classpath

PAIRS = 3
PAIRS_QUICK = 1


@dataclass(slots=True)
class Record:
    """Everything seen so far: by side and figure, the values of each pair."""

    values: dict[str, dict[str, dict[int, Sequence[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    failures: list[str] = field(default_factory=list)

    def add(self, contender: Contender, pair: int, seen: Seen) -> None:
        for key, value in seen.items():
            self.values[contender.name][key][pair] = as_many(value)

    def samples(self) -> dict[str, Samples]:
        return {
            figure.key: Samples(
                ours=self.values[INSYNC.name][figure.key],
                theirs=self.values[rival(figure.trial).name][figure.key],
                summary=figure.summary,
            )
            for figure in FIGURES
        }


def chosen_trials(only: str) -> list[str]:
    """By the name of a trial or of one of its figures; all of them when nothing is named."""
    wanted = [name for name in only.split(",") if name]
    known = {figure.key: figure.trial for figure in FIGURES} | {name: name for name in TRIALS}
    for name in wanted:
        if name not in known:
            raise Refusal(f"no figure is called {name}; there are {', '.join(sorted(known))}")
    return [trial for trial in TRIALS if not wanted or trial in {known[name] for name in wanted}]


def without_trees(trials: Sequence[str], only: str) -> list[str]:
    """The trials without the comparison of two source trees, refused if it was named."""
    if TREES in only.split(","):
        raise Refusal(f"{TREES} compares two source trees: say TREE_B=FOLDER, the other one")
    return [trial for trial in trials if trial != TREES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One trial, the contenders that take part in it, and how often."""

    trial: str
    contenders: tuple[Contender, ...]
    pairs: int


def contests(
    trials: Sequence[str], *, with_kafka: bool, pairs: int, is_quick: bool
) -> list[Contest]:
    """Insync beside what each trial compares it with; `pairs` 0 leaves their number to it."""
    usual = PAIRS_QUICK if is_quick else PAIRS
    return [
        Contest(
            trial=trial,
            contenders=(
                (INSYNC, rival(trial))
                if with_kafka or rival(trial) is not APACHE_KAFKA
                else (INSYNC,)
            ),
            pairs=pairs or (usual if is_quick else PAIRS_OF.get(trial, usual)),
        )
        for trial in trials
    ]


def between_trees(contest: Contest, tree_a: Path, tree_b: Path) -> Contest:
    ours, theirs = contest.contenders
    return replace(contest, contenders=(of_tree(ours, tree_a), of_tree(theirs, tree_b)))


def has_kafka(console: Console) -> bool:
    try:
        classpath()
    except PeerUnavailable as refusal:
        console.print(f"[yellow]Insync alone, without ratios: {refusal}[/]")
        return False
    return True


def measure(record: Record, contests: Sequence[Contest], *, scale: Scale, console: Console) -> None:
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = sum(each.pairs * len(each.contenders) for each in contests)
        task = progress.add_task("", total=total)
        apart = [each for each in contests if not isinstance(TRIALS[each.trial], Duel)]
        for pair in range(1, max((each.pairs for each in apart), default=0) + 1):
            for contest in apart:
                if pair > contest.pairs:
                    continue
                # The order alternates: the second finds caches and a disk the first has used.
                for contender in contest.contenders if pair % 2 else contest.contenders[::-1]:
                    what = f"pair {pair} of {contest.pairs}, {contest.trial}, {contender.title}"
                    progress.update(task, description=what)
                    trial = TRIALS[contest.trial]
                    assert not isinstance(trial, Duel), "they come after"
                    with report_failures(record, what, console):
                        seen = trial(contender, scale)
                        record.add(contender, pair, seen)
                        console.print(f"{what}: {report.line(seen)}", highlight=False)
                    progress.advance(task)
        for contest in contests:
            duel = TRIALS[contest.trial]
            if not isinstance(duel, Duel):
                continue
            what = f"{contest.pairs} pairs, {contest.trial}"
            progress.update(task, description=what)
            with report_failures(record, what, console):
                for pair, seen_by in duel.rounds(contest.contenders, contest.pairs):
                    for contender in contest.contenders:
                        record.add(contender, pair, seen_by[contender.name])
                    progress.advance(task, len(contest.contenders))


@contextmanager
def report_failures(record: Record, what: str, console: Console) -> Iterator[None]:
    try:
        yield
    except (Refusal, KafkaException) as refusal:
        record.failures.append(f"{what}: {refusal}")
        console.print(f"{what}: [red]{refusal}[/]")


def main(
    *,
    only: Annotated[str, typer.Option(help="Trials or figures, separated by commas.")] = "",
    pairs: Annotated[
        int,
        typer.Option(min=0, help="Number of pairs, for example 10; 0 for the trial's own number."),
    ] = 0,
    quick: Annotated[
        bool, typer.Option(help="Short loads, one pair: a look, not a figure.")
    ] = False,
    kafka: Annotated[bool, typer.Option(help="Apache Kafka as well.")] = True,
    tree_a: Annotated[
        Path, typer.Option(envvar="TREE_A", help="Of two source trees to compare, the first.")
    ] = Path(),
    tree_b: Annotated[
        Path | None, typer.Option(envvar="TREE_B", help="The second (default: compare none).")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also written here.")] = None,
) -> None:
    """Measure Insync beside Apache Kafka on this machine."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    # On SIGTERM, brokers and folders go too: an exception leaves every `with` behind it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        trials = chosen_trials(only)
        if tree_b is None:
            trials = without_trees(trials, only)
    except Refusal as refusal:
        sys.stderr.write(f"bench: {refusal}\n")
        raise typer.Exit(2) from None
    is_beside_kafka = any(rival(trial) is APACHE_KAFKA for trial in trials)
    with_kafka = kafka and is_beside_kafka and has_kafka(console)
    chosen = [
        each if each.trial != TREES or tree_b is None else between_trees(each, tree_a, tree_b)
        for each in contests(trials, with_kafka=with_kafka, pairs=pairs, is_quick=quick)
    ]
    before, record = report.machine(), Record()
    try:
        measure(record, chosen, scale=QUICK if quick else FULL, console=console)
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted; what was seen until then:[/]")
    show(record, [each for each in FIGURES if each.trial in trials], before, console, json_file)
    raise typer.Exit(1 if record.failures else 0)


def show(
    record: Record,
    figures: Sequence[Figure],
    before: dict[str, object],
    console: Console,
    json_file: Path | None,
) -> None:
    after = report.machine()
    samples = record.samples()
    console.print()
    console.print(report.table(figures, samples))
    console.print(
        f"{before['cores']} cores, load average {before['load_average']} before and "
        f"{after['load_average']} after; a ratio is Insync / peer",
        highlight=False,
    )
    for failure in record.failures:
        console.print(f"[red]failed:[/] {failure}")
    if json_file is not None:
        results = {"before": before, "after": after, "failures": record.failures}
        content = {**results, "figures": report.as_json(figures, samples)}
        json_file.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
