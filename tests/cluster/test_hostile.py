"""Bytes of untrusted clients: each gets an error or is disconnected, and the broker serves on."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from insync.testing.cluster import HOST, Cluster
from insync.wire import batches, messages
from insync.wire.apis import Api
from insync.wire.headers import write_request_header
from support.cluster.clients import eventually
from support.wire.raw_client import LATEST, RawClient, plain, sequenced

pytestmark = [
    pytest.mark.process,
    pytest.mark.insync_cluster(
        brokers=1,
        settings={"connections.max.idle.ms": "5000", "max.connections": "3000"},
        scope="module",
    ),
]

GROWTH_KIB_MAX = 100 * 1024
MIB = 1 << 20


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[1].port) as talking:
        yield talking
    check_it_serves(cluster)


def check_it_serves(cluster: Cluster) -> None:
    with RawClient(cluster.brokers[1].port) as well_behaved:
        assert well_behaved.request(Api.API_VERSIONS, 0).error_code is ErrorCode.none


def resident_kib(cluster: Cluster) -> int:
    status = Path(f"/proc/{cluster.brokers[1].pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


# Frames.


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 100 * MIB + 1),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        struct.pack(">ihhih", 10, 3, 12, 1, 30_000),
        struct.pack(">ihhih", 10, 9_999, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, -1, -1, 1, -1),
        # A frame too short for any header.
        struct.pack(">ih", 2, 3),
        # An array that claims to have two thousand million topics, in a frame of 14 bytes.
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
        # A string that claims more than the frame has: Metadata of one topic.
        struct.pack(">ihhihih", 16, 3, 1, 1, -1, 1, 32_767),
        # Produce: records that claim more than the frame has (acks, timeout, one topic "a", ...).
        struct.pack(">ihhihhhiih1siii", 37, 0, 3, 1, -1, -1, 1, 1_000, 1, 1, b"a", 1, 0, 2**31 - 1),
    ],
    ids=[
        *("empty", "negative", "huge", "just over", "http", "tls", "client id", "api", "version"),
        *("negative api", "no header", "array", "string", "records"),
    ],
)
def test_a_malformed_request_closes_its_connection(client: RawClient, data: bytes) -> None:
    client.send(data)
    assert client.is_closed()


def test_a_client_that_disconnects_after_half_a_frame(client: RawClient) -> None:
    client.send(struct.pack(">i", 1_000) + b"half")


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: RawClient) -> None:
    frame, _ = client.exchange(Api.API_VERSIONS, 99, b"\x01\x01\x00")
    answer = messages.read_response(Api.API_VERSIONS, 0, frame, 4)
    assert answer.error_code is ErrorCode.unsupported_version
    assert any(each.api_key == Api.FETCH for each in answer.api_keys)


# Batches.

GOOD = batches.build([(None, b"value")])


def broken(*, at: int, value: int, is_resealed: bool = False) -> bytes:
    """A good batch with one byte overwritten, and its CRC computed again if wanted."""
    batch = bytearray(GOOD)
    batch[at] = value
    if is_resealed:
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (GOOD[:-1], ErrorCode.invalid_record),
        (GOOD + GOOD, ErrorCode.invalid_record),
        (GOOD + b"tail", ErrorCode.corrupt_message),
        (b"", ErrorCode.invalid_record),
        (broken(at=17, value=1), ErrorCode.corrupt_message),
        (broken(at=16, value=1), ErrorCode.invalid_record),
        (broken(at=60, value=9), ErrorCode.corrupt_message),
        (broken(at=60, value=9, is_resealed=True), ErrorCode.invalid_record),
        (broken(at=57, value=0x80, is_resealed=True), ErrorCode.invalid_record),
        (broken(at=26, value=9, is_resealed=True), ErrorCode.invalid_record),
        (broken(at=23, value=0x80, is_resealed=True), ErrorCode.invalid_record),
        (broken(at=22, value=7, is_resealed=True), ErrorCode.corrupt_message),
        (broken(at=8, value=0x7F), ErrorCode.invalid_record),
        (broken(at=8, value=0xFF), ErrorCode.corrupt_message),
        (batches.build([(None, bytes(2 * MIB))]), ErrorCode.message_too_large),
        # A batch of an unknown producer whose first sequence is not 0 is accepted, as by Apache
        # Kafka. One without a sequence at all is not.
        (sequenced(b"x", sequence=-1), ErrorCode.invalid_record),
        (sequenced(b"x", sequence=0, epoch=-1), ErrorCode.invalid_record),
    ],
    ids=[
        *("cut", "two", "tail", "none", "crc", "magic", "count", "count with crc"),
        "negative count",
        *("last offset", "negative last offset", "codec", "long", "negative length", "large"),
        *("no sequence", "no epoch"),
    ],
)
def test_a_bad_batch_is_refused_and_nothing_is_appended(
    client: RawClient, records: bytes, expected: ErrorCode
) -> None:
    client.metadata("hostile")
    _, end = client.produce("hostile", GOOD)
    assert client.produce("hostile", records) == (expected, -1)
    assert client.produce("hostile", GOOD) == (ErrorCode.none, end + 1)


def test_offset_and_epoch_in_a_producers_batch_are_ignored(client: RawClient) -> None:
    client.metadata("hostile")
    _, end = client.produce("hostile", GOOD)
    forged = bytearray(GOOD)
    struct.pack_into(">q", forged, 0, 2**62)
    struct.pack_into(">i", forged, 12, 2**30)
    assert client.produce("hostile", bytes(forged)) == (ErrorCode.none, end + 1)
    assert client.offset("hostile", LATEST) == (ErrorCode.none, end + 2)


@pytest.mark.parametrize("codec", range(5), ids=["plain", "gzip", "snappy", "lz4", "zstd"])
def test_undecodable_records_are_found_by_the_timestamp_of_their_batch(
    client: RawClient, codec: int
) -> None:
    """Their batch has a valid CRC and is accepted; ListOffsets by timestamp is answered."""
    topic = f"unreadable-{codec}"
    client.metadata(topic)
    mangled = bytearray(batches.build([(None, b"value")] * 3, timestamp_ms=100))
    mangled[61:] = b"\xff" * (len(mangled) - 61)
    mangled[22] = codec
    struct.pack_into(">I", mangled, 17, crc32c(bytes(mangled[21:])))
    assert client.produce(topic, bytes(mangled)) == (ErrorCode.none, 0)
    assert client.offset(topic, 99) == (ErrorCode.none, 0)
    assert client.offset(topic, 101) == (ErrorCode.none, -1)


@pytest.mark.parametrize("acks", [2, -2, 32_767])
def test_invalid_acks_are_refused(client: RawClient, acks: int) -> None:
    client.metadata("hostile")
    assert client.produce("hostile", GOOD, acks=acks)[0] is ErrorCode.invalid_required_acks


@pytest.mark.parametrize(
    ("topic", "partition"), [("unheard-of", 0), ("hostile", 99), ("hostile", -1), ("..", 0)]
)
def test_an_unknown_partition(client: RawClient, topic: str, partition: int) -> None:
    client.metadata("hostile")
    expected = ErrorCode.unknown_topic_or_partition
    assert client.produce(topic, GOOD, partition=partition)[0] is expected
    assert client.fetch(topic, 0, partition=partition)[0] is expected
    assert client.offset(topic, LATEST, partition=partition)[0] is expected


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
def test_an_offset_out_of_range(client: RawClient, offset: int) -> None:
    client.metadata("hostile")
    assert client.fetch("hostile", offset)[0] is ErrorCode.offset_out_of_range


# Names.


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\0b", "x" * 250, "", "ü", "a b", "../../x"])
def test_a_bad_topic_name_is_refused(client: RawClient, cluster: Cluster, name: str) -> None:
    before = sorted(cluster.brokers[1].log_dir.rglob("*"))
    answer = client.metadata(name)
    assert answer.topics[0].error_code is ErrorCode.invalid_topic_exception
    assert sorted(cluster.brokers[1].log_dir.rglob("*")) == before


def test_a_forged_replica_id_is_refused(client: RawClient) -> None:
    """CVE-2018-1288."""
    client.metadata("hostile")
    for replica in (1, 2, 2**31 - 1):
        assert client.fetch("hostile", 0, replica=replica)[0] is (
            ErrorCode.cluster_authorization_failed
        )


# Bounded memory.


def test_a_client_that_sends_requests_and_never_reads_gets_backpressure(
    client: RawClient, cluster: Cluster
) -> None:
    """Its requests pile up in its own socket, not in the broker's memory."""
    before = resident_kib(cluster)
    head = write_request_header(
        api_key=Api.API_VERSIONS, api_version=0, correlation_id=1, client_id=None
    )
    request = (struct.pack(">i", len(head)) + head) * 10_000
    client.socket.settimeout(1)
    with pytest.raises(TimeoutError):
        client.send(request * 200)
    assert resident_kib(cluster) - before < GROWTH_KIB_MAX


