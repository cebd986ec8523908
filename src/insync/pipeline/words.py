"""Numbers as people read them: 8.8 s, 2.4 MB/s, 13 GB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

SECOND_MS: Final = 1_000
MINUTE_S: Final = 60
LONG: Final = ((86_400, 3_600, "d", "h"), (3_600, 60, "h", "min"), (60, 1, "min", "s"))
_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


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


def size(count_bytes: float) -> str:
    for unit, factor in _UNITS:
        if count_bytes >= factor:
            return f"{count_bytes / factor:.3g} {unit}"
    return f"{count_bytes:.0f} B"


def rate(bytes_per_s: float) -> str:
    return f"{size(bytes_per_s)}/s"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def partition_seconds(ms: int) -> str:
    """A sum over partitions, named so: it may be longer than the record."""
    return f"{ms / SECOND_MS:,.1f} partition-seconds".replace(".0 ", " ")


def ranges_text(numbers: Sequence[int], width: int) -> str:
    """`0-19, 25, 30-31`; what does not fit is counted."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    whole = ", ".join(texts)
    if len(whole) <= width:
        return whole
    more_width = len(f", ... {len(numbers):,} more")
    shown, left, at = "", len(numbers), 0
    for (first, last), text in zip(ranges, texts, strict=True):
        longer = f"{shown}, {text}" if at else text
        if at and len(longer) + more_width > width:  # the first is shown on any width
            break
        shown, left, at = longer, left - (last - first + 1), at + 1
    return f"{shown}, ... {left:,} more" if left else shown


def utc(at_ms: int, form: str) -> str:
    """The time in UTC, to the second; the number where a damaged record has no time in it."""
    try:
        return f"{datetime.fromtimestamp(at_ms // SECOND_MS, UTC):{form}}"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
