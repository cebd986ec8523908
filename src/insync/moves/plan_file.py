"""The JSON of kafka-reassign-partitions: checked when read, written as Kafka writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from insync.client.small_files import read_small_text
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import BadPlan
from insync.rules.throttled_replicas import ID_MAX
from insync.rules.values import BrokerId, PartitionId

Plan = dict[TopicPartition, tuple[BrokerId, ...]]

VERSION: Final = 1
ANY_DIRECTORY: Final = "any"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
SHOWN_MAX: Final = 60


def read_text(path: Path) -> str:
    return read_small_text(path, bytes_max=FILE_BYTES_MAX, refusal=BadPlan, encoding="utf-8-sig")


def parse_plan(text: str) -> Plan:
    """`{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}`."""
    plan: Plan = {}
    for location, entry in _entries(text, "partitions"):
        topic = _topic(entry, location)
        partition = topic, PartitionId(_number(entry, "partition", location))
        name = f"{topic}-{partition[1]}"
        if partition in plan:
            _refuse(f"{name} is listed more than once; keep one entry of it")
        replicas = entry.get("replicas")
        if not isinstance(replicas, list):
            _refuse(f"{name} has no list of replicas")
        if not all(_is_id(broker) for broker in replicas):
            _refuse(f"{name}: replicas are broker ids, not {_shown(replicas)}")
        if not replicas:
            _refuse(f"{name}: the replica list is empty; name at least one broker")
        if len(set(replicas)) < len(replicas):
            twice = next(each for each in replicas if replicas.count(each) > 1)
            _refuse(f"{name}: broker {twice} is listed more than once; name each broker once")
        _check_directories(entry.get("log_dirs"), name, len(replicas))
        plan[partition] = tuple(BrokerId(broker) for broker in replicas)
    if not plan:
        _refuse("the list of partitions is empty; there is nothing to move")
    return plan


def parse_topics(text: str) -> list[str]:
    """`{"version":1,"topics":[{"topic":"t"}]}`."""
    topics = [_topic(entry, location) for location, entry in _entries(text, "topics")]
    if not topics:
        _refuse("the list of topics is empty; there is nothing to move")
    twice = sorted({each for each in topics if topics.count(each) > 1})
    if twice:
        _refuse(f"topic {twice[0]!r} is listed more than once")
    return topics


def names_directories(text: str) -> bool:
    """Whether a plan names log directories: Insync's brokers choose their own."""
    return any(
        each != ANY_DIRECTORY
        for _, entry in _entries(text, "partitions")
        for each in entry.get("log_dirs") or ()
    )


def plan_json(plan: Mapping[TopicPartition, Sequence[BrokerId]]) -> str:
    """One compact line, sorted, as Kafka prints it."""
    partitions = [
        {
            "topic": topic,
            "partition": number,
            "replicas": list(plan[topic, number]),
            "log_dirs": [ANY_DIRECTORY] * len(plan[topic, number]),
        }
        for topic, number in sorted(plan)
    ]
    whole = {"version": VERSION, "partitions": partitions}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)


def _entries(text: str, what: str) -> list[tuple[str, dict[str, Any]]]:
    """Each entry of the list, with its location for messages."""
    try:
        whole = json.loads(text)
    except RecursionError:
        _refuse("the JSON is nested too deeply to be a plan")
    except ValueError as error:
        _refuse(f"this is not JSON: {error}")
    if not isinstance(whole, dict):
        _refuse(f"the JSON must be an object with {what!r}, not {_shown(whole)}")
    version = whole.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        _refuse(f"version {_shown(version)} is not known; insync reads version {VERSION}")
    entries = whole.get(what)
    if not isinstance(entries, list):
        _refuse(f"the JSON has no list of {what!r}")
    located = []
    for index, entry in enumerate(entries):
        location = f"{what}[{index}]"
        if not isinstance(entry, dict):
            _refuse(f"{location} is {_shown(entry)}, not an object")
        located.append((location, entry))
    return located


def _topic(entry: dict[str, Any], location: str) -> str:
    topic = entry.get("topic")
    if not isinstance(topic, str) or not topic:
        _refuse(f"{location} names no topic")
    return topic


def _number(entry: dict[str, Any], name: str, location: str) -> int:
    number = entry.get(name)
    if not _is_id(number):
        _refuse(f"{location}: {name} is {_shown(number)}; write a number from 0")
    assert isinstance(number, int), "checked above"
    return number


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= ID_MAX


def _check_directories(directories: object, name: str, replicas: int) -> None:
    if directories is None:
        return
    if not isinstance(directories, list) or not all(isinstance(each, str) for each in directories):
        _refuse(f"{name}: log_dirs is a list of directories, not {_shown(directories)}")
    if directories and len(directories) != replicas:
        _refuse(
            f"{name} has {replicas} replicas but {len(directories)} log_dirs; give as many or none"
        )


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def _refuse(message: str) -> NoReturn:
    raise BadPlan(message)
