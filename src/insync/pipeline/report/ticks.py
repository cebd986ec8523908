"""Round moments for the time axes: full seconds, minutes, hours or days, as a clock shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(each * SECOND_MS for each in (1, 2, 5, 10, 15, 30)),
    *(each * MINUTE_MS for each in (1, 2, 5, 10, 15, 30)),
    *(each * HOUR_MS for each in (1, 2, 3, 6, 12)),
    *(each * DAY_MS for each in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
)
COUNTS: Final = range(3, 13)  # as many as a phone has room for, and a wide screen


def step_ms(span_ms: int, count: int) -> int:
    """The smallest round step that divides a span into at most `count` pieces.

    A damaged record may have a time that is thousands of years ahead."""
    longest = STEPS_MS[-1]
    return next(
        (step for step in STEPS_MS if step * count >= span_ms),
        longest * -(-span_ms // (longest * count)),
    )


def time_ticks(from_ms: int, to_ms: int, count: int) -> list[tuple[int, str]]:
    """Round moments within a span, and their labels."""
    step = step_ms(to_ms - from_ms, count)
    return [(at, label(at, step)) for at in range(-(-from_ms // step) * step, to_ms + 1, step)]


def label(at_ms: int, step: int) -> str:
    """No more of a moment than the step needs; midnight is a date."""
    try:
        at = datetime.fromtimestamp(at_ms // SECOND_MS, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    if at_ms % DAY_MS == 0:
        return f"{at:%b %d}"
    if step >= MINUTE_MS:
        return f"{at:%H:%M}"
    if step >= SECOND_MS:
        return f"{at:%H:%M:%S}"
    return f"{at:%M:%S}.{at_ms % SECOND_MS:03d}"
