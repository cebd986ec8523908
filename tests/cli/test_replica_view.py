"""The screen of `insync replicas`: what is on it, at 80 columns, and with 5 000 partitions."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from insync.cli.replica_view import ReplicaView
from insync.client.replica_lag import FollowerRow
from insync.client.replica_limits import Limits
from insync.pipeline.words import ranges_text
from insync.wire.describe_replicas import OfflineSeen
from support.cli.replica_reports import (
    INTERNAL,
    diagnosis_of,
    evicted_report,
    healthy_report,
    map_rows,
    shown,
    stopped_report,
)

TOPICS = {"orders": 90, "payments": 60, INTERNAL: 9}
LARGE = {f"topic-{number:02}": 100 for number in range(50)}
LARGE_ENOUGH_S = 0.3


def test_a_healthy_cluster_is_its_totals() -> None:
    assert shown(healthy_report(TOPICS)) == [
        "brokers     3: 3 responding, 0 not responding, 0 down",
        "partitions  159: 0 under min ISR, 0 without leader, 0 under-replicated",
        "replicas    477: 0 out of sync, 0 offline, 0 of unknown lag",
        "healthy     3 topics, 159 partitions; --all shows each replica",
        "lag         as the leaders know it",
        "",
        "Every replica is in sync.",
    ]


def test_an_old_report_is_not_said_to_be_the_present() -> None:
    old = replace(healthy_report(TOPICS), problems=("not updated for 11.0 s: timed out",))
    assert shown(old)[-1] == "Every replica was in sync at the latest update."


def test_a_stopped_broker_is_one_sentence_then_topics() -> None:
    assert shown(stopped_report(healthy_report(TOPICS))) == [
        "brokers     3: 2 responding, 1 not responding, 0 down",
        "partitions  159: 0 under min ISR, 0 without leader, 0 under-replicated",
        "replicas    477: 0 out of sync, 0 offline, 106 of unknown lag",
        "healthy     0 topics, 0 partitions; --all shows each replica",
        "lag         as the leaders know it",
        "NOT COMPLETE: broker 3: does not respond",
        "",
        "broker 3 stopped fetching 8.8 s ago and does not respond: still in all its ISRs,",
        "  leads 53 (not responding); the controller evicts it in about 200 ms and elects",
        "  other leaders; do: check its host and its process",
        "",
        "orders: 90 of 90 partitions",
        "  leader 3, 30 partitions: 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, ... 19 more",
        "    broker 3 leads it and does not respond",
        "  follower 3, in sync, 60 partitions: 0-1, 3-4, 6-7, 9-10, 12-13, ... 50 more",
        "    caught up, but stopped fetching for 8.8 s",
        "",
        "payments: 60 of 60 partitions",
        "  leader 3, 20 partitions: 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, ... 9 more",
        "    broker 3 leads it and does not respond",
        "  follower 3, in sync, 40 partitions: 0-1, 3-4, 6-7, 9-10, 12-13, ... 30 more",
        "    caught up, but stopped fetching for 8.8 s",
        "",
        f"{INTERNAL}: 9 of 9 partitions",
        "  leader 3, 3 partitions: 2, 5, 8",
        "    broker 3 leads it and does not respond",
        "  follower 3, in sync, 6 partitions: 0-1, 3-4, 6-7",
        "    caught up, but stopped fetching for 8.8 s",
    ]


def test_an_evicted_broker_is_down() -> None:
    limits = Limits(min_isr={"orders": 3, "payments": 2, INTERNAL: 2})
    lines = shown(evicted_report(healthy_report(TOPICS)), limits=limits)
    assert lines[:12] == [
        "brokers     3: 2 responding, 0 not responding, 1 down",
        "partitions  159: 90 under min ISR, 0 without leader, 159 under-replicated",
        "replicas    477: 159 out of sync, 159 offline, 0 of unknown lag",
        "healthy     0 topics, 0 partitions; --all shows each replica",
        "lag         as the leaders know it",
        "",
        "broker 3 is down, its latest fetch was 12.5 s ago: out of 159 ISRs, leads 0; do:",
        "  start it; if its process runs, check its host",
        "",
        "orders: 90 of 90 partitions: 90 under min ISR, 90 with a replica out of sync",
        "  follower 3, out of sync, 90 partitions: 0-89",
        "    its broker is down",
    ]


def test_min_isr_that_brokers_do_not_tell_is_not_invented() -> None:
    lines = shown(evicted_report(healthy_report(TOPICS)))
    assert lines[1] == "partitions  159: ? under min ISR, 0 without leader, 159 under-replicated"


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("shows_all", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, shows_all: bool) -> None:  # noqa: FBT001
    reason = "No space left on device: '/var/lib/insync/broker-3/orders-0/0000.log' " * 9

    def change(row: FollowerRow) -> FollowerRow:
        if row.follower != 2 or row.partition > 3:
            return row
        seen = OfflineSeen(row.topic, row.partition, 5, 9, is_damaged=True, reason=reason)
        return replace(row, in_sync=False, offline=seen)

    long_names = {"x" * 249: 2_000, "orders": 90}
    for report in (
        healthy_report(long_names),
        stopped_report(healthy_report(long_names)),
        evicted_report(healthy_report(long_names)),
        map_rows(healthy_report(long_names), change),
    ):
        lines = shown(report, width, shows_all=shows_all)
        assert max(map(len, lines)) <= width
        console = Console(file=io.StringIO(), width=width)
        console.print(
            ReplicaView(report=report, diagnosis=diagnosis_of(report), shows_all=shows_all)
        )
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue().splitlines() == lines, "rich neither folds nor cuts"


def test_at_forty_columns_no_list_of_partitions_is_cut() -> None:
    lines = shown(stopped_report(healthy_report(TOPICS)), 40)
    assert max(map(len, lines)) <= 40
    at = lines.index("  follower 3, in sync, 60 partitions:")
    assert lines[at + 1] == "    0-1, 3-4, 6-7, 9-10, ... 52 more"
    assert shown(stopped_report(healthy_report(TOPICS)), 5), "not an exception"


def test_a_wide_page_has_the_sentence_in_one_line() -> None:
    lines = shown(stopped_report(healthy_report(TOPICS)), 220)
    assert (
        "broker 3 stopped fetching 8.8 s ago and does not respond: still in all its ISRs, leads 53 "
        "(not responding); the controller evicts it in about 200 ms and elects other leaders; "
        "do: check its host and its process"
    ) in lines


def test_on_a_low_screen_the_totals_leave_room_for_what_to_do() -> None:
    lines = shown(stopped_report(healthy_report(TOPICS)), 80, 10)
    assert [line.split()[0] for line in lines[:4]] == ["brokers", "partitions", "replicas", "NOT"]
    assert "do: check its host and its process" in re.sub(r"\n +", " ", "\n".join(lines))
    assert lines[-1].startswith("... 18 lines more: ")
    assert len(lines) == 9
    narrow = shown(stopped_report(healthy_report(TOPICS)), 40, 10)
    assert len(narrow) <= 9
    assert narrow[-1].endswith("lines more")


@pytest.mark.parametrize("height", [16, 24, 40])
def test_a_screen_always_has_the_totals_and_says_what_does_not_fit(height: int) -> None:
    report = stopped_report(healthy_report(LARGE))
    lines, whole = shown(report, 80, height), shown(report, 80)
    assert len(lines) == height - 1  # the cursor's
    assert lines[:6] == whole[:6]
    assert lines[:-1] == whole[: len(lines) - 1]
    left = len(whole) - (len(lines) - 1)
    assert lines[-1] == f"... {left} lines more: without --watch, or --topic NAME"


def test_a_screen_that_is_high_enough_shows_everything() -> None:
    report = stopped_report(healthy_report(TOPICS))
    whole = shown(report, 80)
    assert shown(report, 80, len(whole) + 1) == whole
    assert shown(report, 80, len(whole))[-1].startswith("... 2 lines more")


def test_five_thousand_partitions_are_few_lines_and_fast() -> None:
    healthy = healthy_report(LARGE)
    assert len(healthy.rows) == 10_000
    assert len(shown(healthy)) == 7
    for report in (stopped_report(healthy), evicted_report(healthy)):
        began_s = time.process_time()
        diagnosis = diagnosis_of(report)
        console = Console(file=io.StringIO(), width=80)
        console.print(ReplicaView(report=report, diagnosis=diagnosis))
        took_s = time.process_time() - began_s
        assert took_s < LARGE_ENOUGH_S
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert len(lines) <= 6 + 4 + 20 * 6 + 2
        assert lines[-1] == (
            "and 30 topics more with 3,000 partitions: --topic NAME or --all shows them"
        )


def test_all_shows_each_replica_with_the_reason_below() -> None:
    lines = shown(stopped_report(healthy_report({"orders": 2, INTERNAL: 1})), shows_all=True)
    at = lines.index("orders")
    assert lines[at + 1 : at + 8] == [
        "  partition leader follower in sync       lag   messages     bytes  leaves in",
        "          0      1        2     yes      0 ms          0       0 B",
        "          0      1        3     yes      0 ms          0       0 B",
        "    caught up, but stopped fetching for 8.8 s",
        "          1      2        1     yes      0 ms          0       0 B",
        "          1      2        3     yes      0 ms          0       0 B",
        "    caught up, but stopped fetching for 8.8 s",
    ]
    assert lines.index(INTERNAL) > at


@pytest.mark.parametrize(
    ("numbers", "width", "text"),
    [
        ([4], 3, "4"),
        ([0, 1, 2, 5, 7, 8], 80, "0-2, 5, 7-8"),
        (list(range(0, 200, 2)), 40, "0, 2, 4, 6, 8, 10, 12, 14, ... 92 more"),
        ([*range(20), 25, 30], 11, "0-19, ... 2 more"),
        ([1_000, 2_000], 3, "1000, ... 1 more"),
    ],
)
def test_ranges(numbers: list[int], width: int, text: str) -> None:
    assert ranges_text(numbers, width) == text
