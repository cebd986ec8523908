"""The page as text: nothing from a record is markup, and nothing is fetched."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.pipeline.report import PAGE_BYTES_MAX, render
from insync.pipeline.report.advice_words import advice_commands, advice_sentences
from insync.pipeline.report.incidents import EPISODES_MAX, INCIDENTS_MAX
from insync.pipeline.report.points import ROWS_MAX, Points, _span
from insync.pipeline.report.ticks import DAY_MS, STEPS_MS, label, step_ms, time_ticks
from insync.pipeline.words import duration, ranges_text, rate, size
from support.pipeline.report_points import HOSTILE, made_up_points


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_hostile_name_stays_text_everywhere() -> None:
    page = render(made_up_points(), title=HOSTILE, recommendation=HOSTILE)
    elements = Elements(page)
    assert "img" not in elements.names
    assert elements.names.count("script") == 2
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    assert HOSTILE in "".join(elements.texts)
    data = next(text for text in elements.texts if text.startswith('{"span"'))
    assert any(HOSTILE in each["extent"] for each in json.loads(data)["incidents"]["bars"])


def test_the_page_loads_nothing_from_the_network() -> None:
    page = render(made_up_points(), title="t", recommendation=None)
    assert not re.search(
        r"""(src|href)=["']|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", page
    )


def test_the_largest_page_is_small() -> None:
    """With as many rows of each table, and as many partitions, as there may be."""
    points = made_up_points(episodes=EPISODES_MAX)
    assert points.incidents is not None
    wide = points.incidents[0] | {
        "partitions": 5_000, "members": {"t" * 249: list(range(0, 10_000, 2))}, "episodes": [],
    }  # fmt: skip
    points.incidents += [wide] * 10 + [points.incidents[0] | {"episodes": []}] * INCIDENTS_MAX
    points.incidents = points.incidents[:INCIDENTS_MAX]
    assert points.throttle is not None
    assert points.health is not None
    points.throttle = points.throttle[-1:] * ROWS_MAX
    topic, broker = points.health[0] | {"name": "t" * 249}, points.health[-1]
    points.health = [topic] * ROWS_MAX + [broker] * ROWS_MAX
    page = render(points, title="t", recommendation="r")
    assert len(page.encode()) < PAGE_BYTES_MAX


def test_sections_without_data_read_not_recorded() -> None:
    page = render(Points(), title="t", recommendation=None)
    assert page.count("Not recorded.") == 5
    assert '<div class="chart"' not in page


def test_events_that_never_happened_are_not_reported_as_missing() -> None:
    nothing = Points(
        summary=dict.fromkeys(made_up_points().summary, 0),
        incidents=[],
        lag={"span_ms": None, "at_ms": [], "series": []},
        what_if=[], seconds=[], throttle=[], health=[],
    )  # fmt: skip
    page = render(nothing, title="t", recommendation=None)
    assert "Not recorded." not in page
    assert page.count("No replica was out of sync.") == 1
    assert "No throttle was set." in page


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 s"), (999, "999 ms"), (1_000, "1 s"), (1_250, "1.3 s"), (1_540, "1.5 s"),
        (59_940, "59.9 s"), (59_960, "60 s"), (60_000, "1 min 0 s"),
        (3_725_000, "1 h 2 min"), (90_000_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_in_words(ms: int, words: str) -> None:
    assert duration(ms) == words


def test_rates_in_words() -> None:
    assert [rate(each) for each in (0, 999, 1_000, 12_345_678, 2e9)] == [
        "0 B/s", "999 B/s", "1 kB/s", "12.3 MB/s", "2 GB/s",
    ]  # fmt: skip


def test_sizes_in_words() -> None:
    assert [size(each) for each in (0, 999, 12_345_678)] == ["0 B", "999 B", "12.3 MB"]


TRADE_ROW = {
    "role": None, "policy": "caught-up", "lag_time_max_ms": 30_000, "lag_max_messages": None,
    "half_period_check": False, "evictions": 3, "false_evictions": 2, "flaps": 1,
    "acks_all_stall_ms_max": 28_000, "under_min_isr_ms_max": 1_500, "harm_partition_ms": 99,
    "is_below_floor": False,
}  # fmt: skip
ADVICE = {
    "verdict": "set", "reason": "because", "policy": "messages", "lag_time_max_ms": 5_000,
    "lag_max_messages": 4_000, "half_period_check": False, "apply_command": "insync <now>",
    "revert_command": "insync <then>", "statements": ["1 min 0 s were recorded."],
    "trade": [
        TRADE_ROW | {"role": "running"},
        TRADE_ROW | {"role": "advised", "policy": "messages", "lag_time_max_ms": 5_000},
        TRADE_ROW | {"lag_time_max_ms": 500, "is_below_floor": True},
    ],
}  # fmt: skip


def test_a_recommendation_has_reason_record_trade_and_both_commands() -> None:
    points = made_up_points()
    points.recommendation = ADVICE
    page = "".join(Elements(render(points, title="t", recommendation=None)).texts)
    for text in (
        "Set replica.in.sync.policy=messages and replica.lag.max.messages=4000 and replica.lag.",
        "replica.lag.time.max.ms=5000: because.",
        "1 min 0 s were recorded.",
        "30 s (caught-up)running32128 s1.5 s",
        "5 sadvised32128 s1.5 s",
        "500 ms (caught-up)below the floor32128 s1.5 s",
        "apply: insync <now>",
        "revert: insync <then>",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"verdict": "keep"}, "Keep replica.in.sync.policy=messages"),
        ({"verdict": "too-short"}, "No advice: because."),
    ],
)
def test_what_stays_as_it_is_has_no_command(facts: dict[str, Any], says: str) -> None:
    row = ADVICE | facts | {"apply_command": None, "revert_command": None}
    assert advice_sentences(row)[0].startswith(says)
    assert advice_commands(row) == []


