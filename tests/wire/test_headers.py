"""Headers in both versions, as kio writes them and as each client sends them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2

from insync.wire.apis import SUPPORTED, Api
from insync.wire.frames import BadFrame
from insync.wire.headers import (
    RequestHeader,
    read_request_header,
    response_body_at,
    response_correlation_id,
    response_header_bytes,
    write_request_header,
)
from support.wire.message_strategies import int32s, kio_bytes, texts

# kafka-facts, section 10: what each client negotiates, and the header its requests then have.
CLIENT_HEADERS = [
    ("Java 4.3, franz-go", Api.PRODUCE, 13, 2),
    ("Java 4.3, franz-go", Api.FETCH, 18, 2),
    ("Java 4.3, franz-go", Api.METADATA, 13, 2),
    ("Java 4.3, franz-go", Api.LIST_OFFSETS, 11, 2),
    ("Java 4.3, franz-go", Api.INIT_PRODUCER_ID, 5, 2),
    ("Java 4.3, franz-go", Api.OFFSET_FOR_LEADER_EPOCH, 4, 2),
    ("Java 4.3, franz-go", Api.DESCRIBE_CLUSTER, 2, 2),
    ("librdkafka 2.15", Api.API_VERSIONS, 3, 2),
    ("librdkafka 2.15", Api.PRODUCE, 10, 2),
    ("librdkafka 2.15", Api.FETCH, 16, 2),
    ("librdkafka 2.15", Api.LIST_OFFSETS, 7, 2),
    ("librdkafka 2.15", Api.CREATE_TOPICS, 4, 1),
    ("kafka-python 3.0", Api.PRODUCE, 9, 2),
    ("kafka-python 3.0", Api.FETCH, 12, 2),
    ("aiokafka 0.14", Api.API_VERSIONS, 0, 1),
    ("aiokafka 0.14", Api.METADATA, 5, 1),
    ("aiokafka 0.14", Api.PRODUCE, 7, 1),
    ("aiokafka 0.14", Api.FETCH, 11, 1),
    ("aiokafka 0.14", Api.LIST_OFFSETS, 3, 1),
    ("aiokafka 0.14", Api.DELETE_TOPICS, 3, 1),
]


@pytest.mark.parametrize(("client", "api", "version", "header_version"), CLIENT_HEADERS)
def test_each_clients_headers(client: str, api: Api, version: int, header_version: int) -> None:
    header_type = {1: HeaderV1, 2: HeaderV2}[header_version]
    header = header_type(
        request_api_key=api,  # type: ignore[arg-type]
        request_api_version=version,  # type: ignore[arg-type]
        correlation_id=7,  # type: ignore[arg-type]
        client_id=client,
    )
    sent = kio_bytes(header)
    assert read_request_header(sent + b"body") == RequestHeader(api, version, 7, client, len(sent))
    written = write_request_header(
        api_key=api, api_version=version, correlation_id=7, client_id=client
    )
    assert written == sent


@pytest.mark.property
@given(
    api=st.sampled_from(list(SUPPORTED)),
    correlation_id=int32s,
    client_id=st.none() | texts,
    body=st.binary(max_size=9),
    data=st.data(),
)
def test_headers_are_read_back_as_written(
    api: Api, correlation_id: int, client_id: str | None, body: bytes, data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(SUPPORTED[api]))
    request = write_request_header(
        api_key=api, api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    assert read_request_header(request + body) == RequestHeader(
        api, version, correlation_id, client_id, len(request)
    )
    response = response_header_bytes(api, version, correlation_id)
    assert response_correlation_id(response + body) == correlation_id
    assert response_body_at(api, version, response + body) == len(response)
    for size in range(len(request)):
        with pytest.raises(BadFrame):
            read_request_header(request[:size])


def test_unknown_tags_are_skipped() -> None:
    header = write_request_header(
        api_key=Api.FETCH, api_version=12, correlation_id=1, client_id=None
    )
    tagged = header[:-1] + b"\2" + b"\x05\2ab" + b"\x81\1\0"
    assert read_request_header(tagged).body_at == len(tagged)
    response = response_header_bytes(Api.FETCH, 12, 1)[:-1] + b"\1\0\1x"
    assert response_body_at(Api.FETCH, 12, response) == len(response)


def test_api_versions_is_answered_without_tags_in_every_version() -> None:
    for version in SUPPORTED[Api.API_VERSIONS]:
        assert response_header_bytes(Api.API_VERSIONS, version, 1) == b"\0\0\0\1"


def test_headers_with_unknown_keys_and_versions_are_read() -> None:
    sent = write_request_header(api_key=9999, api_version=77, correlation_id=3, client_id="new")
    assert read_request_header(sent)[:4] == (9999, 77, 3, "new")
    future = write_request_header(
        api_key=Api.API_VERSIONS, api_version=99, correlation_id=4, client_id="new"
    )
    assert read_request_header(future) == (Api.API_VERSIONS, 99, 4, "new", len(future))


@pytest.mark.parametrize("frame", [b"", b"\0\0\0"])
def test_a_short_response_is_refused(frame: bytes) -> None:
    with pytest.raises(BadFrame):
        response_correlation_id(frame)
    with pytest.raises(BadFrame):
        response_body_at(Api.FETCH, 12, frame)


@pytest.mark.parametrize("client_id", [b"\xff\xfe", b"\xc3"])
def test_a_client_id_that_is_not_text_is_refused(client_id: bytes) -> None:
    frame = b"\0\1\0\4\0\0\0\1" + len(client_id).to_bytes(2, "big") + client_id
    with pytest.raises(BadFrame):
        read_request_header(frame)
