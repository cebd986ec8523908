"""The page as text: nothing from a record is markup, and nothing is fetched."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from insync.pipeline.report import PAGE_BYTES_MAX, render
from insync.pipeline.report.advice_words import advice_commands, advice_sentences
from insync.pipeline.report.page import rate
from insync.pipeline.report.points import BARS_MAX, ROWS_MAX, Points, _span
from insync.pipeline.words import duration
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
    assert any(HOSTILE in each["partition"] for each in json.loads(data)["timeline"]["replicas"])


def test_the_page_loads_nothing_from_the_network() -> None:
    page = render(made_up_points(), title="t", recommendation=None)
    assert not re.search(
        r"""(src|href)=["']|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", page
    )


def test_the_largest_page_is_small() -> None:
    points = made_up_points(episodes=BARS_MAX)
    assert points.timeline is not None
    assert points.episodes is not None
    assert len(points.timeline["bars"]) == BARS_MAX
    points.episodes = points.episodes[:ROWS_MAX]
    assert points.throttle is not None
    assert points.health is not None
    points.throttle = points.throttle[-1:] * ROWS_MAX
    topic, broker = points.health[0] | {"name": "t" * 249}, points.health[-1]
    points.health = [topic] * ROWS_MAX + [broker] * ROWS_MAX
    page = render(points, title="t", recommendation="r")
    assert len(page.encode()) < PAGE_BYTES_MAX


def test_sections_without_data_read_not_recorded() -> None:
    page = render(Points(), title="t", recommendation=None)
    assert page.count("Not recorded.") == 6
    assert '<div class="chart"' not in page


def test_events_that_never_happened_are_not_reported_as_missing() -> None:
    nothing = Points(
        summary=dict.fromkeys(made_up_points().summary, 0),
        timeline={"span_ms": None, "replicas": [], "bars": []},
        lag={"span_ms": None, "at_ms": [], "series": []},
        what_if=[], seconds=[], throttle=[], episodes=[], health=[],
    )  # fmt: skip
    page = render(nothing, title="t", recommendation=None)
    assert "Not recorded." not in page
    assert page.count("No replica was out of sync.") == 2
    assert "No throttle was set." in page


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 s"), (999, "999 ms"), (1_000, "1 s"), (1_540, "1.5 s"), (59_940, "59.9 s"),
        (59_960, "60 s"), (60_000, "1 min 0 s"), (3_725_000, "1 h 2 min"), (90_000_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_in_words(ms: int, words: str) -> None:
    assert duration(ms) == words


def test_rates_in_words() -> None:
    assert [rate(each) for each in (0, 999, 1_000, 12_345_678, 2e9)] == [
        "0 B/s", "999 B/s", "1 kB/s", "12.3 MB/s", "2 GB/s",
    ]  # fmt: skip


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
    more = {"replicas": 900, "scenarios": 700, "limits": 9, "spans": 401, "episodes": 5_000}
    points.summary |= more | {"topics": 1_000, "brokers": 450, "leader_changes": 77_001}
    page = "".join(Elements(render(points, title="t", recommendation="r")).texts)
    assert "77,001leader changes1,000 topics" in page
    replicas = len((points.timeline or {})["replicas"])
    for sentence in (
        f"The {replicas} replicas that were out longest, of 900; all are in the table.",
        "The 40 first rules and thresholds of 700; all are in the table.",
        "The 3 limits that held back longest, of 9; all are in the table.",
        "The 2 worst spans of 401; all are in the table.",
        "The 4 worst topics of 1,000; all are in the table.",
        "The 3 worst brokers of 450; all are in the table.",
        "The 60 longest of 5,000; all are in the table.",
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
        assert cells[-3:] == words


def test_a_second_that_is_drawn_ends_within_the_axis() -> None:
    second = {"at_ms": [1_000, 2_000], "step_ms": 1_000}
    assert _span(Points(seconds=[second])) == (1_000, 3_000)


def test_a_count_of_one_is_singular() -> None:
    points = made_up_points()
    points.summary |= {"topics": 1, "replicas": 1}
    page = render(points, title="t", recommendation="r")
    assert "<small>1 topic</small>" in page
    assert "<small>1 replica</small>" in page
