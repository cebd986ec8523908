"""BrokerHello, a private API (key 32000): a connecting broker proves its identity.

It sends an empty proof and gets a nonce; then it sends the HMAC of that nonce, its id and its
incarnation under the cluster's secret, and is accepted or refused. A nonce is valid for one attempt
on one connection: the broker that created it forgets it at the next request.

    request   broker_id int32, incarnation int64, proof bytes (empty: "give me a nonce")
    response  error int16, nonce bytes (empty after a proof)
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest
from hmac import new as new_hmac
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.body_readers import private_body
from insync.wire.primitives import (
    INT16,
    INT32,
    BadMessage,
    read_bytes,
)

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16

_IDENTITY: Final = Struct(">iq")


class HelloRequest(NamedTuple):
    """The identity that a broker claims; an empty proof requests a nonce."""

    broker_id: int
    incarnation: int
    proof: bytes = b""


class HelloResponse(NamedTuple):
    """A nonce for the proof, or the result of checking a proof."""

    error: int
    nonce: bytes = b""


def proof(secret: bytes, nonce: bytes, broker_id: int, incarnation: int) -> bytes:
    """The proof for `nonce`, which only a holder of the secret can compute."""
    assert len(secret) >= SECRET_BYTES_MIN, "the cluster's secret is too short to be one"
    # A fixed length, so that the two sides cannot split nonce and identity differently.
    assert len(nonce) == NONCE_BYTES, "nonces have one length"
    return new_hmac(secret, nonce + _IDENTITY.pack(broker_id, incarnation), sha256).digest()


def is_proof(
    candidate: bytes, secret: bytes, nonce: bytes, broker_id: int, incarnation: int
) -> bool:
    """Whether `candidate` is the proof, compared in constant time."""
    expected = proof(secret, nonce, broker_id, incarnation)
    return compare_digest(candidate, expected)


@private_body("BrokerHello request")
def read_hello_request(data: memoryview, at: int) -> tuple[HelloRequest, int]:
    broker_id, incarnation = _IDENTITY.unpack_from(data, at)
    claimed, at = _read_short_bytes(data, at + _IDENTITY.size, (0, PROOF_BYTES))
    return HelloRequest(broker_id, incarnation, claimed), at


def write_hello_request(request: HelloRequest) -> bytes:
    identity = _IDENTITY.pack(request.broker_id, request.incarnation)
    return identity + INT32.pack(len(request.proof)) + request.proof


@private_body("BrokerHello response")
def read_hello_response(data: memoryview, at: int) -> tuple[HelloResponse, int]:
    (error_code,) = INT16.unpack_from(data, at)
    nonce, at = _read_short_bytes(data, at + INT16.size, (0, NONCE_BYTES))
    return HelloResponse(error_code, nonce), at


def write_hello_response(response: HelloResponse) -> bytes:
    return INT16.pack(response.error) + INT32.pack(len(response.nonce)) + response.nonce


def _read_short_bytes(data: memoryview, at: int, sizes: tuple[int, ...]) -> tuple[bytes, int]:
    view, at = read_bytes(data, at, flexible=False)
    if view is None or len(view) not in sizes:
        raise BadMessage("a nonce or proof of a length it cannot have")
    return bytes(view), at
