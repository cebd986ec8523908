"""Charts of the walk: SVG files that need nothing beside them."""

from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

from insync.pipeline.report.ticks import time_ticks

Point = tuple[int, float]
Span = tuple[int, int, str]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 320, 70, 20, 64, 48
COLOURS = ("#0b62a4", "#c2410c", "#15803d", "#7c3aed")
SPAN, GRID, TEXT = "#e8eaed", "#d0d4d9", "#24292f"
STYLE = f"font-family: system-ui, 'DejaVu Sans', sans-serif; font-size: 13px; fill: {TEXT}"
ROWS, CHARACTER = 5, 8


def line_chart(
    title: str,
    unit: str,
    lines: Mapping[str, Sequence[Point]],
    spans: Sequence[Span] = (),
    limit: tuple[str, float] | None = None,
) -> str:
    """Lines over time, grey bands for what happened, and a dashed line for a limit."""
    times = [at for points in lines.values() for at, _ in points]
    times += [at for begins, ends, _ in spans for at in (begins, ends)]
    values = [value for points in lines.values() for _, value in points]
    first, last, top = min(times), max(times), _round_up(max([*values, limit[1] if limit else 0]))

    def x(at: float) -> float:
        return round(LEFT + (at - first) / (last - first) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)

    parts = _spans(spans, x)
    for row in range(ROWS + 1):
        value = top * row / ROWS
        parts.append(_line(x(first), y(value), x(last), y(value), GRID))
        parts.append(_text(LEFT - 8, y(value) + 4, f"{value:g}", "end"))
    for at, label in time_ticks(first, last, 8):
        parts.append(_line(x(at), y(0), x(at), y(0) + 5, TEXT))
        parts.append(_text(x(at), y(0) + 20, label, "middle"))
    if limit is not None:
        name, value = limit
        dashed = _line(x(first), y(value), x(last), y(value), TEXT)
        parts.append(dashed.replace("/>", ' stroke-dasharray="6 4"/>'))
        parts.append(_text(x(last) - 4, y(value) - 6, name, "end"))
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(at)},{y(value)}" for at, value in points)
        width = 2 if number else 4  # two lines that are the same are both seen
        style = f'fill="none" stroke="{colour}" stroke-width="{width}"'
        parts.append(f'<polyline points="{path}" {style}/>')
        left = LEFT + 150 * number
        parts.append(_line(left, 44, left + 24, 44, colour).replace("/>", ' stroke-width="3"/>'))
        parts.append(_text(left + 30, 48, name, "start"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 8, "UTC", "end"))
    return _page(title, unit, parts)


def span_chart(title: str, rows: Mapping[str, Sequence[Span]], first: int, last: int) -> str:
    """A row per name, with a bar for each span of it."""
    height = 36

    def x(at: float) -> float:
        return round(LEFT + (at - first) / (last - first) * (WIDTH - LEFT - RIGHT), 1)

    parts = []
    bottom = TOP + height * len(rows)
    for at, label in time_ticks(first, last, 8):
        parts.append(_line(x(at), TOP - 8, x(at), bottom, GRID))
        parts.append(_text(x(at), bottom + 18, label, "middle"))
    for number, (name, spans) in enumerate(rows.items()):
        top = TOP + height * number
        parts.append(_text(LEFT - 8, top + 17, name, "end"))
        for begins, ends, words in spans:
            colour = COLOURS[number % len(COLOURS)]
            width = max(2.0, round(x(ends) - x(begins), 1))
            parts.append(
                f'<rect x="{x(begins)}" y="{top}" width="{width}" height="22" fill="{colour}"/>'
            )
            fits = x(ends) + 6 + CHARACTER * len(words) <= WIDTH
            at_x, anchor = (x(ends) + 6, "start") if fits else (x(begins) - 6, "end")
            parts.append(_text(at_x, top + 16, words, anchor))
    parts.append(_text(WIDTH - RIGHT, bottom + 34, "UTC", "end"))
    return _page(title, "", parts, bottom + 44)


def _spans(spans: Sequence[Span], x: Callable[[float], float]) -> list[str]:
    parts = []
    for begins, ends, words in spans:
        width = round(x(ends) - x(begins), 1)
        parts.append(
            f'<rect x="{x(begins)}" y="{TOP}" width="{width}" height="{HEIGHT - TOP - BOTTOM}" '
            f'fill="{SPAN}"/>'
        )
        parts.append(_text(x(begins) + 4, TOP + 14, words, "start"))
    return parts


def _round_up(value: float) -> float:
    """The next number of one or two figures that five rows divide evenly."""
    step = 1.0
    while step * 10 <= value:
        step *= 10
    while step > value > 0:
        step /= 10
    return next(each * step for each in (1, 2, 2.5, 5, 10) if each * step >= value)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _page(title: str, unit: str, parts: Sequence[str], height: int = HEIGHT) -> str:
    heading = f"{title} ({unit})" if unit else title
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(heading)}" style="{STYLE}">'
    )
    return "\n".join(
        [
            opening,
            f"<title>{escape(heading)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">{escape(heading)}</text>',
            *parts,
            "</svg>\n",
        ]
    )
