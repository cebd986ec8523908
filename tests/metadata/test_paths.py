"""Kafka's paths, and the names it allows."""

import pytest

from insync.metadata import paths
from insync.metadata.errors import BadTopicName


def test_paths_are_kafkas() -> None:
    assert paths.broker_id(1) == "/brokers/ids/1"
    assert paths.topic("t") == "/brokers/topics/t"
    assert paths.partition_state("t", 0) == "/brokers/topics/t/partitions/0/state"
    assert paths.topic_config("t") == "/config/topics/t"
    assert paths.broker_config(3) == "/config/brokers/3"
    assert paths.broker_config(None) == "/config/brokers/<default>"
    assert paths.delete_topic("t") == "/admin/delete_topics/t"
    assert paths.throttle_lease("x1") == "/admin/throttle_leases/x1"
    assert paths.throttle_hold("/admin/throttle_leases/x1") == "/admin/throttle_holds/x1"


def test_a_path_is_read_back() -> None:
    assert paths.partition_of(paths.partition_state("a.b-c", 12)) == ("a.b-c", 12)
    for other in ("/brokers/topics/t", "/brokers/topics/t/partitions/x/state", "/controller"):
        assert paths.partition_of(other) is None
    assert paths.session_of(paths.session(7)) == 7
    assert paths.session_of("/sessions") is paths.session_of("/sessions/7/x") is None


@pytest.mark.parametrize("name", ["a", "...", "A.b_c-9", "x" * 249])
def test_names_kafka_allows(name: str) -> None:
    assert paths.checked_topic_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a/b", "a b", "a\0", "ä", "a\n", "٣", "a:b"]
)
def test_names_kafka_refuses(name: str) -> None:
    with pytest.raises(BadTopicName):
        paths.partition_state(name, 0)
