"""The report in a browser: drawn without console errors, sortable, light and dark.

One page is of points made up to fill it, the other what `insync pipeline report` makes of a record.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from insync.pipeline.report import render
from insync.pipeline.report.points import Points
from insync.pipeline.words import duration
from support.interop.chromium import Browser, browser
from support.pipeline.exported_tables import record, write
from support.pipeline.report_points import LIMITS_MS, POLICIES, made_up_points

pytestmark = pytest.mark.interop

CHARTS = ("incidents", "lag", "false-evictions", "detection", "throttle")
POLICIES_SHOWN = ("caught-up", "true-lag")
LOOKS = [(1_200, "light", False), (1_200, "dark", False), (390, "light", True), (320, "dark", True)]

CROWDED = """[...document.querySelectorAll("[data-chart] svg")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].map((each) =>
    [each.textContent, each.getBoundingClientRect()]);
  const meet = (one, other) => one.left + 1 < other.right && other.left + 1 < one.right
    && one.top + 4 < other.bottom && other.top + 4 < one.bottom;  // lines may touch, letters not
  const frame = svg.getBoundingClientRect();
  const out = [...svg.querySelectorAll("text, path, rect")].filter((each) => {
    const at = each.getBoundingClientRect();
    return at.left < frame.left - 2 || at.right > frame.right + 2;
  }).map((each) => each.textContent || each.outerHTML);
  return out.concat(texts.flatMap(([text, at], place) => texts.slice(place + 1)
    .filter(([, other]) => meet(at, other)).map(([other]) => `${text} | ${other}`)));
})"""

PALE = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => parts(color).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (node) => {
    const color = getComputedStyle(node).backgroundColor;
    return parts(color)[3] === 0 ? ground(node.parentElement) : color;
  };
  const written = [...document.body.querySelectorAll("*")].filter((node) => node.checkVisibility()
    && [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim()));
  return written.filter((node) => {
    const style = getComputedStyle(node);
    const two = [light(node.closest("svg") ? style.fill : style.color), light(ground(node))];
    return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05) < 4.5;
  }).map((node) => node.textContent.slice(0, 40));
})()"""


