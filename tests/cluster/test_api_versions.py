"""Every version of every API, spoken to a real broker with kio's codec; answers that make sense.

Versions and error codes are Apache Kafka's. Batches are built and read by aiokafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from insync.testing.cluster import Cluster
from insync.wire.apis import Api
from support.cluster.clients import eventually
from support.wire.kio_client import KioClient
from support.wire.kio_requests import (
    ALTER_CONFIGS,
    API_VERSIONS,
    CONSUMER,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DEBUG_REPLICA,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    EARLIEST,
    EARLIEST_LOCAL,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LATEST,
    LATEST_TIERED,
    LIST_OFFSETS,
    MAX_TIMESTAMP,
    METADATA,
    NO_OFFSET,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    TIMEOUT,
    batch,
    create,
    epoch_end,
    fetch,
    list_offset,
    produce,
    produce_values,
    records_of,
)

pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(brokers=1, scope="module")]

VERSIONS = {
    PRODUCE: (0, 13),
    FETCH: (4, 18),
    LIST_OFFSETS: (1, 11),
    METADATA: (0, 13),
    API_VERSIONS: (0, 4),
    CREATE_TOPICS: (2, 7),
    DELETE_TOPICS: (1, 6),
    INIT_PRODUCER_ID: (0, 5),
    OFFSET_FOR_LEADER_EPOCH: (2, 4),
    CREATE_PARTITIONS: (0, 3),
    DESCRIBE_CLUSTER: (0, 2),
    DESCRIBE_CONFIGS: (1, 4),
    ALTER_CONFIGS: (0, 2),
    INCREMENTAL_ALTER_CONFIGS: (0, 1),
    Api.DESCRIBE_LOG_DIRS: (1, 5),
    Api.ELECT_LEADERS: (0, 2),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    Api.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    Api.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
# Transactions and SASL are not offered; groups are not offered yet.
NOT_OFFERED = {
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "SaslHandshake": 17,
    "AddPartitionsToTxn": 24,
    "EndTxn": 26,
    "SaslAuthenticate": 36,
    "ConsumerGroupHeartbeat": 68,
}
TIMES_MS = (1_000, 5_000, 3_000)  # of the three records each written topic begins with
names = (f"topic-{number}" for number in count())


def every_version(api: int, *, first: int | None = None) -> pytest.MarkDecorator:
    lowest, highest = VERSIONS[api]
    return pytest.mark.parametrize("version", range(first or lowest, highest + 1))


@pytest.fixture
def kio(cluster: Cluster) -> Iterator[KioClient]:
    with KioClient(cluster.brokers[1].port) as client:
        yield client
    check_it_serves(cluster)


def check_it_serves(cluster: Cluster) -> None:
    with KioClient(cluster.brokers[1].port) as another:
        assert another.request(API_VERSIONS, 0, {}).error_code is ErrorCode.none


def make_topic(kio: KioClient, *, partitions: int = 1) -> tuple[str, UUID]:
    name = next(names)
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    answer = kio.request(CREATE_TOPICS, 7, {"topics": [wanted], "timeout": TIMEOUT})
    assert answer.topics[0].error_code is ErrorCode.none
    eventually(
        lambda: list_offset(kio, 1, name, EARLIEST) == (ErrorCode.none, 0, -1),
        within_s=10,
        what="the topic has a leader",
    )
    return name, answer.topics[0].topic_id


def written_topic(kio: KioClient) -> tuple[str, UUID]:
    topic = make_topic(kio)
    assert produce(kio, 9, topic, batch(*TIMES_MS)).error_code is ErrorCode.none
    return topic


# Versions and the cluster.


@every_version(API_VERSIONS)
def test_api_versions(kio: KioClient, version: int) -> None:
    answer = kio.request(
        API_VERSIONS, version, {"client_software_name": "kio", "client_software_version": "1"}
    )
    assert answer.error_code is ErrorCode.none
    advertised = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert advertised | VERSIONS == advertised
    assert not set(NOT_OFFERED.values()) & set(advertised)
    ours = {key for key in advertised if key >= 1_000}
    for_tools = {Api.DESCRIBE_REPLICAS, Api.START_MOVES, Api.HOLD_THROTTLE}
    assert ours == for_tools, "the fourth is for brokers only"


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(kio: KioClient) -> None:
    header = load_request_schema(API_VERSIONS, 4).__header_schema__
    kio.send_raw(API_VERSIONS, 5, b"\x04kio\x021\0", header=header)
    answer = kio.receive(API_VERSIONS, 0)
    assert answer.error_code is ErrorCode.unsupported_version
    offered = {each.api_key: each.max_version for each in answer.api_keys}
    assert offered[API_VERSIONS] == 4
    assert kio.request(API_VERSIONS, 4, {}).error_code is ErrorCode.none, "on the same connection"


@pytest.mark.parametrize("api", NOT_OFFERED.values(), ids=NOT_OFFERED)
def test_an_api_that_is_not_offered_closes_the_connection(kio: KioClient, api: int) -> None:
    """As Apache Kafka does with a key it does not serve; clients read ApiVersions first."""
    kio.send_raw(api, 0, b"", header=load_request_schema(METADATA, 0).__header_schema__)
    assert kio.is_closed()


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, last + 1) for api, (_, last) in VERSIONS.items() if api != API_VERSIONS]
    + [(api, first - 1) for api, (first, _) in VERSIONS.items() if first]
    + [(PRODUCE, version) for version in (0, 1, 2)],
)
def test_a_version_that_is_not_served_closes_the_connection(
    kio: KioClient, api: int, version: int
) -> None:
    header = load_request_schema(METADATA, 0).__header_schema__
    kio.send_raw(api, version, bytes(64), header=header)
    assert kio.is_closed()


@every_version(DESCRIBE_CLUSTER)
def test_describe_cluster(kio: KioClient, cluster: Cluster, version: int) -> None:
    answer = kio.request(DESCRIBE_CLUSTER, version, {})
    assert answer.error_code is ErrorCode.none
    assert answer.controller_id == 1
    assert answer.cluster_id == kio.request(METADATA, 9, {"topics": []}).cluster_id
    (broker,) = answer.brokers
    assert (broker.broker_id, broker.host, broker.port) == (1, "127.0.0.1", cluster.brokers[1].port)
    assert broker.rack is None
    if version >= 1:
        assert answer.endpoint_type == 1, "brokers"


def test_describe_cluster_has_no_controllers_to_show(kio: KioClient) -> None:
    answer = kio.request(DESCRIBE_CLUSTER, 1, {"endpoint_type": 2})
    assert answer.error_code is ErrorCode.mismatched_endpoint_type


# Metadata.


@every_version(METADATA)
def test_metadata_of_one_topic(kio: KioClient, cluster: Cluster, version: int) -> None:
    name, topic_id = make_topic(kio, partitions=2)
    answer = kio.request(METADATA, version, {"topics": [{"name": name}]})
    (broker,) = answer.brokers
    assert (broker.node_id, broker.port) == (1, cluster.brokers[1].port)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (ErrorCode.none, name)
    if version >= 1:
        assert answer.controller_id == 1
        assert topic.is_internal is False
    if version >= 10:
        assert topic.topic_id == topic_id
    assert sorted(part.partition_index for part in topic.partitions) == [0, 1]
    for part in topic.partitions:
        assert part.error_code is ErrorCode.none
        assert (part.leader_id, part.replica_nodes, part.isr_nodes) == (1, (1,), (1,))
        if version >= 5:
            assert part.offline_replicas == ()
        if version >= 7:
            assert part.leader_epoch == 0


@every_version(METADATA)
def test_metadata_of_all_topics_and_of_none(kio: KioClient, version: int) -> None:
    name, _ = make_topic(kio)
    everything = kio.request(METADATA, version, {"topics": None if version else []})
    assert name in {topic.name for topic in everything.topics}
    if version >= 1:
        nothing = kio.request(METADATA, version, {"topics": []})
        assert (len(nothing.brokers), nothing.topics) == (1, ())


@every_version(METADATA)
def test_metadata_auto_creates_a_requested_topic(kio: KioClient, version: int) -> None:
    name = next(names)
    values = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    (topic,) = kio.request(METADATA, version, values).topics
    # Apache Kafka answers "not yet" first; clients retry on either.
    assert topic.error_code in (ErrorCode.none, ErrorCode.leader_not_available)
    eventually(
        lambda: kio.request(METADATA, version, values).topics[0].partitions[0].leader_id == 1,
        within_s=10,
        what="the new topic has a leader",
    )


@every_version(METADATA, first=4)
def test_metadata_creates_nothing_unless_allowed(kio: KioClient, version: int) -> None:
    name = next(names)
    values = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    for _ in range(2):
        (topic,) = kio.request(METADATA, version, values).topics
        assert topic.error_code is ErrorCode.unknown_topic_or_partition
        assert (topic.name, topic.partitions) == (name, ())


@every_version(METADATA, first=12)
def test_metadata_by_topic_id(kio: KioClient, version: int) -> None:
    name, topic_id = make_topic(kio)
    unknown = uuid4()
    topics = [{"topic_id": topic_id, "name": None}, {"topic_id": unknown, "name": None}]
    described, missing = kio.request(METADATA, version, {"topics": topics}).topics
    assert (described.error_code, described.name, described.topic_id) == (
        ErrorCode.none,
        name,
        topic_id,
    )
    assert (missing.error_code, missing.topic_id) == (ErrorCode.unknown_topic_id, unknown)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_topic_id_in_a_version_without_it(kio: KioClient, version: int) -> None:
    """Versions 10 and 11 have the field and do not honour it (KAFKA-13270)."""
    _, topic_id = make_topic(kio)
    (topic,) = kio.request(
        METADATA, version, {"topics": [{"topic_id": topic_id, "name": None}]}
    ).topics
    assert topic.error_code is ErrorCode.unsupported_version


# Produce and Fetch.


@every_version(PRODUCE, first=3)
def test_produce(kio: KioClient, version: int) -> None:
    topic = make_topic(kio)
    for number, acks in enumerate((-1, 1)):
        part = produce(kio, version, topic, batch(*TIMES_MS), acks=acks)
        assert (part.index, part.error_code, part.base_offset) == (0, ErrorCode.none, 3 * number)
        assert part.log_append_time is None, "the producer's times are kept"
        if version >= 5:
            assert part.log_start_offset == 0
        if version >= 8:
            assert (part.record_errors, part.error_message) == ((), None)


@every_version(PRODUCE, first=3)
def test_produce_without_acknowledgement_is_not_answered(kio: KioClient, version: int) -> None:
    topic = make_topic(kio)
    kio.send(PRODUCE, version, produce_values(topic, batch(7), acks=0))
    # The next answer on the connection is to the next request.
    assert list_offset(kio, 1, topic[0], LATEST) == (ErrorCode.none, 1, -1)


@every_version(PRODUCE, first=3)
def test_produce_to_an_unknown_topic(kio: KioClient, version: int) -> None:
    part = produce(kio, version, ("no-such-topic", uuid4()), batch(7))
    by_id = version >= 13
    assert part.error_code is (
        ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    )
    assert part.base_offset == -1


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_produce_with_invalid_acks(kio: KioClient, acks: int) -> None:
    topic = make_topic(kio)
    part = produce(kio, 9, topic, batch(7), acks=acks)
    assert part.error_code is ErrorCode.invalid_required_acks
    assert list_offset(kio, 1, topic[0], LATEST) == (ErrorCode.none, 0, -1)


@every_version(FETCH)
def test_fetch(kio: KioClient, version: int) -> None:
    topic = written_topic(kio)
    part = fetch(kio, version, topic, 0)
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (ErrorCode.none, 3, 3)
    assert not part.aborted_transactions
    if version >= 5:
        assert part.log_start_offset == 0
    if version >= 11:
        assert part.preferred_read_replica == -1
    records = records_of(part.records)
    assert [record.offset for record in records] == [0, 1, 2]
    assert [record.timestamp for record in records] == list(TIMES_MS)
    assert [record.value for record in records] == [b"value 0", b"value 1", b"value 2"]
    assert {record.key for record in records} == {b"key"}
    assert {tuple(record.headers) for record in records} == {(("name", b"header"),)}


@every_version(FETCH)
def test_fetch_at_the_log_end_and_out_of_range(kio: KioClient, version: int) -> None:
    topic = written_topic(kio)
    at_end = fetch(kio, version, topic, 3, wait_ms=20)
    assert (at_end.error_code, at_end.high_watermark) == (ErrorCode.none, 3)
    assert not at_end.records
    for outside in (4, 2**40, -1):
        part = fetch(kio, version, topic, outside)
        assert part.error_code is ErrorCode.offset_out_of_range
        assert not part.records


@every_version(FETCH)
def test_fetch_of_an_unknown_topic_or_partition(kio: KioClient, version: int) -> None:
    unknown = ErrorCode.unknown_topic_id if version >= 13 else ErrorCode.unknown_topic_or_partition
    part = fetch(kio, version, ("no-such-topic", uuid4()), 0)
    assert part.error_code is unknown
    part = fetch(kio, version, make_topic(kio), 0, partition=7)
    assert part.error_code is ErrorCode.unknown_topic_or_partition


@every_version(FETCH, first=9)
def test_fetch_with_another_leader_epoch(kio: KioClient, version: int) -> None:
    topic = written_topic(kio)
    assert fetch(kio, version, topic, 0, epoch=0).error_code is ErrorCode.none
    assert fetch(kio, version, topic, 0, epoch=1).error_code is ErrorCode.unknown_leader_epoch


@every_version(FETCH)
def test_fetch_returns_one_batch_even_if_it_exceeds_the_limit(kio: KioClient, version: int) -> None:
    """KIP-74: a consumer whose limit is below one batch still makes progress."""
    topic = written_topic(kio)
    produce(kio, 9, topic, batch(9_000))
    part = fetch(kio, version, topic, 0, bytes_max=1)
    assert [record.offset for record in records_of(part.records)] == [0, 1, 2]


# Offsets.


@every_version(LIST_OFFSETS)
@pytest.mark.parametrize("replica", [CONSUMER, DEBUG_REPLICA])
def test_list_offsets(kio: KioClient, version: int, replica: int) -> None:
    name, _ = written_topic(kio)
    expected = {
        EARLIEST: (0, -1),
        LATEST: (3, -1),
        0: (0, 1_000),
        1_000: (0, 1_000),
        1_001: (1, 5_000),
        4_000: (1, 5_000),
        5_000: (1, 5_000),
        5_001: NO_OFFSET,
    }
    if version >= 7:
        expected[MAX_TIMESTAMP] = (1, 5_000)
    if version >= 8:
        expected[EARLIEST_LOCAL] = (0, -1)
    if version >= 9:
        expected[LATEST_TIERED] = NO_OFFSET
    results = {
        timestamp: list_offset(kio, version, name, timestamp, replica=replica)
        for timestamp in expected
    }
    assert results == {timestamp: (ErrorCode.none, *at) for timestamp, at in expected.items()}


@every_version(LIST_OFFSETS)
def test_list_offsets_of_an_empty_partition(kio: KioClient, version: int) -> None:
    name, _ = make_topic(kio)
    assert list_offset(kio, version, name, EARLIEST) == (ErrorCode.none, 0, -1)
    assert list_offset(kio, version, name, LATEST) == (ErrorCode.none, 0, -1)
    assert list_offset(kio, version, name, 0) == (ErrorCode.none, *NO_OFFSET)
    if version >= 7:
        assert list_offset(kio, version, name, MAX_TIMESTAMP) == (ErrorCode.none, *NO_OFFSET)


@pytest.mark.parametrize(
    ("version", "timestamp"),
    [(6, MAX_TIMESTAMP), (7, EARLIEST_LOCAL), (8, LATEST_TIERED), (11, -9)],
)
def test_list_offsets_with_a_special_timestamp_of_a_later_version(
    kio: KioClient, version: int, timestamp: int
) -> None:
    name, _ = written_topic(kio)
    code, *at = list_offset(kio, version, name, timestamp)
    assert (code, *at) == (ErrorCode.unsupported_version, *NO_OFFSET)


@every_version(LIST_OFFSETS)
def test_list_offsets_of_an_unknown_topic_or_partition(kio: KioClient, version: int) -> None:
    name, _ = make_topic(kio)
    for topic, partition in (("no-such-topic", 0), (name, 7)):
        code, *at = list_offset(kio, version, topic, LATEST, partition=partition)
        assert (code, *at) == (ErrorCode.unknown_topic_or_partition, *NO_OFFSET)


@every_version(LIST_OFFSETS, first=4)
def test_list_offsets_with_another_leader_epoch(kio: KioClient, version: int) -> None:
    name, _ = written_topic(kio)
    assert list_offset(kio, version, name, LATEST, epoch=0) == (ErrorCode.none, 3, -1)
    code, *_ = list_offset(kio, version, name, LATEST, epoch=1)
    assert code is ErrorCode.unknown_leader_epoch


@every_version(OFFSET_FOR_LEADER_EPOCH)
def test_offset_for_leader_epoch(kio: KioClient, version: int) -> None:
    name, _ = written_topic(kio)
    assert epoch_end(kio, version, name, 0) == (ErrorCode.none, 0, 3)
    assert epoch_end(kio, version, name, 0, current=0) == (ErrorCode.none, 0, 3)
    assert epoch_end(kio, version, name, 5) == (ErrorCode.none, *NO_OFFSET)
    unknown = ErrorCode.unknown_leader_epoch
    assert epoch_end(kio, version, name, 0, current=1) == (unknown, *NO_OFFSET)
    nowhere = (ErrorCode.unknown_topic_or_partition, *NO_OFFSET)
    assert epoch_end(kio, version, "no-such-topic", 0) == nowhere
    assert epoch_end(kio, version, name, 0, partition=7) == nowhere


@every_version(INIT_PRODUCER_ID)
def test_init_producer_id(kio: KioClient, version: int) -> None:
    values = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    producers = [kio.request(INIT_PRODUCER_ID, version, values) for _ in range(3)]
    assert {each.error_code for each in producers} == {ErrorCode.none}
    assert {each.producer_epoch for each in producers} == {0}
    assert len({each.producer_id for each in producers}) == 3
    assert all(each.producer_id >= 0 for each in producers)


@every_version(INIT_PRODUCER_ID)
def test_a_transactional_producer_is_refused_at_once(kio: KioClient, version: int) -> None:
    answer = kio.request(INIT_PRODUCER_ID, version, {"transactional_id": "mine"})
    assert answer.error_code is ErrorCode.transactional_id_authorization_failed
    assert answer.producer_id == -1


# Topics.


def partition_count(kio: KioClient, name: str) -> int:
    values = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    return len(kio.request(METADATA, 9, values).topics[0].partitions)


@every_version(CREATE_TOPICS)
def test_create_topics(kio: KioClient, version: int) -> None:
    name = next(names)
    checked = create(kio, version, name=name, num_partitions=3, validate_only=True)
    assert checked.error_code is ErrorCode.none
    assert partition_count(kio, name) == 0, "it was only checked"
    configs = [{"name": "retention.ms", "value": "3600000"}]
    created = create(kio, version, name=name, num_partitions=3, configs=configs)
    assert (created.error_code, created.error_message) == (ErrorCode.none, None)
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (3, 1)
        effective = {each.name: (each.value, each.config_source) for each in created.configs}
        assert effective["retention.ms"] == ("3600000", 1), "the topic's own"
        assert effective["min.insync.replicas"] == ("1", 5), "the default"
        assert effective["unclean.leader.election.enable"] == ("false", 5)
    if version >= 7:
        assert created.topic_id is not None
    assert partition_count(kio, name) == 3
    again = create(kio, version, name=name)
    assert again.error_code is ErrorCode.topic_already_exists
    assert again.error_message == f"Topic '{name}' already exists."


@every_version(CREATE_TOPICS)
@pytest.mark.parametrize("validate_only", [False, True])
def test_create_topics_refuses(kio: KioClient, version: int, *, validate_only: bool) -> None:
    def refused(**wanted: Any) -> ErrorCode:
        wanted = {"name": name, **wanted}
        answer = create(kio, version, validate_only=validate_only, **wanted)
        assert answer.error_message
        code: ErrorCode = answer.error_code
        return code

    name = next(names)
    assert refused(num_partitions=0) is ErrorCode.invalid_partitions
    assert refused(replication_factor=2) is ErrorCode.invalid_replication_factor
    assert refused(name="a/b") is ErrorCode.invalid_topic_exception
    setting = [{"name": "no.such.setting", "value": "1"}]
    assert refused(configs=setting) is ErrorCode.invalid_config
    strangers = [{"partition_index": 0, "broker_ids": (9,)}]
    placed = {"num_partitions": -1, "replication_factor": -1, "assignments": strangers}
    assert refused(**placed) is ErrorCode.invalid_replica_assignment
    assert partition_count(kio, name) == 0


@every_version(CREATE_TOPICS)
def test_create_topics_with_a_replica_assignment(kio: KioClient, version: int) -> None:
    name = next(names)
    placed = [{"partition_index": number, "broker_ids": (1,)} for number in (1, 0)]
    answer = create(
        kio, version, name=name, num_partitions=-1, replication_factor=-1, assignments=placed
    )
    assert answer.error_code is ErrorCode.none
    assert partition_count(kio, name) == 2


@every_version(CREATE_TOPICS, first=4)
def test_create_topics_with_the_brokers_defaults(kio: KioClient, version: int) -> None:
    name = next(names)
    answer = create(kio, version, name=name, num_partitions=-1, replication_factor=-1)
    assert answer.error_code is ErrorCode.none
    assert partition_count(kio, name) == 1


@every_version(DELETE_TOPICS)
def test_delete_topics(kio: KioClient, version: int) -> None:
    name, topic_id = make_topic(kio)
    values = {
        "topic_names": [name, "no-such-topic"],
        "topics": [{"name": name}, {"name": "no-such-topic"}],
        "timeout": TIMEOUT,
    }
    deleted, missing = kio.request(DELETE_TOPICS, version, values).responses
    assert (deleted.name, deleted.error_code) == (name, ErrorCode.none)
    assert missing.error_code is ErrorCode.unknown_topic_or_partition
    if version >= 6:
        assert deleted.topic_id == topic_id
    assert partition_count(kio, name) == 0


@every_version(DELETE_TOPICS, first=6)
def test_delete_topics_by_id(kio: KioClient, version: int) -> None:
    name, topic_id = make_topic(kio)
    unknown = uuid4()
    topics = [{"name": None, "topic_id": each} for each in (topic_id, unknown)]
    deleted, missing = kio.request(
        DELETE_TOPICS, version, {"topics": topics, "timeout": TIMEOUT}
    ).responses
    assert (deleted.topic_id, deleted.error_code) == (topic_id, ErrorCode.none)
    assert (missing.topic_id, missing.error_code) == (unknown, ErrorCode.unknown_topic_id)
    assert partition_count(kio, name) == 0


def grow(
    kio: KioClient,
    version: int,
    name: str,
    to: int,
    *,
    placed: list[dict[str, Any]] | None = None,
    validate_only: bool = False,
) -> ErrorCode:
    values = {
        "topics": [{"name": name, "count": to, "assignments": placed}],
        "timeout": TIMEOUT,
        "validate_only": validate_only,
    }
    (result,) = kio.request(CREATE_PARTITIONS, version, values).results
    assert result.name == name
    code: ErrorCode = result.error_code
    return code


@every_version(CREATE_PARTITIONS)
def test_create_partitions(kio: KioClient, version: int) -> None:
    name, _ = make_topic(kio)
    assert grow(kio, version, name, 2, validate_only=True) is ErrorCode.none
    assert partition_count(kio, name) == 1
    assert grow(kio, version, name, 2) is ErrorCode.none
    assert grow(kio, version, name, 4, placed=[{"broker_ids": (1,)}] * 2) is ErrorCode.none
    assert partition_count(kio, name) == 4


@every_version(CREATE_PARTITIONS)
@pytest.mark.parametrize("validate_only", [False, True])
def test_create_partitions_refuses(kio: KioClient, version: int, *, validate_only: bool) -> None:
    def refused(name: str, to: int, placed: list[dict[str, Any]] | None = None) -> ErrorCode:
        return grow(kio, version, name, to, placed=placed, validate_only=validate_only)

    name, _ = make_topic(kio, partitions=2)
    assert refused(name, 2) is ErrorCode.invalid_partitions
    assert refused(name, 1) is ErrorCode.invalid_partitions
    assert refused("no-such-topic", 3) is ErrorCode.unknown_topic_or_partition
    misplaced = ErrorCode.invalid_replica_assignment
    assert refused(name, 3, [{"broker_ids": (9,)}]) is misplaced
    assert refused(name, 4, [{"broker_ids": (1,)}]) is misplaced, "one place for two partitions"
    assert partition_count(kio, name) == 2


# Settings.

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE, APPEND = 0, 1, 2
LAG = "replica.lag.time.max.ms"


def describe(
    kio: KioClient, version: int, kind: int, name: str, *, keys: list[str] | None = None
) -> Any:
    values = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        "include_synonyms": True,
        "include_documentation": True,
    }
    (result,) = kio.request(DESCRIBE_CONFIGS, version, values).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def alter(
    kio: KioClient,
    api: int,
    version: int,
    kind: int,
    name: str,
    *configs: tuple[str, str | None],
    operation: int = SET,
    validate_only: bool = False,
) -> tuple[ErrorCode, str | None]:
    changes = [{"name": k, "value": v, "config_operation": operation} for k, v in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    values = {"resources": [resource], "validate_only": validate_only}
    (result,) = kio.request(api, version, values).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


@every_version(DESCRIBE_CONFIGS)
def test_describe_configs(kio: KioClient, version: int) -> None:
    name, _ = make_topic(kio)
    configs = {each.name: each for each in describe(kio, version, TOPIC_RESOURCE, name).configs}
    lag = configs[LAG]
    assert (lag.value, lag.config_source, lag.read_only, lag.is_sensitive) == (
        "30000",
        5,
        False,
        False,
    )
    assert [(each.name, each.value, each.source) for each in lag.synonyms] == [(LAG, "30000", 5)]
    if version >= 3:
        assert lag.config_type == 3
        assert lag.documentation.startswith("Time that a follower may be behind")
    (identity,) = describe(kio, version, BROKER_RESOURCE, "1", keys=["node.id"]).configs
    assert (identity.value, identity.read_only, identity.config_source) == ("1", True, 4)
    assert describe(kio, version, TOPIC_RESOURCE, "no-such-topic").error_code is (
        ErrorCode.unknown_topic_or_partition
    )
    assert describe(kio, version, BROKER_RESOURCE, "9").error_code is ErrorCode.invalid_request
    assert describe(kio, version, 77, "9").error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("api", "version"),
    [
        (api, version)
        for api in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS)
        for version in range(VERSIONS[api][0], VERSIONS[api][1] + 1)
    ],
)
def test_alter_configs(kio: KioClient, api: int, version: int) -> None:
    name, _ = make_topic(kio)

    def own() -> dict[str, str]:
        configs = describe(kio, 4, TOPIC_RESOURCE, name).configs
        return {each.name: each.value for each in configs if each.config_source == 1}

    of_topic = TOPIC_RESOURCE, name
    first, second = ("retention.ms", "77"), ("segment.bytes", "2048")
    assert alter(kio, api, version, *of_topic, first, validate_only=True)[0] is ErrorCode.none
    assert own() == {}
    assert alter(kio, api, version, *of_topic, first) == (ErrorCode.none, None)
    assert alter(kio, api, version, *of_topic, second)[0] is ErrorCode.none
    assert own() == (dict([second]) if api == ALTER_CONFIGS else dict([first, second]))
    code, message = alter(kio, api, version, *of_topic, ("retention.m", "77"))
    assert (code, message) == (
        ErrorCode.invalid_config,
        "there is no setting 'retention.m'; did you mean retention.ms?",
    )
    code, _ = alter(kio, api, version, TOPIC_RESOURCE, "no-such-topic", first)
    assert code is ErrorCode.unknown_topic_or_partition
    code, message = alter(kio, api, version, BROKER_RESOURCE, "1", ("node.id", "2"))
    assert code is ErrorCode.invalid_config
    assert message is not None
    assert "read at start only" in message
    assert alter(kio, api, version, BROKER_RESOURCE, "", (LAG, "9000"))[0] is ErrorCode.none
    (config,) = describe(kio, 4, BROKER_RESOURCE, "").configs
    assert (config.name, config.value, config.config_source) == (LAG, "9000", 3)
    assert alter(kio, ALTER_CONFIGS, 2, BROKER_RESOURCE, "")[0] is ErrorCode.none
    assert describe(kio, 4, BROKER_RESOURCE, "").configs == ()


@every_version(INCREMENTAL_ALTER_CONFIGS)
def test_incremental_alter_configs(kio: KioClient, version: int) -> None:
    def done(operation: int, value: str | None) -> ErrorCode:
        config = (LAG, value)
        arguments = kio, INCREMENTAL_ALTER_CONFIGS, version, BROKER_RESOURCE, "1", config
        return alter(*arguments, operation=operation)[0]

    assert done(SET, "8000") is ErrorCode.none
    assert done(APPEND, "1") is ErrorCode.invalid_config
    assert done(SET, None) is ErrorCode.invalid_request
    assert done(7, "1") is ErrorCode.invalid_request
    assert done(SET, "99999999999") is ErrorCode.invalid_config
    (config,) = describe(kio, 4, BROKER_RESOURCE, "1", keys=[LAG]).configs
    assert [(each.source, each.value) for each in config.synonyms] == [(2, "8000"), (5, "30000")]
    assert done(DELETE, None) is ErrorCode.none
    (config,) = describe(kio, 4, BROKER_RESOURCE, "1", keys=[LAG]).configs
    assert (config.value, config.config_source) == ("30000", 5)


# Where replicas are, and where they go.


@every_version(Api.DESCRIBE_LOG_DIRS)
def test_describe_log_dirs(kio: KioClient, version: int) -> None:
    name, _ = written_topic(kio)
    for topics in (None, [{"topic": name, "partitions": (0, 9)}]):
        (directory,) = kio.request(Api.DESCRIBE_LOG_DIRS, version, {"topics": topics}).results
        assert directory.error_code is ErrorCode.none
        sizes = {t.name: [p.partition_size for p in t.partitions] for t in directory.topics}
        assert sizes[name][0] > 0
        if version >= 4:
            assert directory.usable_bytes > 0


@every_version(Api.ALTER_PARTITION_REASSIGNMENTS)
def test_reassignments(kio: KioClient, version: int) -> None:
    name, _ = make_topic(kio)
    wanted = {0: (1,), 1: (1,), 2: None}
    parts = [{"partition_index": n, "replicas": replicas} for n, replicas in wanted.items()]
    topics = [{"name": name, "partitions": parts}]
    values = {"topics": topics, "timeout": TIMEOUT, "allow_replication_factor_change": True}
    answer = kio.request(Api.ALTER_PARTITION_REASSIGNMENTS, version, values)
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    (response,) = answer.responses
    assert [(each.partition_index, each.error_code) for each in response.partitions] == [
        (0, ErrorCode.none),
        (1, ErrorCode.unknown_topic_or_partition),
        (2, ErrorCode.unknown_topic_or_partition),
    ]
    listed = kio.request(Api.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None, "timeout": TIMEOUT})
    assert (listed.error_code, listed.topics) == (ErrorCode.none, ())


@every_version(Api.ELECT_LEADERS)
def test_elect_leaders(kio: KioClient, version: int) -> None:
    name, _ = make_topic(kio)
    topics = [{"topic": name, "partitions": (0, 7)}]
    values = {"election_type": 0, "topic_partitions": topics, "timeout": TIMEOUT}
    (result,) = kio.request(Api.ELECT_LEADERS, version, values).replica_election_results
    assert [(each.partition_id, each.error_code) for each in result.partition_result] == [
        (0, ErrorCode.election_not_needed),
        (7, ErrorCode.unknown_topic_or_partition),
    ]


@every_version(Api.DESCRIBE_TOPIC_PARTITIONS)
def test_describe_topic_partitions(kio: KioClient, version: int) -> None:
    name, topic_id = make_topic(kio, partitions=3)
    request = {"topics": [{"name": name}], "response_partition_limit": 2, "cursor": None}
    first = kio.request(Api.DESCRIBE_TOPIC_PARTITIONS, version, request)
    (topic,) = first.topics
    assert (topic.error_code, topic.topic_id) == (ErrorCode.none, topic_id)
    assert [each.partition_index for each in topic.partitions] == [0, 1]
    cursor = first.next_cursor
    assert (cursor.topic_name, cursor.partition_index) == (name, 2)
    request["cursor"] = {"topic_name": name, "partition_index": 2}
    rest = kio.request(Api.DESCRIBE_TOPIC_PARTITIONS, version, request)
    assert [each.partition_index for each in rest.topics[0].partitions] == [2]
    assert rest.next_cursor is None
