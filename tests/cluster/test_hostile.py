"""Bytes from strangers: each gets an error or a closed connection, and the broker serves on."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode

from insync.testing.cluster import HOST, Cluster
from insync.wire import batches, messages
from insync.wire.apis import Api
from insync.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from insync.wire.headers import response_body_at, write_request_header
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as started:
        yield started


class Talk:
    """A client that sends whatever it is told to."""

    def __init__(self, cluster: Cluster) -> None:
        self.socket = socket.create_connection((HOST, cluster.brokers[1].port), timeout=10)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, api: int, version: int, body: bytes) -> tuple[bytes, int]:
        head = write_request_header(
            api_key=api, api_version=version, correlation_id=7, client_id="stranger"
        )
        self.send(struct.pack(">i", len(head) + len(body)) + head + body)
        frame = self.receive()
        return frame, response_body_at(api, version, frame)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "closed in the middle of an answer"
            data += more
        return data

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def talk(cluster: Cluster) -> Iterator[Talk]:
    talking = Talk(cluster)
    yield talking
    talking.close()
    check_it_serves(cluster)


def check_it_serves(cluster: Cluster) -> None:
    well_behaved = Talk(cluster)
    frame, body_at = well_behaved.ask(
        Api.API_VERSIONS, 0, messages.write_request(ApiVersionsRequest())
    )
    answer = messages.read_response(Api.API_VERSIONS, 0, frame, body_at)
    assert answer.error_code is ErrorCode.none
    well_behaved.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        struct.pack(">ihhih", 10, 3, 12, 1, 30_000),
        struct.pack(">ihhih", 10, 9_999, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        # An array that claims to have two thousand million topics, in a frame of 14 bytes.
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
    ],
    ids=["empty", "negative", "huge", "http", "tls", "client-id", "api", "version", "array"],
)
def test_what_is_no_request_ends_its_connection(talk: Talk, data: bytes) -> None:
    talk.send(data)
    assert talk.is_closed()


def test_half_a_frame_and_gone(talk: Talk) -> None:
    talk.send(struct.pack(">i", 1_000) + b"half")


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(talk: Talk) -> None:
    frame, _ = talk.ask(Api.API_VERSIONS, 99, b"\x01\x01\x00")
    answer = messages.read_response(Api.API_VERSIONS, 0, frame, 4)
    assert answer.error_code is ErrorCode.unsupported_version
    assert any(each.api_key == Api.FETCH for each in answer.api_keys)


def produce(talk: Talk, topic: str, records: bytes) -> ErrorCode:
    request = ProduceRequest(None, 1, 5_000, [ProducePartition(topic, 0, records)])
    frame, body_at = talk.ask(Api.PRODUCE, 9, write_produce_request(9, request))
    return ErrorCode(read_produce_response(9, frame, body_at).results[0].error)


GOOD = batches.build([(None, b"value")])


def broken(**fields: tuple[int, int]) -> bytes:
    """A good batch with bytes overwritten: position and value."""
    batch = bytearray(GOOD)
    for position, value in fields.values():
        batch[position] = value
    return bytes(batch)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (GOOD[:-1], ErrorCode.corrupt_message),
        (GOOD + b"tail", ErrorCode.corrupt_message),
        (b"", ErrorCode.corrupt_message),
        (broken(crc=(17, 1)), ErrorCode.corrupt_message),
        (broken(magic=(16, 1)), ErrorCode.corrupt_message),
        (broken(count=(60, 9)), ErrorCode.corrupt_message),
        (broken(length=(8, 0x7F)), ErrorCode.corrupt_message),
        (batches.build([(None, bytes(2 << 20))]), ErrorCode.message_too_large),
    ],
    ids=["cut", "tail", "none", "crc", "magic", "count", "length", "large"],
)
def test_a_bad_batch_is_refused_and_nothing_is_appended(
    talk: Talk, records: bytes, expected: ErrorCode
) -> None:
    ask_for_topic(talk, "hostile")
    assert produce(talk, "hostile", records) is expected
    assert produce(talk, "hostile", GOOD) is ErrorCode.none


def ask_for_topic(talk: Talk, name: str) -> ErrorCode:
    request_type = messages.request_type(Api.METADATA, 4)
    topic_type = __import__(request_type.__module__, fromlist=["x"]).MetadataRequestTopic
    request = request_type(topics=(topic_type(name=name),), allow_auto_topic_creation=True)
    frame, body_at = talk.ask(Api.METADATA, 4, messages.write_request(request))
    answer = messages.read_response(Api.METADATA, 4, frame, body_at)
    code: ErrorCode = answer.topics[0].error_code
    return code


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\0b", "x" * 250, "", "ü"])
def test_a_bad_topic_name_is_refused(talk: Talk, name: str) -> None:
    assert ask_for_topic(talk, name) is ErrorCode.invalid_topic_exception


def test_a_forged_replica_id_is_not_believed(talk: Talk) -> None:
    """CVE-2018-1288."""
    ask_for_topic(talk, "hostile")
    asked = FetchPartition(0, -1, 0, -1, 0, 1_000)
    request = FetchRequest(replica_id=1, topics=[FetchTopic("hostile", [asked])])
    frame, body_at = talk.ask(Api.FETCH, 12, write_fetch_request(12, request))
    answer = read_fetch_response(12, frame, body_at)
    assert ErrorCode(answer.error) is ErrorCode.cluster_authorization_failed


def test_a_client_that_asks_and_never_reads_is_pushed_back(talk: Talk, cluster: Cluster) -> None:
    """Its requests pile up in its own socket, not in the broker's memory."""
    head = write_request_header(
        api_key=Api.API_VERSIONS, api_version=0, correlation_id=1, client_id=None
    )
    request = (struct.pack(">i", len(head)) + head) * 10_000
    talk.socket.settimeout(1)
    with pytest.raises(TimeoutError):
        talk.send(request * 200)
    status = Path(f"/proc/{cluster.brokers[1].pid}/status").read_text()
    (resident,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    assert int(resident.split()[1]) < 200 * 1024, "kibibytes"
