"""Bytes of an untrusted client end in a refusal, never in a hang or a large allocation.

Truncations of valid messages at every length, valid messages with one byte changed, and noise.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.refusals import Refusal
from insync.wire import (
    batches,
    describe_replicas,
    fetch,
    fetch_request,
    frames,
    headers,
    hello,
    messages,
    primitives,
    produce,
)
from insync.wire.apis import FETCH_VERSIONS, INSYNC_APIS, PRODUCE_VERSIONS, SUPPORTED, Api
from insync.wire.frames import BadFrame
from insync.wire.messages import BadMessage
from support.wire.message_strategies import (
    FEWER,
    FEWEST,
    fetch_requests,
    fetch_responses,
    produce_requests,
    produce_results,
)

Read = Callable[[bytes], object]

BY_KIO = [
    (api, version)
    for api, versions in SUPPORTED.items()
    if api not in {*INSYNC_APIS, Api.PRODUCE, Api.FETCH}
    for version in versions
]
PEAK_BYTES_MAX = 200_000
WORST_BYTES = (0, 0x01, 0x7F, 0x80, 0xFF)  # as lengths and varints: null, least, most, endless


def readers() -> dict[str, Read]:
    """Every public reader, by name."""
    known: dict[str, Read] = {
        "request header": headers.read_request_header,
        "hello request": lambda data: hello.read_hello_request(data, 0),
        "hello response": lambda data: hello.read_hello_response(data, 0),
        "replicas request": lambda data: describe_replicas.read_request(data, 0),
        "replicas response": lambda data: describe_replicas.read_response(data, 0),
        "frames": all_frames,
        "batches": all_batches,
        "records": lambda data: list(batches.records(data)),
    }
    for v in PRODUCE_VERSIONS:
        known[f"produce {v}"] = lambda data, v=v: produce.read_produce(v, data, 0)  # type: ignore[misc]
        known[f"produced {v}"] = lambda data, v=v: produce.read_produce_response(v, data, 0)  # type: ignore[misc]
    for v in FETCH_VERSIONS:
        known[f"fetch {v}"] = lambda data, v=v: fetch.read_fetch(v, data, 0)  # type: ignore[misc]
        known[f"fetched {v}"] = lambda data, v=v: fetch.read_fetch_response(v, data, 0)  # type: ignore[misc]
    for a, v in BY_KIO:
        known[f"{a.name} {v}"] = lambda data, a=a, v=v: messages.read_request(a, v, data, 0)  # type: ignore[misc]
        known[f"{a.name} {v} answer"] = lambda data, a=a, v=v: messages.read_response(a, v, data, 0)  # type: ignore[misc]
    return known


def all_frames(data: bytes) -> None:
    buffer = frames.FrameBuffer()
    buffer.receive(data)
    while buffer.next_frame() is not None:
        pass


def all_batches(data: bytes) -> None:
    for header in batches.whole_batches(data):
        batches.check(data, header)


READERS = readers()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES_MAX


@pytest.mark.property
@given(name=st.sampled_from(sorted(READERS)), noise=st.binary(max_size=200))
def test_noise(name: str, noise: bytes) -> None:
    with suppress(Refusal):
        READERS[name](noise)


# Lengths that a frame of twenty bytes cannot hold, in both encodings, wherever one may be read.
ABSURD = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",  # with this one kio 0.6.5 aborts the process
    b"\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\x7f\xff",
]


@pytest.mark.parametrize("name", sorted(READERS))
def test_absurd_lengths_allocate_nothing(name: str) -> None:
    read = READERS[name]
    with suppress(Refusal):
        read(bytes(20))  # imports and caches are not what is measured
    with little_memory():
        for absurd in ABSURD:
            for at in range(20):
                with suppress(Refusal):
                    read((bytes(at) + absurd + bytes(20))[:40])
                with suppress(Refusal):
                    read((b"\2" * at + absurd + bytes(20))[:40])


def refused_at_every_length(body: bytes, read: Read) -> None:
    read(body)
    for size in range(len(body)):
        with pytest.raises(BadMessage):
            read(body[:size])


def survives_every_byte(body: bytes, read: Read, value: int) -> None:
    for at in range(len(body)):
        changed = bytearray(body)
        changed[at] = value
        with suppress(BadMessage):
            read(bytes(changed))


def fetch_request_body(version: int) -> bytes:
    topic: primitives.Topic = UUID(int=9) if version >= 13 else "topic"
    rows = [fetch.FetchPartition(n, 1, 2, 3, 4, 5) for n in range(2)]
    return fetch.write_fetch_request(
        version,
        fetch.FetchRequest(
            replica_id=1,
            replica_epoch=2,
            topics=[fetch.FetchTopic(topic, rows)],
            forgotten=[(topic, [1, 2])],
            rack_id="rack",
            cluster_id="cluster",
        ),
    )


def fetch_response_body(version: int) -> bytes:
    topic: primitives.Topic = UUID(int=9) if version >= 13 else "topic"
    rows = [
        fetch.FetchedPartition(0, 0, 9, aborted=[(1, 2)], records=b"records"),
        fetch.FetchedPartition(1, 6, -1, diverging=(1, 2), current_leader=(1, 2)),
    ]
    response = fetch.FetchResponse(session_id=1, topics=[(topic, rows)])
    return b"".join(fetch.write_fetch_response(version, response))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_damaged_fetch(version: int) -> None:
    request, response = fetch_request_body(version), fetch_response_body(version)
    refused_at_every_length(request, READERS[f"fetch {version}"])
    refused_at_every_length(response, READERS[f"fetched {version}"])
    for value in WORST_BYTES:
        survives_every_byte(request, READERS[f"fetch {version}"], value)
        survives_every_byte(response, READERS[f"fetched {version}"], value)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_damaged_produce(version: int) -> None:
    topic: primitives.Topic = UUID(int=9) if version >= 13 else "topic"
    part = produce.ProducePartition(topic, 1, b"records")
    request = produce.write_produce_request(
        version, produce.ProduceRequest("transaction", 1, 2, [part, part])
    )
    result = produce.ProduceResult(topic, 1, 6, 7, error_message="not me", current_leader=(1, 2))
    response = produce.write_produce_response(version, [result, result])
    refused_at_every_length(request, READERS[f"produce {version}"])
    refused_at_every_length(response, READERS[f"produced {version}"])
    for value in WORST_BYTES:
        survives_every_byte(request, READERS[f"produce {version}"], value)
        survives_every_byte(response, READERS[f"produced {version}"], value)


@pytest.mark.property
@pytest.mark.parametrize("api", sorted({api for api, _ in BY_KIO}))
@FEWEST
@given(data=st.data())
def test_damaged_messages_of_kio(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(SUPPORTED[api]))
    for of, write, suffix in (
        (messages.request_type(api, version), messages.write_request, ""),
        (messages.response_type(api, version), messages.write_response, " answer"),
    ):
        body = write(data.draw(st.from_type(of)))[:200]
        read = READERS[f"{api.name} {version}{suffix}"]
        for size in range(len(body)):
            with suppress(BadMessage):
                read(body[:size])
        survives_every_byte(body, read, data.draw(st.integers(0, 255)))


@pytest.mark.property
@FEWER
@given(data=st.data())
def test_truncated_hot_messages(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(FETCH_VERSIONS))
    body = fetch.write_fetch_request(version, data.draw(fetch_requests(version)))
    refused(body, READERS[f"fetch {version}"], data)
    response = fetch.write_fetch_response(version, data.draw(fetch_responses(version)))
    refused(b"".join(response), READERS[f"fetched {version}"], data)
    version = data.draw(st.sampled_from(PRODUCE_VERSIONS))
    body = produce.write_produce_request(version, data.draw(produce_requests(version)))
    refused(body, READERS[f"produce {version}"], data)
    body = produce.write_produce_response(version, data.draw(produce_results(version)))
    refused(body, READERS[f"produced {version}"], data)


def refused(body: bytes, read: Read, data: st.DataObject) -> None:
    """Missing bytes are refused; extra bytes are ignored, as in Apache Kafka."""
    size = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(BadMessage):
        read(body[:size])
    assert read(body + b"\0more") == read(body)


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (primitives, produce, fetch_request):
        monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    parts = [produce.ProducePartition(name, 0, None) for name in "aabb"]
    for most, accepted in ((parts[:3], True), (parts, False), (parts[:2] * 2, False)):
        body = produce.write_produce_request(9, produce.ProduceRequest(None, 1, 1, most))
        assert is_read(body, READERS["produce 9"]) == accepted
    for numbers, accepted in (([1, 2], True), ([2, 2], False), ([4], False)):
        row = fetch.FetchPartition(0, 0, 0, 0, 0, 0)
        topics = [fetch.FetchTopic("t", [row] * number) for number in numbers]
        body = fetch.write_fetch_request(12, fetch.FetchRequest(topics=topics))
        assert is_read(body, READERS["fetch 12"]) == accepted


def is_read(body: bytes, read: Read) -> bool:
    try:
        read(body)
    except BadMessage as refusal:
        return "3" not in str(refusal)  # the limit is named
    return True


def test_a_short_frame_is_no_request() -> None:
    for size in range(10):
        with pytest.raises(BadFrame):
            headers.read_request_header(bytes(size))
