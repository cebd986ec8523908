"""HoldThrottle is read as it was written, with the documented layout."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.wire.holds import (
    HoldThrottle,
    ThrottleHeld,
    read_request,
    read_response,
    write_request,
    write_response,
)
from insync.wire.primitives import BadMessage
from support.wire.message_strategies import int16s, int32s, int64s, names


@pytest.mark.property
@given(request=st.builds(HoldThrottle, int32s, names, int64s))
def test_requests(request: HoldThrottle) -> None:
    assert read_request(b"head" + write_request(request), 4) == request


@pytest.mark.property
@given(response=st.builds(ThrottleHeld, int16s, st.none() | names, int32s))
def test_responses(response: ThrottleHeld) -> None:
    assert read_response(b"head" + write_response(response), 4) == response


def test_the_layout() -> None:
    request = HoldThrottle(4, "me", 10_000_000)
    assert write_request(request) == pack(">iqh", 4, 10_000_000, 2) + b"me"
    assert write_request(HoldThrottle(4, "me")) == pack(">iqh", 4, -1, 2) + b"me"
    assert write_response(ThrottleHeld(0, None, 15_000)) == pack(">hhi", 0, -1, 15_000)
    assert write_response(ThrottleHeld(60, "no")) == pack(">hh", 60, 2) + b"no" + pack(">i", 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        pack(">iq", 4, 1),
        pack(">iqh", 4, 1, 5) + b"ab",
        pack(">iqh", 4, 1, -1),
        write_request(HoldThrottle(4, "me", 1)) + b"more",
    ],
)
def test_malformed_requests_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read_request(body, 0)


@pytest.mark.parametrize(
    "body", [b"", pack(">h", 0), pack(">hh", 0, -1), pack(">hhi", 0, -1, 1) + b"x"]
)
def test_malformed_responses_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read_response(body, 0)
