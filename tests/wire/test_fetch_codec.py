"""Fetch written by hand and by kio is the same bytes, both ways, in every version."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from insync.wire import messages
from insync.wire.apis import FETCH_VERSIONS, Api
from insync.wire.fetch import (
    JOIN_BYTES_MAX,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    buffers_size,
    read_fetch,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from support.wire.message_strategies import (
    FEWER,
    fetch_request_to_kio,
    fetch_requests,
    fetch_response_to_kio,
    fetch_responses,
    kio_bytes,
    nested,
)

every_version = pytest.mark.parametrize("version", FETCH_VERSIONS)
TOPIC_ID = UUID(int=9)


@pytest.mark.property
@every_version
@FEWER
@given(data=st.data())
def test_requests_are_kios(version: int, data: st.DataObject) -> None:
    request = data.draw(fetch_requests(version))
    twin = fetch_request_to_kio(version, request)
    body = kio_bytes(twin)
    assert write_fetch_request(version, request) == body
    assert read_fetch(version, b"head" + body, 4) == request
    assert entity_reader(type(twin))(body, 0) == (twin, len(body))


@pytest.mark.property
@every_version
@FEWER
@given(data=st.data())
def test_responses_are_kios(version: int, data: st.DataObject) -> None:
    response = data.draw(fetch_responses(version))
    body = kio_bytes(fetch_response_to_kio(version, response))
    buffers = write_fetch_response(version, response)
    assert b"".join(buffers) == body
    assert buffers_size(buffers) == len(body)
    assert read_fetch_response(version, b"head" + body, 4) == response


@pytest.mark.property
@pytest.mark.parametrize("version", [17, 18])
@FEWER
@given(data=st.data())
def test_fields_of_kraft_are_skipped(version: int, data: st.DataObject) -> None:
    request = data.draw(fetch_requests(version))
    tags = {"replica_directory_id": UUID(int=5)}
    with_tags = fetch_request_to_kio(version, request, **tags)
    assert read_fetch(version, kio_bytes(with_tags), 0) == request


@pytest.mark.parametrize("version", [16, 17, 18])
def test_node_endpoints_and_snapshots_are_skipped(version: int) -> None:
    of = messages.response_type(Api.FETCH, version)
    endpoint = nested(of, "NodeEndpoint")(node_id=1, host="h", port=9092, rack=None)
    fetched = FetchedPartition(0, 6, -1, current_leader=(1, 5), records=b"")
    response = FetchResponse(topics=[(TOPIC_ID, [fetched])])
    twin = fetch_response_to_kio(version, response, node_endpoints=(endpoint, endpoint))
    body = kio_bytes(twin)
    assert read_fetch_response(version, body, 0) == response


def test_one_partition_with_tags_among_many_without() -> None:
    rows = [FetchPartition(n, 1, 2, 3, 4, 5) for n in range(3)]
    body = write_fetch_request(18, FetchRequest(topics=[FetchTopic(TOPIC_ID, rows)]))
    row = bytes.fromhex("0000000100000001")
    start = body.index(row)
    tags_at = start + 32
    assert body[tags_at] == 0
    tag = b"\1\1\x08" + bytes(8)  # one tag, number 1 (high watermark), eight bytes
    body = body[:tags_at] + tag + body[tags_at + 1 :]
    ((_, partitions),) = read_fetch(18, body, 0).topics
    assert partitions == rows


@pytest.mark.parametrize("version", range(12, 19))
def test_unknown_tags_of_a_request_are_skipped(version: int) -> None:
    request = FetchRequest(cluster_id="c", topics=[], forgotten=[])
    body = write_fetch_request(version, request)
    tags = b"\1\0\2\2c"
    assert body.endswith(tags)
    newer = body[: -len(tags)] + b"\2\0\2\2c" + (b"\1\1x" if version < 15 else b"\x09\1x")
    assert read_fetch(version, newer, 0) == request


@every_version
def test_no_records_are_written_as_empty_never_as_null(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "t"
    response = FetchResponse(topics=[(topic, [FetchedPartition(0, 0, 5, records=None)])])
    (body,) = write_fetch_response(version, response)
    ((_, (fetched,)),) = read_fetch_response(version, body, 0).topics
    assert fetched.records == b""


@every_version
def test_large_records_are_not_copied(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "t"
    log = memoryview(bytearray(3 * JOIN_BYTES_MAX))
    first, second = log[: JOIN_BYTES_MAX + 1], log[JOIN_BYTES_MAX + 1 :]
    rows = [
        FetchedPartition(0, 0, 5, records=first),
        FetchedPartition(1, 0, 5, records=b"small"),
        FetchedPartition(2, 0, 5, records=second),
    ]
    buffers = write_fetch_response(version, FetchResponse(topics=[(topic, rows)]))
    assert [type(buffer) for buffer in buffers] == [bytes, memoryview, bytes, memoryview, bytes]
    assert buffers[1] is first
    assert buffers[3] is second


@pytest.mark.parametrize("version", [-1, 3, 19])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(messages.BadMessage, match=f"v{version} is not supported"):
        read_fetch(version, b"", 0)
    with pytest.raises(messages.BadMessage, match=f"v{version} is not supported"):
        read_fetch_response(version, b"", 0)
