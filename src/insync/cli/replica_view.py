"""The text of `insync replicas`: totals, the brokers that cause something, then topics.

It is made for 80 columns and for thousands of partitions, so the number of lines does not grow with
them: partitions with the same reason are one line, and long lists end with how many are left out.
On a screen the totals are always visible; what does not fit below them is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import Final, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from insync.cli.replica_advice import broker_text
from insync.cli.replica_causes import BrokerTrouble, Diagnosis, Group, TopicTrouble
from insync.cli.replica_words import Reason, count_text, duration, lag, reason, size, why
from insync.client.replica_lag import FollowerRow, Report
from insync.pipeline.words import ranges_text

BROKERS_SHOWN: Final = 10
TOPICS_SHOWN: Final = 20
GROUPS_SHOWN: Final = 6  # of a topic
REASON_LINES: Final = 3  # an operating system's message may be long
RANGES_WIDTH_MIN: Final = 24  # else they have a line of their own
LOW_SCREEN: Final = 16
NARROWEST: Final = 20  # a narrower terminal cuts
LABEL_WIDTH: Final = 12
WAITING: Final = frozenset(
    {
        Reason.CATCHING_UP,
        Reason.THROTTLED,
        Reason.JOINING,
        Reason.JOINS_NEXT,
        Reason.CAUGHT_UP_OUTSIDE,
    }
)


class Line(NamedTuple):
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    report: Report
    diagnosis: Diagnosis
    shows_all: bool = False
    fits_screen: bool = False  # cut to the terminal's height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = console.size.height if self.fits_screen else None
        for style, lines in groupby(self.lines(options.max_width, height), lambda line: line.style):
            text = "\n".join(line.text for line in lines)
            yield Text(text, style=style, no_wrap=True, overflow="ignore")

    def lines(self, width: int, height: int | None = None) -> list[Line]:
        width = max(width, NARROWEST)
        is_low = height is not None and height < LOW_SCREEN
        head = list(
            _head_lines(self.report, self.diagnosis, width, shows_all=self.shows_all, is_low=is_low)
        )
        body = list(self._body(width))
        room = None if height is None else max(0, height - len(head) - 1)  # one for the cursor
        if room is None or len(body) <= room:
            return head + body
        shown = max(0, room - 1)
        more = f"... {count_text(len(body) - shown, 'line')} more"
        hint = ": without --watch, or --topic NAME"
        last = more + hint if len(more + hint) <= width else more
        return [*head, *body[:shown], Line(last[:width], "bold")]

    def _nothing_wrong(self) -> Line:
        if not self.report.rows:
            return Line("No followers.", "green")
        if self.report.problems:  # it is an old report
            return Line("Every replica was in sync at the latest update.", "yellow")
        return Line("Every replica is in sync.", "green")

    def _body(self, width: int) -> Iterator[Line]:
        if not self.diagnosis.brokers and not self.diagnosis.topics:
            yield Line("")
            yield self._nothing_wrong()
        yield from _broker_lines(self.diagnosis.brokers, width)
        if self.shows_all:
            yield from _all_lines(self.report, width)
        else:
            yield from _topic_lines(self.diagnosis.topics, width)


# Totals.


def _head_lines(
    report: Report, diagnosis: Diagnosis, width: int, *, shows_all: bool, is_low: bool
) -> Iterator[Line]:
    """On a low screen only what may be wrong: the worst broker's sentence needs the room."""
    totals = diagnosis.totals
    responding = totals.brokers - totals.silent - totals.down
    under = "?" if totals.under_min_isr is None else f"{totals.under_min_isr:,}"
    hint = "" if shows_all or not report.rows else "; --all shows each replica"
    source = "as the leaders know it" if report.is_exact else "measured from outside, ~ estimated"
    brokers = (
        f"{totals.brokers:,}: {responding:,} responding, {totals.silent:,} not responding, "
        f"{totals.down:,} down"
    )
    partitions = (
        f"{totals.partitions:,}: {under} under min ISR, {totals.without_leader:,} without leader, "
        f"{totals.under_replicated:,} under-replicated"
    )
    replicas = (
        f"{totals.replicas:,}: {totals.out_of_sync:,} out of sync, {totals.offline:,} offline, "
        f"{totals.unknown:,} of unknown lag"
    )
    healthy = (
        f"{count_text(totals.healthy_topics, 'topic')}, "
        f"{count_text(totals.healthy_partitions, 'partition')}{hint}"
    )
    rows = (
        ("brokers", brokers, totals.silent + totals.down),
        ("partitions", partitions, totals.without_leader + (totals.under_min_isr or 0)),
        ("replicas", replicas, totals.out_of_sync + totals.offline),
        *(() if is_low else (("healthy", healthy, 0), ("lag", source, 0))),
    )
    for label, text, wrong in rows:
        yield from _folded(f"{label:<{LABEL_WIDTH}}{text}", width, LABEL_WIDTH, "red" * bool(wrong))
    if report.problems:
        text = f"NOT COMPLETE: {'; '.join(report.problems)}"
        yield from _folded(text, width, 2, "bold red", most=1 if is_low else REASON_LINES)


# Brokers.


