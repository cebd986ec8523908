"""Plans as files: Kafka's JSON, and files that are something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.moves.plan_file import (
    names_directories,
    parse_plan,
    parse_topics,
    plan_json,
    read_text,
)
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId, PartitionId


def test_kafkas_own_output_is_read_and_written_back() -> None:
    """As kafka-reassign-partitions 4.3.1 printed it, except for the directories' names."""
    text = (
        '{"version":1,"partitions":[{"topic":"foo","partition":0,"replicas":[1,2],'
        '"log_dirs":["any","any"]},{"topic":"foo","partition":1,"replicas":[2,3],'
        '"log_dirs":["any","any"]}]}'
    )
    plan = parse_plan(text)
    assert plan == {
        ("foo", PartitionId(0)): (BrokerId(1), BrokerId(2)),
        ("foo", PartitionId(1)): (BrokerId(2), BrokerId(3)),
    }
    assert plan_json(plan) == text
    assert not names_directories(text)
    assert names_directories(text.replace("any", "/data"))
    assert parse_plan(text.replace("any", "/data")) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is not JSON"),
        ("{", "this is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "must be an object with 'partitions', not []"),
        ("null", "must be an object"),
        ('{"version":2,"partitions":[]}', "version 2 is not known; insync reads version 1"),
        ('{"version":"1","partitions":[]}', 'version "1" is not known'),
        ('{"version":true,"partitions":[]}', "version true is not known"),
        ('{"version":1}', "no list of 'partitions'"),
        ('{"version":1,"partitions":{}}', "no list of 'partitions'"),
        ('{"version":1,"partitions":[]}', "the list of partitions is empty"),
        ('{"version":1,"partitions":[7]}', "partitions[0] is 7, not an object"),
        ('{"partitions":[{"partition":0,"replicas":[1]}]}', "partitions[0] names no topic"),
        ('{"partitions":[{"topic":"","partition":0,"replicas":[1]}]}', "names no topic"),
        ('{"partitions":[{"topic":"t","replicas":[1]}]}', "partition is null; write a number"),
        ('{"partitions":[{"topic":"t","partition":-1,"replicas":[1]}]}', "partition is -1"),
        ('{"partitions":[{"topic":"t","partition":true,"replicas":[1]}]}', "partition is true"),
        ('{"partitions":[{"topic":"t","partition":0.5,"replicas":[1]}]}', "partition is 0.5"),
        ('{"partitions":[{"topic":"t","partition":4294967296,"replicas":[1]}]}', "4294967296"),
        ('{"partitions":[{"topic":"t","partition":0}]}', "t-0 has no list of replicas"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[]}]}', "replica list is empty"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":["1"]}]}', 'broker ids, not ["1"]'),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}', "broker 1 is listed"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[-5]}]}', "broker ids, not [-5]"),
        (
            '{"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["a","b"]}]}',
            "t-0 has 1 replicas but 2 log_dirs",
        ),
        (
            '{"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":"any"}]}',
            'log_dirs is a list of directories, not "any"',
        ),
        (
            '{"partitions":[%s,%s]}' % (('{"topic":"t","partition":0,"replicas":[1]}',) * 2),
            "t-0 is listed more than once",
        ),
    ],
)
def test_a_text_that_is_not_a_plan(text: str, message: str) -> None:
    with pytest.raises(BadPlan) as refused:
        parse_plan(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_number_of_thousands_of_digits() -> None:
    with pytest.raises(BadPlan):
        parse_plan(f'{{"partitions":[{{"topic":"t","partition":{"9" * 10_000},"replicas":[1]}}]}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version":1,"topics":[]}', "the list of topics is empty"),
        ('{"version":1,"partitions":[]}', "no list of 'topics'"),
        ('{"topics":[{"topic":"t"},{"topic":"t"}]}', "topic 't' is listed more than once"),
        ('{"topics":[{"name":"t"}]}', "topics[0] names no topic"),
    ],
)
def test_a_text_that_is_not_a_list_of_topics(text: str, message: str) -> None:
    with pytest.raises(BadPlan) as refused:
        parse_topics(text)
    assert message in str(refused.value)


def test_topics() -> None:
    assert parse_topics('{"version":1,"topics":[{"topic":"a"},{"topic":"b"}]}') == ["a", "b"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match="No such file"):
        read_text(tmp_path / "none.json")
    with pytest.raises(BadPlan, match="Is a directory"):
        read_text(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadPlan, match="not UTF-8"):
        read_text(binary)
    marked = tmp_path / "marked"
    marked.write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(marked) == "{}", "as some editors begin a file"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["version", "partitions", "topic", "partition", "replicas", "log_dirs"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@pytest.mark.property
@given(JSON)
def test_any_json_is_a_plan_or_one_refusal(value: object) -> None:
    text = json.dumps(value)
    try:
        plan = parse_plan(text)
    except BadPlan:
        return
    names_directories(text)
    assert parse_plan(plan_json(plan)) == plan
