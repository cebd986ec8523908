"""`python -m bench`: every figure, ours beside Apache Kafka's, in alternating pairs."""

from __future__ import annotations

import json
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.figures import FIGURES, Figure
from bench.ratios import Samples
from bench.sides import APACHE_KAFKA, INSYNC, Contender
from bench.trials import FULL, QUICK, TRIALS, Scale, Seen
from insync.rules.refusals import Refusal
from peers.apache_kafka import PeerUnavailable, classpath

PAIRS = 3
PAIRS_QUICK = 1


@dataclass(slots=True)
class Record:
    """Everything seen so far: by side and figure, the value of each pair."""

    values: dict[str, dict[str, dict[int, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    failures: list[str] = field(default_factory=list)

    def add(self, contender: Contender, pair: int, seen: Seen) -> None:
        for key, value in seen.items():
            self.values[contender.name][key][pair] = value

    def samples(self) -> dict[str, Samples]:
        ours, theirs = self.values[INSYNC.name], self.values[APACHE_KAFKA.name]
        return {
            figure.key: Samples(ours=ours[figure.key], theirs=theirs[figure.key])
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


def contenders(console: Console, *, with_kafka: bool) -> list[Contender]:
    if not with_kafka:
        return [INSYNC]
    try:
        classpath()
    except PeerUnavailable as refusal:
        console.print(f"[yellow]Insync alone, without ratios: {refusal}[/]")
        return [INSYNC]
    return [INSYNC, APACHE_KAFKA]


def measure(
    record: Record,
    sides: Sequence[Contender],
    trials: Sequence[str],
    *,
    pairs: int,
    scale: Scale,
    console: Console,
) -> None:
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=pairs * len(trials) * len(sides))
        for pair in range(1, pairs + 1):
            # Who goes first changes: the second finds caches and a disk that the first has used.
            order = sides if pair % 2 else sides[::-1]
            for trial in trials:
                for contender in order:
                    what = f"pair {pair} of {pairs}, {trial}, {contender.title}"
                    progress.update(task, description=what)
                    try:
                        seen = TRIALS[trial](contender, scale)
                    except (Refusal, KafkaException) as refusal:
                        record.failures.append(f"{what}: {refusal}")
                        console.print(f"{what}: [red]{refusal}[/]")
                    else:
                        record.add(contender, pair, seen)
                        told = (f"{key} {report.number(value)}" for key, value in seen.items())
                        console.print(f"{what}: {', '.join(told)}", highlight=False)
                    progress.advance(task)


def main(
    *,
    only: Annotated[str, typer.Option(help="Trials or figures, separated by commas.")] = "",
    pairs: Annotated[int, typer.Option(min=0, help="0: as many as the scale asks for.")] = 0,
    quick: Annotated[
        bool, typer.Option(help="Short loads, one pair: a look, not a figure.")
    ] = False,
    kafka: Annotated[bool, typer.Option(help="Apache Kafka as well.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also written here.")] = None,
) -> None:
    """Measure Insync beside Apache Kafka on this machine."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    # Asked to end, brokers and folders go too: an exception leaves every `with` behind it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        trials = chosen_trials(only)
    except Refusal as refusal:
        sys.stderr.write(f"bench: {refusal}\n")
        raise typer.Exit(2) from None
    sides = contenders(console, with_kafka=kafka)
    scale, pairs = (QUICK, pairs or PAIRS_QUICK) if quick else (FULL, pairs or PAIRS)
    before, record = report.machine(), Record()
    try:
        measure(record, sides, trials, pairs=pairs, scale=scale, console=console)
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
        f"{after['load_average']} after; a ratio is Insync / Apache Kafka",
        highlight=False,
    )
    for failure in record.failures:
        console.print(f"[red]failed:[/] {failure}")
    if json_file is not None:
        found = {"before": before, "after": after, "failures": record.failures}
        content = {**found, "figures": report.as_json(figures, samples)}
        json_file.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
