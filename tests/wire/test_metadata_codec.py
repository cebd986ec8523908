"""The partitions of a Metadata response, written directly: the bytes of kio's entities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from insync.wire import messages
from insync.wire.any_version import build
from insync.wire.apis import SUPPORTED, Api
from insync.wire.metadata import MetadataPartition, write_metadata_partitions

VERSIONS = SUPPORTED[Api.METADATA]

brokers = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
partitions = st.builds(
    MetadataPartition,
    error_code=st.sampled_from([ErrorCode.none, ErrorCode.leader_not_available]),
    number=st.integers(0, 2**31 - 1),
    leader=st.integers(-1, 2**31 - 1),
    leader_epoch=st.integers(0, 2**31 - 1),
    replicas=brokers,
    isr=brokers,
    offline=brokers,
)


def response(version: int, its_partitions: object) -> bytes:
    topic = {"name": "orders", "partitions": its_partitions}
    entity = messages.response_type(Api.METADATA, version)
    return messages.write_response(build(entity, {"cluster_id": "c", "topics": [topic]}))


@pytest.mark.parametrize("version", VERSIONS)
@given(described=st.lists(partitions, max_size=5))
def test_partitions_have_the_bytes_of_kios_entities(
    version: int, described: list[MetadataPartition]
) -> None:
    entities = [
        {
            "error_code": each.error_code,
            "partition_index": each.number,
            "leader_id": each.leader,
            "leader_epoch": each.leader_epoch,
            "replica_nodes": each.replicas,
            "isr_nodes": each.isr,
            "offline_replicas": each.offline,
        }
        for each in described
    ]
    written = write_metadata_partitions(described, version)
    assert response(version, written) == response(version, entities)


@pytest.mark.parametrize("version", VERSIONS)
def test_many_partitions_are_counted(version: int) -> None:
    one = MetadataPartition(ErrorCode.none, 0, 1, 0, (1, 2), (1,), (2,))
    many = [one._replace(number=number) for number in range(1_000)]
    body = response(version, write_metadata_partitions(many, version))
    read = messages.read_response(Api.METADATA, version, body, 0)
    assert [each.partition_index for each in read.topics[0].partitions] == list(range(1_000))
