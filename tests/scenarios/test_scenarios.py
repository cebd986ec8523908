"""Every documented scenario holds, statement by statement; broken texts say what is wrong."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.scenarios import library
from insync.scenarios.text import STEPS_MAX, BadScenario, Story, parse
from insync.scenarios.timeline import RowKind

HEAD = "title T\ndocument D\ncolumns caught-up\nreplicas 1 2\nlag-time-max-ms 1000\n"
QUOTA = "title T\ndocument D\nabout quota\ncolumns amended\nquota-bytes-per-s 1000\n"


def wrong(text: str) -> list[str]:
    return [row.text for row in library.play(parse("mine", text)).wrong]


@pytest.mark.parametrize("name", library.names())
def test_every_expectation_of_the_documents_scenarios_holds(name: str) -> None:
    timeline = library.play(library.load(name))
    assert [row.text for row in timeline.wrong] == []
    assert any(row.kind is RowKind.EXPECTED for row in timeline.rows), "it states nothing"


def test_every_document_has_its_scenarios() -> None:
    documents = " ".join(library.load(name).document for name in library.names())
    for document in ("KIP-16", "KAFKA-4485", "KIP-501", "KIP-73", "article"):
        assert document in documents


def test_an_expectation_that_does_not_hold_is_reported() -> None:
    assert wrong(HEAD + "0 append 1\n0 expect caught-up isr=1,2 end=2") == [
        "line 7: expected caught-up isr=1,2 end=2, but caught-up has end=1"
    ]


def test_a_deadline_comes_before_an_event_of_the_same_millisecond() -> None:
    text = HEAD + "0 append 1\n0 fetch 2 offset=0\n1001 fetch 2 offset=1\n"
    timeline = library.play(parse("mine", text))
    decisions = [cell.decisions for row in timeline.rows for cell in row.cells.values()]
    assert [decision for decision in decisions if decision] == [("2 leaves",), ("2 joins",)]


def test_a_repeated_step_is_one_row() -> None:
    timeline = library.play(parse("mine", HEAD + "0..900/100 append 1\n900 expect all end=10"))
    assert [row.kind for row in timeline.rows] == [RowKind.EVENT, RowKind.EXPECTED]


def test_the_description_lines_are_joined() -> None:
    scenario = parse("mine", HEAD + "| one\n| two\n0 tick")
    assert [step.text for step in scenario.steps if isinstance(step, Story)] == ["one two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line 'title'"),
        ("title T\ndocument D", "no line 'columns'"),
        ("title T\ndocument D\ncolumns caught-up\n0 tick", "no line 'replicas'"),
        (HEAD.replace("caught-up", "caught-down"), "use one of messages"),
        (HEAD.replace("caught-up", "caught-up/often"), "no variant 'often'"),
        (HEAD.replace("1 2", "one two"), "not a list of broker ids"),
        (HEAD.replace("1000", "soon"), "write a whole number"),
        (HEAD.replace("1000", "400"), "below replica.lag.time.max.ms"),
        (HEAD + "about weather\n0 tick", "use membership, quota"),
        (HEAD + "isr 3\n0 tick", "isr lists a broker that replicas does not"),
        (HEAD + "lag-time-max 9\n0 tick", "there is no setting 'lag-time-max'"),
        (HEAD + "0 tick\nnext tick", "a step begins with its time"),
        (HEAD + "5 tick\n4 tick", "time goes back from 5 to 4"),
        (HEAD + "5", "nothing happens at 5"),
        (HEAD + "5..4/1 tick", "no range"),
        (HEAD + "0..9/0 tick", "out of range"),
        (HEAD + "0..9 tick", "neither a time nor a range"),
        (HEAD + "0..999999/1 tick", "at most 10000 steps"),
        (HEAD + "9999999999999999 tick", "out of range"),
        (HEAD + "٣ tick", "neither a time nor a range"),
        (HEAD + "0 sneeze", "nothing is called 'sneeze'"),
        (HEAD + "0 append", "append needs a number of records"),
        (HEAD + "0 append 0", "adds something"),
        (HEAD + "0 append -1", "write a whole number"),
        (HEAD + "0 fetch 9 offset=0", "9 is not a replica"),
        (HEAD + "0 fetch 2", "fetch needs offset=NUMBER"),
        (HEAD + "0 fetch 2 offset=ago:x", "write a whole number"),
        (HEAD + "0 read 2 offset=0\n0 read 2 offset=0", "already has a read under way"),
        (HEAD + "0 kill 2\n0 fetch 2 offset=0", "broker 2 is dead"),
        (HEAD + "0 tick in=messages", "there is no column 'messages'"),
        (HEAD + "0 expect", "expect needs a column"),
        (HEAD + "0 expect caught-up", "expect needs key=value"),
        (HEAD + "0 expect messages isr=1", "there is no column 'messages'"),
        (HEAD + "0 expect all mood=good", "nothing is known of 'mood'"),
        (HEAD + "0 expect all deadline:9=1", "9 is not a replica"),
        (QUOTA.replace("amended", "tuesday"), "there is no column 'tuesday'"),
        (QUOTA + "0 append 1", "nothing is called 'append'"),
        (QUOTA + "0 batch a-0 1 dead", "in-sync or behind, not 'dead'"),
        (QUOTA + "0 batch a-0", "batch needs bytes"),
        (QUOTA + "0 measure\n0 expect amended mood=good", "nothing is known of 'mood'"),
    ],
)
def test_a_broken_text_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        library.play(parse("mine", text))
    assert "\n" not in str(refusal.value)


def test_a_text_without_end_is_refused() -> None:
    with pytest.raises(BadScenario, match="at most"):
        parse("mine", HEAD + "0 tick\n" * (STEPS_MAX + 1))


VOCABULARY = (
    "0 1 2 7 900 0..50/9 append fetch read served failed expect disconnect session stall drained "
    "kill restart tick all offset=0 offset=end offset=read offset=ago:5 isr=1,2 | #"
)
WORDS = st.sampled_from([*VOCABULARY.split(), "\n", "\n", "\n"])


@pytest.mark.property
@given(st.lists(WORDS, max_size=60))
def test_any_text_is_played_or_refused(words: list[str]) -> None:
    """Whatever a person types, it ends, and in a refusal at worst."""
    text = HEAD.replace("caught-up", "messages caught-up/half-period true-lag/no-stall-rule")
    with suppress(BadScenario):
        library.play(parse("mine", text + " ".join(words)))
