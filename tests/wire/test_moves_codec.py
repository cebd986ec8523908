"""StartMoves is read as it was written, with the documented layout."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.wire.moves import (
    Move,
    MoveResult,
    MovesStarted,
    StartMoves,
    read_request,
    read_response,
    write_request,
    write_response,
)
from insync.wire.primitives import BadMessage
from support.wire.message_strategies import int16s, int32s, int64s, names

texts = st.none() | names
moves = st.builds(Move, names, int32s, st.lists(int32s, max_size=4).map(tuple))
requests = st.builds(
    StartMoves, st.lists(moves, max_size=3).map(tuple), int64s, st.booleans(), int32s
)
results = st.builds(MoveResult, names, int32s, int16s, texts)
responses = st.builds(MovesStarted, int16s, texts, texts, st.lists(results, max_size=3).map(tuple))


@pytest.mark.property
@given(request=requests)
def test_requests(request: StartMoves) -> None:
    assert read_request(b"head" + write_request(request), 4) == request


@pytest.mark.property
@given(response=responses)
def test_responses(response: MovesStarted) -> None:
    assert read_response(b"head" + write_response(response), 4) == response


def test_the_layout() -> None:
    request = StartMoves(
        (Move("t", 3, (1, 2)), Move("u", 0)), 10_000_000, is_additional=True, timeout_ms=5_000
    )
    assert write_request(request) == (
        pack(">ibqi", 5_000, 1, 10_000_000, 2)
        + (pack(">h", 1) + b"t" + pack(">iiii", 3, 2, 1, 2))
        + (pack(">h", 1) + b"u" + pack(">ii", 0, 0))
    )
    response = MovesStarted(60, None, "lease", (MoveResult("t", 3, 39, "no"),))
    assert write_response(response) == (
        pack(">hhh", 60, -1, 5)
        + b"lease"
        + (pack(">ih", 1, 1) + b"t" + pack(">ihh", 3, 39, 2) + b"no")
    )


HEAD = pack(">ibq", 5_000, 0, -1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        HEAD,
        HEAD + pack(">i", -1),
        HEAD + pack(">i", 2**31 - 1),
        HEAD + pack(">ih", 1, 5) + b"ab",
        HEAD + pack(">ih", 1, 1) + b"t" + pack(">ii", 0, 3),
        HEAD + pack(">ih", 1, 1) + b"t" + pack(">ii", 0, 2**31 - 1) + bytes(100),
        HEAD + pack(">ih", 1, 1) + b"t" + pack(">ii", 0, 1001) + bytes(4004),
        write_request(StartMoves((Move("t", 0, (1,)),))) + b"more",
    ],
)
def test_malformed_requests_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read_request(body, 0)
