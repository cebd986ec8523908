"""BrokerHello, our one private API: a broker proves that it is one.

A connecting broker asks with an empty proof and is given a nonce; it asks again with the HMAC of
that nonce, its id and its incarnation under the cluster's secret, and is believed or refused. A
nonce is good for one try on one connection: who hands it out forgets it when it is answered.

    request   broker_id int32, incarnation int64, proof bytes (empty: "give me a nonce")
    response  error int16, nonce bytes (empty after a proof)
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest
from hmac import new as new_hmac
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.primitives import (
    INT16,
    INT32,
    MALFORMED,
    BadMessage,
    Frame,
    check_end,
    read_bytes,
)

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16

_IDENTITY: Final = Struct(">iq")


class HelloRequest(NamedTuple):
    """Who a broker says it is; an empty proof asks for a nonce."""

    broker_id: int
    incarnation: int
    proof: bytes = b""


class HelloResponse(NamedTuple):
    """A nonce to prove oneself with, or the verdict on a proof."""

    error: int
    nonce: bytes = b""


def proof(secret: bytes, nonce: bytes, broker_id: int, incarnation: int) -> bytes:
    """What only a holder of the secret can answer to `nonce`."""
    assert len(secret) >= SECRET_BYTES_MIN, "the cluster's secret is too short to be one"
    # A fixed length, so that nonce and identity cannot be cut differently by the two sides.
    assert len(nonce) == NONCE_BYTES, "nonces have one length"
    return new_hmac(secret, nonce + _IDENTITY.pack(broker_id, incarnation), sha256).digest()


def is_proof(
    candidate: bytes, secret: bytes, nonce: bytes, broker_id: int, incarnation: int
) -> bool:
    """Whether `candidate` proves it, in a time that does not tell how nearly."""
    expected = proof(secret, nonce, broker_id, incarnation)
    return compare_digest(candidate, expected)


def read_hello_request(frame: Frame, body_at: int) -> HelloRequest:
    data = memoryview(frame)
    try:
        broker_id, incarnation = _IDENTITY.unpack_from(data, body_at)
        claimed, at = _read_short_bytes(data, body_at + _IDENTITY.size, (0, PROOF_BYTES))
    except MALFORMED as error:
        raise BadMessage(f"no BrokerHello request: {error}") from error
    check_end(data, at)
    return HelloRequest(broker_id, incarnation, claimed)


def write_hello_request(request: HelloRequest) -> bytes:
    identity = _IDENTITY.pack(request.broker_id, request.incarnation)
    return identity + INT32.pack(len(request.proof)) + request.proof


def read_hello_response(frame: Frame, body_at: int) -> HelloResponse:
    data = memoryview(frame)
    try:
        (error_code,) = INT16.unpack_from(data, body_at)
        nonce, at = _read_short_bytes(data, body_at + INT16.size, (0, NONCE_BYTES))
    except MALFORMED as error:
        raise BadMessage(f"no BrokerHello response: {error}") from error
    check_end(data, at)
    return HelloResponse(error_code, nonce)


def write_hello_response(response: HelloResponse) -> bytes:
    return INT16.pack(response.error) + INT32.pack(len(response.nonce)) + response.nonce


def _read_short_bytes(data: memoryview, at: int, sizes: tuple[int, ...]) -> tuple[bytes, int]:
    view, at = read_bytes(data, at, flexible=False)
    if view is None or len(view) not in sizes:
        raise BadMessage("a nonce or proof of a length it cannot have")
    return bytes(view), at