def test_clients_that_fetch_much_and_never_read_get_backpressure(cluster: Cluster) -> None:
    """Each requests megabytes a thousand times, which would be gigabytes."""
    with ExitStack() as opened:
        port = cluster.brokers[1].port
        client = opened.enter_context(RawClient(port))
        client.metadata("large")
        for _ in range(8):
            assert client.produce("large", plain(bytes(MIB - 100)))[0] is ErrorCode.none
        before = resident_kib(cluster)
        for _ in range(5):
            greedy = opened.enter_context(RawClient(port, patience_s=1))
            with suppress(TimeoutError):
                for _ in range(1_000):
                    greedy.post_fetch("large", 0, max_bytes=8 * MIB)
        assert resident_kib(cluster) - before < 2 * GROWTH_KIB_MAX
    check_it_serves(cluster)


def test_unfinished_large_frames_use_only_the_memory_of_the_bytes_sent(cluster: Cluster) -> None:
    """A length is only a claim: a hundred connections claim 10 GB and send a byte each."""
    before = resident_kib(cluster)
    with ExitStack() as opened:
        for _ in range(100):
            client = opened.enter_context(RawClient(cluster.brokers[1].port))
            client.send(struct.pack(">i", 100 * MIB) + b"x")
        check_it_serves(cluster)
        assert resident_kib(cluster) - before < GROWTH_KIB_MAX


