"""Every supported version can be read and written, as kio does it."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from insync.wire import messages
from insync.wire.apis import (
    INSYNC_APIS,
    PRODUCE_VERSIONS,
    SUPPORTED,
    Api,
    is_flexible,
    is_supported,
)
from insync.wire.messages import BadMessage
from support.wire.message_strategies import FEWEST, kio_bytes, sample

IN_KIO = [
    (api, version)
    for api, versions in SUPPORTED.items()
    if api not in INSYNC_APIS
    for version in (PRODUCE_VERSIONS if api is Api.PRODUCE else versions)
]
every_message = pytest.mark.parametrize(("api", "version"), IN_KIO)


@every_message
def test_flexible_means_what_kio_says(api: Api, version: int) -> None:
    assert load_request_schema(api, version).__flexible__ == is_flexible(api, version)
    assert load_response_schema(api, version).__flexible__ == is_flexible(api, version)


def test_is_supported_accepts_any_integers() -> None:
    assert is_supported(Api.FETCH, 18)
    assert not is_supported(Api.FETCH, 19)
    assert not is_supported(Api.FETCH, -1)
    assert not is_supported(9999, 0)
    assert not is_flexible(9999, 100)
    assert not is_flexible(Api.BROKER_HELLO, 0)


@every_message
def test_every_version_is_written_and_read(api: Api, version: int) -> None:
    request = sample(messages.request_type(api, version))
    body = messages.write_request(request)
    assert body == kio_bytes(request)
    assert messages.read_request(api, version, b"head" + body, 4) == request
    response = sample(messages.response_type(api, version))
    body = messages.write_response(response)
    assert body == kio_bytes(response)
    assert messages.read_response(api, version, b"head" + body, 4) == response


@every_message
def test_a_message_cut_off_anywhere_is_refused(api: Api, version: int) -> None:
    body = messages.write_request(sample(messages.request_type(api, version)))
    for size in range(len(body)):
        with pytest.raises(BadMessage):
            messages.read_request(api, version, body[:size], 0)
    body = messages.write_response(sample(messages.response_type(api, version)))
    for size in range(len(body)):
        with pytest.raises(BadMessage):
            messages.read_response(api, version, body[:size], 0)


@pytest.mark.property
@pytest.mark.parametrize("api", sorted({api for api, _ in IN_KIO}))
@FEWEST
@given(data=st.data())
def test_messages_are_written_and_read_as_by_kio(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([v for a, v in IN_KIO if a is api]))
    request = data.draw(drawn(messages.request_type(api, version)))
    body = messages.write_request(request)
    assert body == kio_bytes(request)
    assert messages.read_request(api, version, b"head" + body, 4) == kio_reads(request, body)
    response = data.draw(drawn(messages.response_type(api, version)))
    body = messages.write_response(response)
    assert body == kio_bytes(response)
    assert messages.read_response(api, version, b"head" + body, 4) == kio_reads(response, body)


def drawn(entity_type: Any) -> st.SearchStrategy[Any]:
    return st.from_type(entity_type)


def kio_reads(entity: Any, body: bytes) -> Any:
    twin, size = entity_reader(type(entity))(body, 0)
    assert size == len(body)
    return twin


def test_tags_of_newer_peers_are_skipped() -> None:
    # kio 0.6.5 raises KeyError here.
    body = b"\x02a\x02b" + b"\2" + b"\x09\3abc" + b"\x0a\0"
    request = messages.read_request(Api.API_VERSIONS, 3, body, 0)
    assert (request.client_software_name, request.client_software_version) == ("a", "b")


def test_a_tagged_field_that_does_not_fill_its_size_is_refused() -> None:
    fixed = b"\0\0" + b"\1" + bytes(4)  # no error, no APIs, no throttle
    epoch = bytes(8)
    body = fixed + b"\1" + b"\1\x08" + epoch
    assert messages.read_response(Api.API_VERSIONS, 3, body, 0).finalized_features_epoch == 0
    with pytest.raises(BadMessage, match="tagged field finalized_features_epoch"):
        messages.read_response(Api.API_VERSIONS, 3, fixed + b"\1" + b"\1\x09" + epoch + b"x", 0)


def test_errors_of_newer_brokers_are_errors() -> None:
    body = b"\0\0\0\0" + b"\x30\x39" + bytes(10)
    response = messages.read_response(Api.INIT_PRODUCER_ID, 0, body, 0)
    assert response.error_code.name == "unknown_server_error"


def test_a_writable_frame_can_be_read() -> None:
    frame = memoryview(bytearray(b"\xff\xff\xff\xff"))
    assert messages.read_request(Api.METADATA, 1, frame, 0).topics is None


def test_bytes_after_the_last_field_are_ignored_as_apache_kafka_does() -> None:
    # librdkafka 2.15 sends three of them after a Metadata request for all topics.
    assert messages.read_request(Api.METADATA, 1, b"\xff\xff\xff\xff" + b"abc", 0).topics is None


def test_a_request_too_large_to_become_objects_is_refused() -> None:
    with pytest.raises(BadMessage, match="the most allowed"):
        messages.read_request(Api.METADATA, 9, bytes(messages.REQUEST_BYTES_MAX + 1), 0)


def test_only_used_versions_are_imported() -> None:
    script = (
        "import sys; from insync.wire import messages; from insync.wire.apis import Api;"
        "messages.read_request(Api.METADATA, 1, b'\\xff' * 4, 0);"
        "print(sorted(m for m in sys.modules if m.startswith('kio.schema.metadata.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    met = "kio.schema.metadata.v1"
    assert done.stdout.strip() == str([met, f"{met}.request", f"{met}.response"])