def test_every_truncated_list_has_a_note() -> None:
    points = made_up_points()
    whole = render(points, title="t", recommendation="r")
    assert whole.count('class="note"') == 1, "only what a what-if takes as given"
    more = {"incidents": 900, "scenarios": 700, "limits": 9, "spans": 401}
    points.summary |= more | {"topics": 1_000, "brokers": 450, "leader_changes": 77_001}
    page = "".join(Elements(render(points, title="t", recommendation="r")).texts)
    assert "77,001leader changes1,000 topics" in page
    incidents = len(points.incidents or [])
    for sentence in (
        f"The {incidents} worst incidents of 900; all are in the table incidents.",
        "The 40 first rules and thresholds of 700; all are in the table what_if.",
        "The 3 limits that held back longest, of 9; all are in the table throttle.",
        "The 2 worst spans of 401; all are in the table throttle.",
        "The 4 worst topics of 1,000; all are in the table health.",
        "The 3 worst brokers of 450; all are in the table health.",
    ):
        assert sentence in page


def test_a_move_of_unknown_size_has_no_time() -> None:
    points = made_up_points()
    assert points.throttle is not None
    unending = points.throttle[1]  # its limit is below what comes in
    unknown = {"lag_bytes_first": None, "progress": None, "estimated_ms": None, "real_ms": None}
    for span, words in (
        (unending, ["never", "not yet", "stuck"]),
        (unending | unknown, ["unknown", "unknown", "unknown"]),
    ):
        points.throttle = [span]
        page = render(points, title="t", recommendation="r")
        table = page[page.index('data-table="throttles"') :]
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", table[: table.index("</tbody>")])
        assert cells[-4:-1] == words
        assert cells[-1] == span["difference"]


def test_a_second_that_is_drawn_ends_within_the_axis() -> None:
    second = {"at_ms": [1_000, 2_000], "step_ms": 1_000}
    assert _span(Points(seconds=[second])) == (1_000, 3_000)


def test_a_count_of_one_is_singular() -> None:
    points = made_up_points()
    points.summary |= {"topics": 1, "replicas": 1}
    page = render(points, title="t", recommendation="r")
    assert "<small>1 topic</small>" in page
    assert "<small>1 replica</small>" in page


def test_every_incident_opens_to_its_partitions() -> None:
    points = made_up_points()
    assert points.incidents is not None
    page = render(points, title="t", recommendation="r")
    entries = re.findall(r'<details class="incident" id="incident-(\d+)">(.*?)</details>', page)
    assert [int(at) for at, _ in entries] == list(range(len(points.incidents)))
    for (at, entry), row in zip(entries, points.incidents, strict=True):
        summary, _, body = entry.partition("</summary>")
        assert f"<b>broker {row['broker']}</b>" in summary
        assert row["cause"] in summary
        assert ("still" in summary) == (row["ended_at_ms"] is None)
        assert body.count("<tr>") == 1 + len(row["episodes"])
        assert f'data-table="incident-{at}"' in body
        for topic, numbers in row["members"].items():
            assert f"{escape(topic)}: {ranges_text(numbers, 600)}" in body
    # All of them are on the page: those after the first are one click away.
    assert f"<summary>{len(entries) - 20} more incidents</summary>" in page


