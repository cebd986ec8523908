"""What was measured, as a table for people and as JSON for scripts."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from bench.figures import FIGURES, Figure
from bench.ratios import Samples, as_many
from bench.trials import Seen, rival

VERDICTS = {True: "[green]reached[/]", False: "[red]missed[/]", None: "-"}


def table(figures: Sequence[Figure], samples: Mapping[str, Samples]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("figure", "Insync", "peer", "", "peer is", "ratio", "spread", "reach", ""):
        is_number = column in {"Insync", "peer", "ratio", "spread"}
        shown.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for figure in figures:
        of = samples[figure.key]
        spread = f"{min(of.ratios):.2f}-{max(of.ratios):.2f}" if of.ratios else "-"
        shown.add_row(
            figure.title,
            number(of.our_value),
            number(of.their_value),
            figure.unit,
            rival(figure.trial).title,
            "-" if of.ratio is None else f"{of.ratio:.2f}x",
            spread,
            str(figure.reach),
            VERDICTS[figure.reach.is_met(of)],
        )
    return shown


def number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def line(seen: Seen) -> str:
    """What one trial on one side came to."""
    summaries = {figure.key: figure.summary for figure in FIGURES}
    summarised = {key: summaries[key](as_many(value)) for key, value in seen.items()}
    return ", ".join(f"{key} {number(value)}" for key, value in summarised.items())


def machine() -> dict[str, Any]:
    """What else the figures depend on. A load average far from 0 before a run spoils it."""
    return {
        "cores": os.cpu_count(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def as_json(figures: Sequence[Figure], samples: Mapping[str, Samples]) -> list[dict[str, Any]]:
    return [
        {
            "key": figure.key,
            "title": figure.title.strip(),
            "unit": figure.unit,
            "insync": _by_pair(samples[figure.key].ours),
            "peer_is": rival(figure.trial).title,
            "peer": _by_pair(samples[figure.key].theirs),
            "insync_value": samples[figure.key].our_value,
            "peer_value": samples[figure.key].their_value,
            "ratios": samples[figure.key].ratios,
            "ratio_median": samples[figure.key].ratio,
            "reach": str(figure.reach),
            "reached": figure.reach.is_met(samples[figure.key]),
        }
        for figure in figures
    ]


def _by_pair(values: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
    return {pair: list(seen) for pair, seen in values.items()}
