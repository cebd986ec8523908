"""A broker's proof needs the secret, the nonce and its own identity."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.wire.hello import (
    NONCE_BYTES,
    HelloRequest,
    HelloResponse,
    is_proof,
    proof,
    read_hello_request,
    read_hello_response,
    write_hello_request,
    write_hello_response,
)
from insync.wire.messages import BadMessage
from support.wire.message_strategies import int16s, int32s, int64s

SECRET = b"secret of the cluster"
NONCE = bytes(range(NONCE_BYTES))


def test_the_proof_is_an_hmac_over_nonce_id_and_incarnation() -> None:
    message = NONCE + (2).to_bytes(4, "big") + (77).to_bytes(8, "big")
    expected = hmac.new(SECRET, message, hashlib.sha256).digest()
    assert proof(SECRET, NONCE, 2, 77) == expected
    assert is_proof(expected, SECRET, NONCE, broker_id=2, incarnation=77)


@pytest.mark.parametrize(
    ("secret", "nonce", "broker_id", "incarnation"),
    [
        (b"secret of another", NONCE, 2, 77),
        (SECRET, NONCE[::-1], 2, 77),
        (SECRET, NONCE, 3, 77),
        (SECRET, NONCE, 2, 78),
    ],
)
def test_another_secret_nonce_id_or_incarnation_is_no_proof(
    secret: bytes, nonce: bytes, broker_id: int, incarnation: int
) -> None:
    candidate = proof(secret, nonce, broker_id, incarnation)
    assert not is_proof(candidate, SECRET, NONCE, broker_id=2, incarnation=77)


@pytest.mark.parametrize("candidate", [b"", b"short", bytes(32), bytes(64)])
def test_other_bytes_are_not_a_proof(candidate: bytes) -> None:
    assert not is_proof(candidate, SECRET, NONCE, broker_id=2, incarnation=77)


@pytest.mark.property
@given(
    broker_id=int32s,
    incarnation=int64s,
    claimed=st.just(b"") | st.binary(min_size=32, max_size=32),
    error=int16s,
)
def test_messages_are_read_back_as_written(
    broker_id: int, incarnation: int, claimed: bytes, error: int
) -> None:
    request = HelloRequest(broker_id, incarnation, claimed)
    assert read_hello_request(b"head" + write_hello_request(request), 4) == request
    response = HelloResponse(error, claimed)
    assert read_hello_response(b"head" + write_hello_response(response), 4) == response


@pytest.mark.parametrize("size", [1, 31, 33, 1000])
def test_a_proof_or_nonce_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(BadMessage, match="length"):
        read_hello_request(write_hello_request(HelloRequest(1, 2, bytes(size))), 0)
    with pytest.raises(BadMessage, match="length"):
        read_hello_response(write_hello_response(HelloResponse(0, bytes(size))), 0)


def test_cut_off_or_longer_messages_are_refused() -> None:
    request = write_hello_request(HelloRequest(1, 2, bytes(32)))
    response = write_hello_response(HelloResponse(0, NONCE))
    for size in range(len(request)):
        with pytest.raises(BadMessage):
            read_hello_request(request[:size], 0)
    for size in range(len(response)):
        with pytest.raises(BadMessage):
            read_hello_response(response[:size], 0)
    with pytest.raises(BadMessage, match="left"):
        read_hello_request(request + b"x", 0)
