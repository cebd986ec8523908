"""Produce written by hand and by kio is the same bytes, both ways, in every version."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from insync.wire import messages
from insync.wire.apis import PRODUCE_VERSIONS
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    read_produce,
    read_produce_response,
    write_produce_request,
    write_produce_response,
)
from support.wire.message_strategies import (
    FEWER,
    int32s,
    kio_bytes,
    nested,
    produce_request_to_kio,
    produce_requests,
    produce_results,
    produce_results_to_kio,
)

every_version = pytest.mark.parametrize("version", PRODUCE_VERSIONS)


@pytest.mark.property
@every_version
@FEWER
@given(data=st.data())
def test_requests_are_kios(version: int, data: st.DataObject) -> None:
    request = data.draw(produce_requests(version))
    twin = produce_request_to_kio(version, request)
    body = kio_bytes(twin)
    assert write_produce_request(version, request) == body
    assert read_produce(version, b"head" + body, 4) == request
    assert entity_reader(type(twin))(body, 0) == (twin, len(body))


@pytest.mark.property
@every_version
@FEWER
@given(data=st.data(), throttle_ms=int32s)
def test_responses_are_kios(version: int, data: st.DataObject, throttle_ms: int) -> None:
    results = data.draw(produce_results(version))
    twin = produce_results_to_kio(version, results, throttle_ms)
    body = kio_bytes(twin)
    assert write_produce_response(version, results, throttle_ms) == body
    assert read_produce_response(version, b"head" + body, 4) == ProduceResponse(
        results, throttle_ms
    )


def test_records_are_a_writable_view_of_the_frame() -> None:
    request = ProduceRequest(None, 1, 100, [ProducePartition("t", 0, b"records")])
    frame = bytearray(write_produce_request(9, request))
    (part,) = read_produce(9, memoryview(frame), 0).partitions
    assert isinstance(part.records, memoryview)
    part.records[:] = b"stamped"
    assert b"stamped" in frame


@pytest.mark.parametrize("version", [8, 9, 13])
def test_errors_of_single_records_are_skipped(version: int) -> None:
    topic = UUID(int=9) if version >= 13 else "t"
    result = ProduceResult(topic, 3, 87, -1, error_message="one record is wrong")
    twin = produce_results_to_kio(version, [result], 0)
    (kio_topic,) = twin.responses
    (part,) = kio_topic.partition_responses
    wrong = nested(type(twin), "BatchIndexAndErrorMessage")(
        batch_index=2, batch_index_error_message="null key"
    )
    part = replace(part, record_errors=(wrong, wrong))
    twin = replace(twin, responses=(replace(kio_topic, partition_responses=(part,)),))
    assert read_produce_response(version, kio_bytes(twin), 0).results == [result]


@pytest.mark.parametrize("version", [-1, 0, 2, 14])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(messages.BadMessage, match=f"v{version} is not supported"):
        read_produce(version, b"", 0)
    with pytest.raises(messages.BadMessage, match=f"v{version} is not supported"):
        read_produce_response(version, b"", 0)
