"""Plays a scenario about who is in sync: the same events, one column per policy.

| step                       | means                                                              |
|----------------------------|--------------------------------------------------------------------|
| `append N`                 | the leader appends N records                                       |
| `fetch B offset=O`         | B fetches from O and is answered at once; O is a number, `end`     |
|                            | (the leader's), `read` (all its previous fetch could give it) or   |
|                            | `ago:MS` (where the leader's end was MS ago)                       |
| `read B offset=O`          | such a fetch arrives, and its read takes its time                  |
| `served B`, `failed B`     | that read is done                                                  |
| `disconnect B`             | B's connection closes                                              |
| `session B`                | B's fetch session asks for news without listing this partition     |
| `stall MS`                 | the leader, until now, did not run for MS                          |
| `drained`                  | ... and has now read what waited in its sockets                    |
| `kill B`, `restart B`      | B's session ends; B returns as a new incarnation                   |
| `expect COLUMN key=value`  | what the document says; COLUMN may be `all`                        |
| `tick`                     | nothing: a moment to look at                                       |

Traffic is the same in every column; `in=COLUMN` at the end of a step is for what only happens
there, such as fetches from a leader that only it has.

Keys of `expect`: `isr`, `leader`, `hw`, `end`, `acknowledged`, `lost`, and `deadline:B` for the
millisecond at which B leaves (or `none`). `isr=1,2` lists brokers in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from insync.rules.stalls import Stall
from insync.rules.values import BrokerId, Offset
from insync.scenarios.column import Column
from insync.scenarios.text import Scenario, Step, Story
from insync.scenarios.timeline import Row, RowKind, Timeline, judged, timeline_of


def play(scenario: Scenario) -> Timeline:
    by_name = {name: Column(name, scenario) for name in scenario.columns}
    columns = list(by_name.values())
    rows: list[Row] = []
    clock_ms = 0
    for step in scenario.steps:
        if isinstance(step, Story):
            rows.append(Row(kind=RowKind.STORY, at_ms=None, text=step.text, cells={}))
            continue
        is_stall = step.verb == "stall"
        # A leader that did not run decided nothing meanwhile.
        runs_until_ms = step.at_ms - (step.number(0, "its length") if is_stall else 0)
        rows.extend(_decisions(columns, clock_ms, until_ms=runs_until_ms))
        clock_ms = step.at_ms
        if step.verb == "expect":
            rows.append(judged(step, by_name, partial(_found, by_name, step)))
            continue
        for column in _addressed(by_name, step):
            _apply(column, step)
            column.wake(now_ms=step.at_ms)
            column.acknowledge()
        # A repeated step is shown once, and again where a column decided something.
        if not step.is_repeat or any(column.decisions for column in columns):
            rows.append(_row(columns, RowKind.EVENT, step.at_ms, str(step)))
    return timeline_of(scenario, rows)


def _decisions(columns: list[Column], now_ms: int, *, until_ms: int) -> list[Row]:
    """What time alone brings about up to and including this millisecond, deadline by deadline."""
    rows: list[Row] = []
    while True:
        moments = [column.next_decision_ms() for column in columns]
        due = [moment for moment in moments if moment is not None and moment <= until_ms]
        if not due:
            return rows
        now_ms = max(now_ms, min(due))
        before = [column.values() for column in columns]
        for column in columns:
            column.wake(now_ms=now_ms)
            column.acknowledge()
        if [column.values() for column in columns] != before:
            rows.append(_row(columns, RowKind.DECISION, now_ms, "time passes"))


def _addressed(by_name: dict[str, Column], step: Step) -> list[Column]:
    if "in" not in step.values:
        return list(by_name.values())
    if step.values["in"] not in by_name:
        raise step.refuse(f"there is no column {step.values['in']!r}")
    return [by_name[step.values["in"]]]


def _row(columns: list[Column], kind: RowKind, at_ms: int, text: str) -> Row:
    cells = {column.name: column.cell() for column in columns}
    return Row(kind=kind, at_ms=at_ms, text=text, cells=cells)


def _found(by_name: dict[str, Column], step: Step, name: str, key: str) -> str:
    column = by_name[name]
    if key.startswith("deadline:"):
        broker = key.removeprefix("deadline:")
        moment = column.deadline_ms(_broker(column, step, broker))
        return "none" if moment is None else str(moment)
    values = column.values()
    if key not in values:
        raise step.refuse(f"nothing is known of {key!r}; use {', '.join(values)} or deadline:B")
    value = values[key]
    if isinstance(value, list):
        return ",".join(str(member) for member in value)
    return "none" if value is None else str(value)


def _broker(column: Column, step: Step, text: str) -> BrokerId:
    for broker in column.state.replicas:
        if str(broker) == text:
            return broker
    raise step.refuse(f"{text} is not a replica")


def _apply(column: Column, step: Step) -> None:
    verb = VERBS.get(step.verb)
    if verb is None:
        raise step.refuse(f"nothing is called {step.verb!r}; use {', '.join(VERBS)} or expect")
    verb(column, step)


def _live_broker(column: Column, step: Step) -> BrokerId:
    broker = _broker(column, step, step.word(0, "a broker"))
    if broker not in column.registered:
        raise step.refuse(f"broker {broker} is dead")
    return broker


def _append(column: Column, step: Step) -> None:
    count = step.number(0, "a number of records")
    if count == 0:
        raise step.refuse("an append adds something")
    column.append(count, now_ms=step.at_ms)


def _read(column: Column, step: Step) -> None:
    broker = _live_broker(column, step)
    if broker in column.reads:
        raise step.refuse(f"{broker} already has a read under way")
    column.read_began(broker, _offset(column, step, broker), now_ms=step.at_ms)


def _offset(column: Column, step: Step, broker: BrokerId) -> Offset:
    match step.values.get("offset"):
        case "end":
            return column.end_ago(0, now_ms=step.at_ms)
        case "read":
            return column.read_so_far(broker)
        case str(text) if text.startswith("ago:"):
            ago_ms = step.integer(text.removeprefix("ago:"), "offset=ago:MS")
            return column.end_ago(ago_ms, now_ms=step.at_ms)
        case _:
            return Offset(step.value_number("offset"))


def _fetch(column: Column, step: Step) -> None:
    _read(column, step)
    column.read_served(_live_broker(column, step), now_ms=step.at_ms)


def _stall(column: Column, step: Step) -> None:
    length_ms = step.number(0, "its length")
    column.stalled(Stall(began_at_ms=step.at_ms - length_ms, ended_at_ms=step.at_ms))


VERBS: dict[str, Callable[[Column, Step], None]] = {
    "append": _append,
    "fetch": _fetch,
    "read": _read,
    "served": lambda column, step: column.read_served(
        _live_broker(column, step), now_ms=step.at_ms
    ),
    "failed": lambda column, step: column.read_failed(
        _live_broker(column, step), now_ms=step.at_ms
    ),
    "disconnect": lambda column, step: column.disconnected(
        _live_broker(column, step), now_ms=step.at_ms
    ),
    "session": lambda column, step: column.session_fetched(
        _live_broker(column, step), now_ms=step.at_ms
    ),
    "stall": _stall,
    "drained": lambda column, step: column.drained(now_ms=step.at_ms),
    "kill": lambda column, step: column.killed(_live_broker(column, step), now_ms=step.at_ms),
    "restart": lambda column, step: column.restarted(
        _broker(column, step, step.word(0, "a broker")), now_ms=step.at_ms
    ),
    "tick": lambda _column, _step: None,
}