def test_thousands_of_idle_connections_use_little_memory_and_are_closed(cluster: Cluster) -> None:
    """They are closed when idle; until then others are served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 10_000), hard))
    before = resident_kib(cluster)
    try:
        with ExitStack() as opened:
            address = (HOST, cluster.brokers[1].port)
            silent = [
                opened.enter_context(socket.create_connection(address, timeout=10))
                for _ in range(2_000)
            ]
            for each in silent[::2]:
                each.sendall(b"\0\0")  # half a length, and no more
            check_it_serves(cluster)
            assert resident_kib(cluster) - before < GROWTH_KIB_MAX
            for each in silent:
                each.settimeout(30)
                assert each.recv(1) == b"", "an idle connection is closed"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    check_it_serves(cluster)


def test_a_client_that_sends_a_byte_now_and_then_is_closed_too(cluster: Cluster) -> None:
    """Slow loris: only a whole request counts as activity."""
    with RawClient(cluster.brokers[1].port) as client:
        client.send(struct.pack(">i", 1_000))
        client.socket.settimeout(0.25)  # the pace of the attack

        def is_closed() -> bool:
            try:
                client.send(b"x")
                return client.is_closed()
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        eventually(is_closed, within_s=15, what="the slow one is closed")
    check_it_serves(cluster)


def test_a_client_that_waits_for_a_response_is_not_idle(cluster: Cluster) -> None:
    with RawClient(cluster.brokers[1].port, patience_s=20) as client:
        client.metadata("quiet")
        client.post_fetch("quiet", 0, max_wait_ms=8_000)
        began_s = time.monotonic()
        client.receive()
        assert time.monotonic() - began_s > 6


def test_beyond_the_most_connections_new_ones_are_closed() -> None:
    with Cluster(brokers=1, settings={"max.connections": "20"}) as cluster, ExitStack() as opened:
        port = cluster.brokers[1].port
        first = [opened.enter_context(RawClient(port)) for _ in range(20)]
        for client in first:
            assert client.request(Api.API_VERSIONS, 0).error_code is ErrorCode.none
        assert opened.enter_context(RawClient(port)).is_closed()
        assert first[0].request(Api.API_VERSIONS, 0).error_code is ErrorCode.none
        first[1].close()

        def is_served() -> bool:
            with RawClient(port) as client, suppress(ConnectionError):
                return bool(client.request(Api.API_VERSIONS, 0).error_code is ErrorCode.none)
            return False

        eventually(is_served, within_s=10, what="there is room again")


def test_at_the_connection_limit_an_idle_connection_is_closed_for_a_new_one() -> None:
    with Cluster(brokers=1, settings={"max.connections": "20"}) as cluster, ExitStack() as opened:
        port = cluster.brokers[1].port
        mute = [opened.enter_context(RawClient(port)) for _ in range(20)]
        check_it_serves(cluster)
        assert mute[0].is_closed()
