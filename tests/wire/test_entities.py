"""Readers and writers agree with kio's for every API of kio, also those Insync does not support."""

from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.produce.v3.response import PartitionProduceResponse
from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.serial import entity_reader as kio_reader

from insync.wire.entity_readers import entity_reader
from insync.wire.entity_writers import entity_writer
from insync.wire.primitives import MALFORMED, BadMessage
from support.wire.message_strategies import kio_bytes, sample

# FetchSnapshot and UpdateRaftVoter have tagged entities without a default; both are KRaft's alone.
NOT_READ = (59, 82)
NEWEST = [
    (key, max(schema_name_map[name])) for key, name in api_key_map.items() if key not in NOT_READ
]
CUTS_MAX = 100


@pytest.mark.parametrize(("api_key", "version"), NEWEST)
@pytest.mark.parametrize("nulls", [False, True], ids=["values", "nulls"])
def test_every_api_that_kio_knows(api_key: int, version: int, nulls: bool) -> None:  # noqa: FBT001
    agree_on(load_request_schema(api_key, version), nulls=nulls)
    agree_on(load_response_schema(api_key, version), nulls=nulls)


def agree_on(entity_type: Any, *, nulls: bool) -> None:
    entity = sample(entity_type, nulls=nulls)
    body = entity_writer(entity_type)(entity)
    assert body == kio_bytes(entity)
    assert entity_reader(entity_type)(memoryview(body), 0) == (entity, len(body))
    assert kio_reader(entity_type)(body, 0) == (entity, len(body))
    for size in range(0, len(body), 1 + len(body) // CUTS_MAX):
        with pytest.raises((*MALFORMED, BadMessage)):
            entity_reader(entity_type)(memoryview(body)[:size], 0)


def test_bytes_that_may_not_be_null() -> None:
    entity = sample(SyncGroupRequest)
    body = entity_writer(SyncGroupRequest)(entity)
    assert body.count(b"\x06bytes") == 2
    with pytest.raises(BadMessage, match="bytes before byte"):
        read_all(SyncGroupRequest, body.replace(b"\x06bytes", b"\0"))


@pytest.mark.parametrize("milliseconds", [2**62, -(2**62)])
def test_a_timestamp_out_of_range(milliseconds: int) -> None:
    body = bytes(14) + milliseconds.to_bytes(8, "big", signed=True)
    with pytest.raises(BadMessage, match="an instant at"):
        read_all(PartitionProduceResponse, body)


def read_all(entity_type: type, body: bytes) -> object:
    return entity_reader(entity_type)(memoryview(body), 0)
