"""Numbers as people read them: 8.8 s, 2 min 5 s, 3 flaps."""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000
MINUTE_S: Final = 60
LONG: Final = ((86_400, 3_600, "d", "h"), (3_600, 60, "h", "min"), (60, 1, "min", "s"))


def duration(ms: int) -> str:
    """Two figures that matter: 340 ms, 1.5 s, 2 min 5 s, 3 h 20 min, 2 d 4 h."""
    if ms < SECOND_MS:
        return f"{ms} ms" if ms else "0 s"
    if ms < MINUTE_S * SECOND_MS:
        whole, tenth = divmod((ms + 50) // 100, 10)
        return f"{whole}.{tenth} s" if tenth else f"{whole} s"
    seconds = ms // SECOND_MS
    large, small, unit, rest = next(each for each in LONG if seconds >= each[0])
    whole, left = divmod(seconds, large)
    return f"{whole} {unit} {left // small} {rest}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def partition_seconds(ms: int) -> str:
    """A sum over partitions, named so: it may be longer than the record."""
    return f"{ms / SECOND_MS:,.1f} partition-seconds".replace(".0 ", " ")