def assert_readable(chromium: Browser, width: int) -> None:
    """Nothing beyond the edge, no label over another, and the text contrast of WCAG 2."""
    assert chromium.script("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    assert chromium.script(CROWDED) == []
    assert chromium.script(PALE) == []


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
    counts: dict[str, Any] = chromium.script(
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
    return counts


@pytest.fixture(scope="module")
def made_by_the_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a follower that is silent for 12 s, and a throttle that holds its replicas back."""
    folder = tmp_path_factory.mktemp("recorded")
    second = {
        "broker": 1, "side": "leader", "limit_bytes_per_s": 1_000_000, "bytes": 900_000,
        "exempt_bytes": 0, "held_back_partitions": 1, "bytes_in": 100_000,
    }  # fmt: skip
    seconds = [
        second | {"at_ms": 1_000_000 + 1_000 * at, "replica_lag_bytes": 800_000 * (19 - at)}
        for at in range(20)
    ]
    source = write(folder / "source", record() | {"throttle": seconds})
    flags = ["--policies", ",".join(POLICIES_SHOWN), "--lag-time-max-ms", "5000,10000,20000"]
    command = [sys.executable, "-m", "insync", "pipeline", "report", "--source", str(source)]
    done = subprocess.run(
        [*command, "--out", str(folder / "out"), *flags, "--bucket-ms", "1000"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "out" / "report.html"


@pytest.mark.parametrize(("width", "scheme", "phone"), LOOKS)
def test_the_report_of_a_recorded_run_is_drawn(
    chromium: Browser,
    made_by_the_command: Path,
    tmp_path: Path,
    width: int,
    scheme: str,
    *,
    phone: bool,
) -> None:
    chromium.open(made_by_the_command, width=width, scheme=scheme, phone=phone)
    charts = {chart: drawn(chromium, chart) for chart in CHARTS}
    for chart, seen in charts.items():
        assert seen["wrong"] == 0, chart
        assert seen["height"] > 50, chart
        assert seen["texts"] >= 2, chart  # a name or a value, and a moment or a limit
    assert charts["incidents"]["bars"] == 1
    lines = {chart: seen["lines"] for chart, seen in charts.items()}
    policies = len(POLICIES_SHOWN)
    assert lines == {
        "incidents": 0, "lag": 2, "false-evictions": policies, "detection": policies, "throttle": 1,
    }  # fmt: skip
    assert_readable(chromium, width)
    brokers = chromium.script("document.querySelector('[data-table=throttles] td').offsetWidth")
    assert brokers < 100 or not phone, "a number needs no room for a name"
    picture = tmp_path / "report.png"
    chromium.screenshot(picture)
    pixels = int.from_bytes(picture.read_bytes()[16:20])  # a PNG starts with its width
    assert pixels == width * (2 if phone else 1)
    assert picture.stat().st_size > 20_000, "a page with nothing on it is smaller"
    assert chromium.console_messages() == []
    assert chromium.requests() == [made_by_the_command.as_uri()]


def test_health_and_the_recommendation_stand_on_top(
    chromium: Browser, made_by_the_command: Path
) -> None:
    """20 s are no day: the advice says so, and shows the trade."""
    chromium.open(made_by_the_command)
    sections = "[...document.querySelectorAll('main > section')]"
    tops = chromium.script(f"{sections}.map((each) => each.getBoundingClientRect().top)")
    assert tops == sorted(tops)
    assert chromium.script(f"{sections}[0].innerText").startswith("Health\n")
    advice = chromium.script(f"{sections}[1].innerText")
    assert advice.startswith("No advice: 19.9 s of record is less than the 24 h that advice needs")
    assert "healthy followers were silent for up to 12.1 s" in advice
    bottom = chromium.script("document.querySelector('.overall').getBoundingClientRect().bottom")
    assert bottom < chromium.script("innerHeight"), "it is visible without scrolling"


def test_tables_of_a_recorded_run_sort(chromium: Browser, made_by_the_command: Path) -> None:
    chromium.open(made_by_the_command)
    (episode,) = rows(chromium, "incident-0")
    assert episode[0] == "orders-0"
    entry = chromium.script(
        "document.getElementById('incident-0').querySelector('summary').innerText"
    )
    assert "broker 3" in entry
    assert "stuck" in entry
    assert rows(chromium, "health-broker")[0][0] == "3", "the worst"
    shown = [row[0] for row in rows(chromium, "health-broker")]
    for order in (sorted(shown, reverse=True), sorted(shown)):
        click(chromium, "health-broker", "broker")
        assert [row[0] for row in rows(chromium, "health-broker")] == order
    assert chromium.console_messages() == []


def rows(chromium: Browser, table: str) -> list[list[str]]:
    cells: list[list[str]] = chromium.script(
        f"""[...document.querySelector('[data-table="{table}"]').tBodies[0].rows]
        .map((row) => [...row.cells].map((cell) => cell.textContent))"""
    )
    return cells


def click(chromium: Browser, table: str, heading: str) -> None:
    chromium.script(
        f"""[...document.querySelectorAll('[data-table="{table}"] th button')]
        .find((each) => each.textContent === "{heading}").click()"""
    )


@pytest.mark.parametrize(("width", "scheme", "phone"), LOOKS)
def test_everything_is_drawn(
    chromium: Browser, page: Path, points: Points, width: int, scheme: str, *, phone: bool
) -> None:
    chromium.open(page, width=width, scheme=scheme, phone=phone)
    charts = {chart: drawn(chromium, chart) for chart in CHARTS}
    for chart, seen in charts.items():
        assert seen["wrong"] == 0, chart
        assert seen["width"] > (0.7 if phone else 0.4) * width, chart
        assert seen["height"] > 100, chart
        assert seen["texts"] >= 5, chart
    assert points.incidents is not None
    assert points.lag is not None
    assert charts["incidents"]["bars"] == len(points.incidents)
    assert charts["lag"]["lines"] == len(points.lag["series"])
    assert charts["false-evictions"]["lines"] == charts["detection"]["lines"] == len(POLICIES)
    assert charts["throttle"]["lines"] == 3
    assert_readable(chromium, width)
    ground = chromium.script("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 150) == (scheme == "dark")
    assert chromium.console_messages() == []
    assert chromium.requests() == [page.as_uri()]


def test_tables_sort(chromium: Browser, page: Path, points: Points) -> None:
    chromium.open(page)
    assert points.incidents is not None
    at = max(range(len(points.incidents)), key=lambda each: len(points.incidents[each]["episodes"]))  # type: ignore[index]
    name, episodes = f"incident-{at}", points.incidents[at]["episodes"]
    expected = sorted(duration(row["out_ms"]) for row in episodes)
    assert len(episodes) > 1

    def seen(heading: int) -> list[str]:
        return [row[heading].removesuffix(", still") for row in rows(chromium, name)]

    in_order = [duration(each) for each in sorted(row["out_ms"] for row in episodes)]
    click(chromium, name, "out for")
    assert seen(3) == in_order[::-1], "largest first"
    click(chromium, name, "out for")
    assert seen(3) == in_order, "and the other way round"
    assert sorted(seen(3)) == expected
    click(chromium, "health-broker", "state")
    states = [row[1] for row in rows(chromium, "health-broker")]
    assert states in (sorted(states), sorted(states)[::-1])
    assert chromium.console_messages() == []


def test_filters_and_charts_respond_to_input(chromium: Browser, page: Path, points: Points) -> None:
    chromium.open(page)
    shown = """[...document.querySelectorAll(".incident")].filter((each) => !each.hidden).length"""
    chromium.script(
        """(() => { const box = document.querySelector('[data-filters="incidents"]');
        box.value = "stuck"; box.dispatchEvent(new Event("input")); })()"""
    )
    assert points.incidents is not None
    assert chromium.script(shown) == sum(row["cause"] == "stuck" for row in points.incidents)

    axis = """[...document.querySelectorAll('[data-chart="lag"] text')]
        .map((each) => each.textContent)"""
    in_time = chromium.script(axis)
    chromium.script("""document.querySelector('[data-unit="bytes"]').click()""")
    in_bytes = chromium.script(axis)
    assert any(text.endswith("MB") for text in in_bytes)
    assert not any(text.endswith("MB") for text in in_time)
    assert "time, UTC" in in_time

    hover = """(() => {{
      const ground = [...document.querySelectorAll('[data-chart="{chart}"] {what}')].pop();
      const at = ground.getBoundingClientRect();
      ground.dispatchEvent(new PointerEvent("pointermove",
        {{ bubbles: true, clientX: at.x + 5, clientY: at.y + 5 }}));
      return document.getElementById("tip").innerText;
    }})()"""
    assert "first cause" in chromium.script(hover.format(chart="incidents", what="g.bar"))
    tooltip = chromium.script(hover.format(chart="false-evictions", what="rect"))
    assert f"T = {LIMITS_MS[0] // 1_000} s" in tooltip
    assert all(policy in tooltip for policy in POLICIES)

    chromium.script("""document.querySelector('[data-legend="policies"] button').click()""")
    assert drawn(chromium, "detection")["lines"] == len(POLICIES) - 1
    assert chromium.console_messages() == []


def test_charts_are_read_with_the_keyboard(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    press = """(() => {{
      const node = document.querySelector('[data-chart="{chart}"] {what}');
      node.focus();
      document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", {{ key: "{key}", bubbles: true, cancelable: true }}));
      return [document.activeElement.getAttribute("aria-valuenow"),
        document.activeElement.getAttribute("aria-valuetext"),
        document.activeElement.getAttribute("aria-label")];
    }})()"""
    slider = '[role="slider"]'
    for chart, first in (("lag", "2023-11-14"), ("false-evictions", "T = 2 s"), ("throttle", "20")):
        now, words, label = chromium.script(
            press.format(chart=chart, what=slider, key="ArrowRight")
        )
        assert now == "1", chart
        assert words.startswith(first)
        assert label
    bar = press.format(chart="incidents", what='g[tabindex="0"]', key="ArrowRight")
    before = chromium.script("document.querySelectorAll('g[tabindex=\"0\"]').length")
    _, _, label = chromium.script(bar)
    assert before == chromium.script("document.querySelectorAll('g[tabindex=\"0\"]').length") == 1
    assert "first cause" in label
    chromium.script(press.format(chart="incidents", what='g[tabindex="0"]', key="Enter"))
    opened = "[...document.querySelectorAll('.incident')].filter((each) => each.open).length"
    assert chromium.script(opened) == 1
    assert chromium.script("document.activeElement.tagName") == "SUMMARY"
    assert chromium.console_messages() == []


def test_a_report_with_nothing_recorded(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(render(Points(), title="Nothing", recommendation=None), encoding="utf-8")
    chromium.open(path)
    assert chromium.script("document.querySelectorAll('.missing').length") == 5
    assert chromium.console_messages() == []
