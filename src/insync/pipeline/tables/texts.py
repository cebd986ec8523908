"""Numbers in the texts of tables, as people read them."""

from __future__ import annotations

from pyspark.sql import Column

from insync.pipeline.local.dispatch import F
from insync.pipeline.words import LONG, MINUTE_S, SECOND_MS


def duration_text(name: str) -> Column:
    """As `words.duration`."""
    ms = F.col(name)
    seconds, tenths = F.floor(ms / SECOND_MS), F.floor((ms + 50) / 100)
    is_short = seconds < MINUTE_S
    words = (
        F.when(ms == 0, "0 s")
        .when(ms < SECOND_MS, F.format_string("%d ms", ms))
        .when(is_short & (tenths % 10 == 0), F.format_string("%d s", F.floor(tenths / 10)))
        .when(is_short, F.format_string("%d.%d s", F.floor(tenths / 10), tenths % 10))
    )
    for large, small, unit, rest in LONG:
        whole, left = F.floor(seconds / large), F.floor(seconds % large / small)
        words = words.when(whole > 0, F.format_string(f"%d {unit} %d {rest}", whole, left))
    return words
