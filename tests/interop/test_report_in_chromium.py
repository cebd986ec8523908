"""The report where people read it: drawn without a word of complaint, sortable, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_points import LIMITS_MS, POLICIES, made_up_points

from insync.pipeline.report import render
from insync.pipeline.report.points import Points
from interop.chromium import Browser, browser

pytestmark = pytest.mark.interop

CHARTS = ("timeline", "lag", "false-evictions", "detection", "throttle")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def points() -> Points:
    return made_up_points()


@pytest.fixture(scope="module")
def page(points: Points, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(
        render(points, title="A day", recommendation="Set T to 10 s."), encoding="utf-8"
    )
    return path


def drawn(chromium: Browser, chart: str) -> dict[str, Any]:
    found: dict[str, Any] = chromium.script(
        f"""(() => {{
          const box = document.querySelector('[data-chart="{chart}"]');
          const svg = box.querySelector("svg"), frame = svg.getBoundingClientRect();
          const attributes = [...svg.querySelectorAll("*")].flatMap((each) => [...each.attributes]);
          return {{
            width: frame.width, height: frame.height,
            bars: svg.querySelectorAll("g.bar").length,
            lines: svg.querySelectorAll("[data-series], [data-policy], [data-throttle]").length,
            texts: svg.querySelectorAll("text").length,
            wrong: attributes.filter((each) => /NaN|undefined|Infinity/.test(each.value)).length,
          }};
        }})()"""
    )
    return found


@pytest.mark.parametrize(
    ("width", "scheme", "phone"),
    [(1_200, "light", False), (1_200, "dark", False), (390, "light", True), (320, "dark", True)],
)
def test_everything_is_drawn(
    chromium: Browser, page: Path, points: Points, width: int, scheme: str, *, phone: bool
) -> None:
    chromium.open(page, width=width, scheme=scheme, phone=phone)
    found = {chart: drawn(chromium, chart) for chart in CHARTS}
    for chart, seen in found.items():
        assert seen["wrong"] == 0, chart
        assert seen["width"] > (0.7 if phone else 0.4) * width, chart
        assert seen["height"] > 100, chart
        assert seen["texts"] >= 5, chart
    assert points.timeline is not None
    assert points.lag is not None
    assert found["timeline"]["bars"] == len(points.timeline["bars"])
    assert found["lag"]["lines"] == len(points.lag["series"])
    assert found["false-evictions"]["lines"] == found["detection"]["lines"] == len(POLICIES)
    assert found["throttle"]["lines"] == 3
    assert chromium.script("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    ground = chromium.script("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 150) == (scheme == "dark")
    assert chromium.complaints() == []
    assert chromium.requests() == [page.as_uri()]


def test_tables_sort(chromium: Browser, page: Path, points: Points) -> None:
    chromium.open(page)
    click = """[...document.querySelectorAll('[data-table="{table}"] th button')]
        .find((each) => each.textContent === "{heading}").click()"""
    column = """[...document.querySelector('[data-table="{table}"]').tBodies[0].rows]
        .map((row) => row.cells[{at}].dataset.v)"""

    def seen(at: int) -> list[str]:
        values: list[str] = chromium.script(column.format(table="episodes", at=at))
        return values

    assert points.episodes is not None
    expected = sorted(row["out_ms"] for row in points.episodes)
    chromium.script(click.format(table="episodes", heading="out for"))
    assert [int(value) for value in seen(4)] == expected[::-1], "largest first"
    chromium.script(click.format(table="episodes", heading="out for"))
    assert [int(value) for value in seen(4)] == expected, "and the other way round"
    chromium.script(click.format(table="episodes", heading="cause"))
    assert seen(1) == sorted(row["cause"] for row in points.episodes)
    chromium.script(click.format(table="health-topic", heading="state"))
    states = [int(v) for v in chromium.script(column.format(table="health-topic", at=1))]
    assert states in (sorted(states), sorted(states)[::-1])
    assert chromium.complaints() == []


def test_what_can_be_touched_answers(chromium: Browser, page: Path, points: Points) -> None:
    chromium.open(page)
    shown = """[...document.querySelector('[data-table="episodes"]').tBodies[0].rows]
        .filter((row) => !row.hidden).length"""
    chromium.script(
        """(() => { const box = document.querySelector('[data-filters="episodes"]');
        box.value = "stuck"; box.dispatchEvent(new Event("input")); })()"""
    )
    assert points.episodes is not None
    assert chromium.script(shown) == sum(row["cause"] == "stuck" for row in points.episodes)

    axis = """[...document.querySelectorAll('[data-chart="lag"] text')]
        .map((each) => each.textContent)"""
    in_time = chromium.script(axis)
    chromium.script("""document.querySelector('[data-unit="bytes"]').click()""")
    in_bytes = chromium.script(axis)
    assert any(text.endswith("MB") for text in in_bytes)
    assert not any(text.endswith("MB") for text in in_time)

    hover = """(() => {{
      const ground = [...document.querySelectorAll('[data-chart="{chart}"] {what}')].pop();
      const at = ground.getBoundingClientRect();
      ground.dispatchEvent(new PointerEvent("pointermove",
        {{ bubbles: true, clientX: at.x + 5, clientY: at.y + 5 }}));
      return document.getElementById("tip").innerText;
    }})()"""
    assert "first cause" in chromium.script(hover.format(chart="timeline", what="g.bar"))
    told = chromium.script(hover.format(chart="false-evictions", what="rect"))
    assert f"T = {LIMITS_MS[0] // 1_000} s" in told
    assert all(policy in told for policy in POLICIES)

    chromium.script("""document.querySelector('[data-legend="policies"] button').click()""")
    assert drawn(chromium, "detection")["lines"] == len(POLICIES) - 1
    assert chromium.complaints() == []


def test_with_nothing_recorded(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(render(Points(), title="Nothing", recommendation=None), encoding="utf-8")
    chromium.open(path)
    assert chromium.script("document.querySelectorAll('.missing').length") == 6
    assert chromium.complaints() == []