def test_an_incident_with_many_partitions_names_all_and_says_what_it_cuts() -> None:
    points = made_up_points()
    assert points.incidents is not None
    points.incidents = [
        points.incidents[0]
        | {"partitions": 5_001, "topics": 2, "members": {"orders": [*range(5_000)], "clicks": [7]}}
        | {"episode_count": 5_432}
    ]
    episodes = len(points.incidents[0]["episodes"])
    page = render(points, title="t", recommendation="r")
    assert "5,001 partitions of 2 topics" in page
    assert "orders: 0-4999; clicks: 7" in page
    points.incidents[0]["members"] = {f"t{number}": [*range(0, 400, 2)] for number in range(99)}
    page = render(points, title="t", recommendation="r")
    listed = re.search(r'<p class="partitions">([^<]*)</p>', page)
    assert listed
    assert re.fullmatch(r"t0: 0, 2, 4, .*\.\.\. \d+ more; \.\.\. 98 more topics", listed[1])
    assert f"The {episodes} longest episodes of 5,432; all are in the table episodes." in page
    points.incidents[0]["episodes"] = []
    assert "5,432 episodes, in the table episodes." in render(points, title="t", recommendation="r")


def test_health_is_at_the_top() -> None:
    page = render(made_up_points(), title="t", recommendation="r")
    sections = re.findall(r"<section[^>]*>(?:<h2>([^<]*)</h2>)?", page)
    assert sections[:3] == ["Health", "", "Incidents: which broker, when and why"]
    assert page.index('class="overall status status-critical"') < page.index('class="advice"')
    assert "4 topics: 3 warning; 3 brokers: 1 critical, 2 warning" in page
    assert "<summary>1 topic ok</summary>" in page


def test_charts_and_tables_have_names_for_screen_readers() -> None:
    page = render(made_up_points(), title="t", recommendation="r")
    charts = re.findall(r'<div class="chart"([^>]*)>', page)
    assert len(charts) == 5
    assert all('role="figure"' in each and 'aria-label="' in each for each in charts)
    regions = re.findall(r'<div class="scroll"([^>]*)><table', page)
    assert len(regions) == page.count("<table") > 5
    assert all('tabindex="0"' in each and 'aria-label="' in each for each in regions)
    assert page.count("<table") * 8 < page.count('<th scope="col"')


@pytest.mark.property
@given(st.integers(0, 4_000_000_000_000), st.integers(1, 50_000_000_000), st.integers(3, 12))
def test_moments_on_an_axis_are_round(from_ms: int, span_ms: int, count: int) -> None:
    """Round on a clock: a whole number of steps after midnight, and steps that divide a day."""
    step = step_ms(span_ms, count)
    ticks = [at for at, _ in time_ticks(from_ms, from_ms + span_ms, count)]
    assert step in STEPS_MS
    assert DAY_MS % step == 0 or step % DAY_MS == 0
    assert all(at % min(step, DAY_MS) == 0 for at in ticks)
    assert all(later - at == step for at, later in pairwise(ticks))
    assert all(from_ms <= at <= from_ms + span_ms for at in ticks)
    assert len(ticks) <= count + 1
    # No round moment is left out at either end, and there is one at all.
    assert not ticks or ticks[0] - step < from_ms
    assert not ticks or ticks[-1] + step > from_ms + span_ms
    assert ticks or span_ms < STEPS_MS[1] * count
    labels = [label(at, step) for at in ticks]
    assert all(len(each) <= 9 for each in labels)


@pytest.mark.parametrize(
    ("step", "words"),
    [(86_400_000, "Nov 15"), (3_600_000, "22:13"), (5_000, "22:13:20"), (200, "13:20.400")],
)
def test_a_label_has_what_the_step_needs(step: int, words: str) -> None:
    at_ms = (
        1_700_006_400_000 if step == DAY_MS else 1_700_000_000_000 + (400 if step < 1_000 else 0)
    )
    assert label(at_ms, step) == words
    assert label(1_700_006_400_000, step) == "Nov 15"  # midnight


@pytest.mark.parametrize(("limit_ms", "although"), [
    (2_000, ", although 2 s is below the floor of 2.5 s and not known to be safe"),
    (2_500, ""),
])  # fmt: skip
def test_keeping_a_limit_below_the_floor_says_so_in_the_first_sentence(
    limit_ms: int, although: str
) -> None:
    rule = {"policy": "caught-up", "lag_max_messages": None, "lag_time_max_ms": limit_ms}
    row = ADVICE | {"verdict": "keep", "floor_ms": 2_500} | rule
    rules = f"replica.in.sync.policy=caught-up and replica.lag.time.max.ms={limit_ms}"
    assert advice_sentences(row)[0] == f"Keep {rules}{although}: because."


@pytest.mark.parametrize("to_ms", [10**13, 10**15, 2**62])
def test_a_time_far_ahead_has_no_more_ticks_than_others(to_ms: int) -> None:
    for count in (3, 12):
        ticks = time_ticks(1_700_000_000_000, to_ms, count)
        assert 1 <= len(ticks) <= count + 1