def _broker_lines(brokers: Sequence[BrokerTrouble], width: int) -> Iterator[Line]:
    for trouble in brokers[:BROKERS_SHOWN]:
        is_waiting = trouble.state in WAITING
        yield Line("")
        yield from _folded(broker_text(trouble), width, 2, "yellow" if is_waiting else "bold red")
    if len(brokers) > BROKERS_SHOWN:
        yield Line("")
        names = ", ".join(str(each.broker) for each in brokers[BROKERS_SHOWN:])
        text = f"and {count_text(len(brokers) - BROKERS_SHOWN, 'broker')} more: {names}"
        yield from _folded(text, width, 2, "bold red", most=REASON_LINES)


# Topics, their partitions folded.


def _topic_lines(topics: Sequence[TopicTrouble], width: int) -> Iterator[Line]:
    for topic in topics[:TOPICS_SHOWN]:
        yield Line("")
        yield from _folded(_topic_text(topic), width, 2, "bold")
        for group in topic.groups[:GROUPS_SHOWN]:
            yield from _partitions_lines(group, width)
            yield from _folded(f"    {group_text(group)}", width, 6, most=REASON_LINES)
        left = topic.groups[GROUPS_SHOWN:]
        if left:
            replicas = count_text(sum(len(group.rows) for group in left), "replica")
            yield Line(f"  and {replicas} more with other reasons"[:width])
    left_topics = topics[TOPICS_SHOWN:]
    if left_topics:
        partitions = count_text(sum(topic.affected for topic in left_topics), "partition")
        yield Line("")
        text = (
            f"and {count_text(len(left_topics), 'topic')} more with {partitions}: "
            "--topic NAME or --all shows them"
        )
        yield from _folded(text, width, 2, "bold")


def _topic_text(topic: TopicTrouble) -> str:
    counts = (
        (topic.without_leader, "without leader"),
        (topic.under_min_isr or 0, "under min ISR"),
        (topic.out_of_sync, "with a replica out of sync"),
    )
    parts = [f"{number:,} {words}" for number, words in counts if number]
    of = f"{topic.affected:,} of {count_text(topic.partitions, 'partition')}"
    return f"{topic.topic}: {of}{': ' if parts else ''}{', '.join(parts)}"


def _partitions_lines(group: Group, width: int) -> Iterator[Line]:
    numbers = group.partitions
    match group.reason:
        case Reason.NO_LEADER:
            label = "no leader"
        case Reason.LEADER_SILENT | Reason.PENDING_READ:
            label = f"leader {group.broker}"
        case _:
            label = f"follower {group.broker}, {'in sync' if group.in_sync else 'out of sync'}"
    start = f"  {label}, {count_text(len(numbers), 'partition')}:"
    room = width - len(start) - 1
    if room >= min(RANGES_WIDTH_MIN, len(ranges_text(numbers, width))):
        yield Line(f"{start} {ranges_text(numbers, room)}")
    else:  # a list that the terminal cuts would be a wrong one
        yield from _folded(start, width, 4)
        yield from _folded(f"    {ranges_text(numbers, width - 4)}", width, 6)


def group_text(group: Group) -> str:
    """The reason of the replica that is worst, and how far they are behind."""
    worst = max(
        group.rows, key=lambda row: (row.lag_ms or 0, row.silent_ms or 0, row.messages or 0)
    )
    parts = [why(worst)]
    messages = max((row.messages or 0 for row in group.rows), default=0)
    if messages:
        sizes = [row.bytes for row in group.rows if row.bytes is not None]
        behind = f" ({size(sum(sizes))} in all)" if any(sizes) else ""
        parts.append(f"at most {count_text(messages, 'message')} behind{behind}")
    leaves = [row.leaves_in_ms for row in group.rows if row.leaves_in_ms is not None]
    if leaves:
        parts.append(f"leaves the ISR in {duration(min(leaves))}")
    return "; ".join(parts)


# Each replica.

_COLUMNS: Final = "  {:>9} {:>6} {:>8} {:>7} {:>9} {:>10} {:>9} {:>10}"
_HEADINGS: Final = _COLUMNS.format(
    "partition", "leader", "follower", "in sync", "lag", "messages", "bytes", "leaves in"
)


def _all_lines(report: Report, width: int) -> Iterator[Line]:
    is_internal = {topic.name: topic.is_internal for topic in report.topics}
    by_topic = groupby(
        sorted(report.rows, key=lambda row: (is_internal.get(row.topic, False), *row.key)),
        lambda row: row.topic,
    )
    for topic, rows in by_topic:
        yield Line("")
        yield from _folded(topic, width, 2, "bold")
        yield Line(_HEADINGS, "bold")
        yield from _rows(rows, width)


def _rows(rows: Iterable[FollowerRow], width: int) -> Iterator[Line]:
    for row in rows:
        text = _COLUMNS.format(
            row.partition,
            "none" if row.leader is None else row.leader,
            row.follower,
            "yes" if row.in_sync else "no",
            lag(row),
            "?" if row.messages is None else f"{row.messages:,}",
            size(row.bytes),
            "" if row.leaves_in_ms is None else duration(row.leaves_in_ms),
        )
        yield Line(text.rstrip(), "" if row.in_sync else "red")
        if reason(row) is not Reason.HEALTHY:
            yield from _folded(f"    {why(row)}", width, 6, most=REASON_LINES)


def _folded(
    text: str, width: int, indent: int, style: str = "", *, most: int | None = None
) -> Iterator[Line]:
    """Folded at words, the following lines indented; more than `most` lines are cut."""
    start = text[: len(text) - len(text.lstrip())]
    lines = wrap(
        text.strip(),
        width,
        initial_indent=start,
        subsequent_indent=" " * indent,
        max_lines=most,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    for line in lines:
        yield Line(line, style)
