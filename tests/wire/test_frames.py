"""Frames are the same however the bytes were split, and a claimed length allocates nothing."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.wire.frames import FRAME_BYTES_MAX, BadFrame, FrameBuffer


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def all_frames(buffer: FrameBuffer) -> list[bytes]:
    frames = []
    while (frame := buffer.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


@pytest.mark.property
@given(
    payloads=st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    tail=st.binary(max_size=3),
    data=st.data(),
)
def test_any_chunking_gives_the_same_frames(
    payloads: list[bytes], tail: bytes, data: st.DataObject
) -> None:
    stream = b"".join(map(framed, payloads)) + tail
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    taken_at = data.draw(st.sets(st.integers(0, 20)))
    buffer = FrameBuffer()
    frames: list[bytes] = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(stream)], strict=True)):
        buffer.receive(stream[start:end])
        if number in taken_at:
            frames += all_frames(buffer)
    assert frames + all_frames(buffer) == payloads


def test_byte_by_byte() -> None:
    buffer = FrameBuffer()
    for byte in framed(b"one") + framed(b"two"):
        buffer.receive(bytes((byte,)))
    assert all_frames(buffer) == [b"one", b"two"]


def test_the_sockets_buffer_may_be_reused_and_the_frame_written_to() -> None:
    chunk = bytearray(framed(b"abc"))
    buffer = FrameBuffer()
    buffer.receive(memoryview(chunk))
    chunk[:] = bytes(len(chunk))
    frame = buffer.next_frame()
    assert frame is not None
    assert bytes(frame) == b"abc"
    frame[0:1] = b"A"
    buffer.receive(framed(b"next"))  # a frame that is still held does not hinder the next
    assert bytes(frame) == b"Abc"


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (b"\0\0\0\0", "a frame of 0 bytes"),
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "allowed are 1 to 104857600"),
        (b"\x16\x03\x01\x02", "speaks TLS to a plaintext listener"),
        (b"\x15\x03\x03\x00", "listener speaks TLS"),
        (b"GET ", "HTTP"),
        (b"POST", "HTTP"),
    ],
)
def test_an_invalid_length_is_refused_after_the_frames_before_it(
    prefix: bytes, message: str
) -> None:
    buffer = FrameBuffer()
    buffer.receive(framed(b"before") + prefix + framed(b"after"))
    assert bytes(buffer.next_frame() or b"") == b"before"
    for _ in range(2):
        with pytest.raises(BadFrame, match=message):
            buffer.next_frame()
    buffer.receive(framed(b"later"))
    with pytest.raises(BadFrame, match=message):
        buffer.next_frame()


def test_the_largest_frame_is_accepted() -> None:
    buffer = FrameBuffer(frame_bytes_max=8)
    buffer.receive(framed(b"12345678"))
    assert all_frames(buffer) == [b"12345678"]


def test_a_claimed_length_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        buffer = FrameBuffer()
        buffer.receive(FRAME_BYTES_MAX.to_bytes(4, "big") + b"x")
        assert buffer.next_frame() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000
