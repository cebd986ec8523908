"""SCRAM, the client's side (RFC 5802, RFC 7677): proves a password without sending it.

    client-first   n,,n=USER,r=NONCE
    server-first   r=NONCE+MORE,s=SALT,i=ITERATIONS
    client-final   c=biws,r=NONCE+MORE,p=PROOF
    server-final   v=SIGNATURE      or e=WHY

The server proves itself too: only one that knows the password can sign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Generator
from typing import Final

from insync.rules.refusals import Refusal

ITERATIONS_MIN: Final = 4_096  # RFC 7677, and Kafka's own
ITERATIONS_MAX: Final = 1_000_000  # half a second; Kafka's tools allow 16384
MESSAGE_BYTES_MAX: Final = 16_384
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_NO_BINDING: Final = "n,,"
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class AuthenticationFailed(Refusal):
    """Authentication failed; another attempt would fail too."""


class NotPreparable(Refusal):
    """A text with characters that SASLprep does not allow."""


def scram(
    mechanism: str,
    *,
    user: str,
    password: str,
    nonce: str,
    extensions: str = "",
) -> Generator[bytes, bytes, None]:
    """Yields what to send, message by message; returns once the server has proved itself.

    The password is taken as it is: Apache Kafka stores passwords without SASLprep, so whether to
    prepare one is the caller's choice.
    """
    digest = HASHES[mechanism]
    first_bare = f"n={_escaped(user)},r={nonce}{extensions}"
    server_first = _text((yield (_NO_BINDING + first_bare).encode()))
    full_nonce, salt, iterations = _read_server_first(server_first, nonce)

    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    final_bare = f"c={binding},r={full_nonce}"
    signed = f"{first_bare},{server_first},{final_bare}".encode()
    signature = hmac.digest(stored_key, signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = _text((yield f"{final_bare},p={base64.b64encode(proof).decode()}".encode()))

    server_key = hmac.digest(salted, b"Server Key", digest)
    _check_server_final(server_final, hmac.digest(server_key, signed, digest))


def saslprep(text: str) -> str:
    """RFC 4013, for a query: unassigned code points are allowed."""
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each
        for each in text
        if not stringprep.in_table_b1(each)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if any(is_prohibited(each) for each in prepared for is_prohibited in _PROHIBITED):
        raise NotPreparable("it holds a character that SASLprep prohibits")
    if any(map(stringprep.in_table_d1, prepared)):
        is_mixed = any(map(stringprep.in_table_d2, prepared))
        ends = prepared[0], prepared[-1]
        if is_mixed or not all(map(stringprep.in_table_d1, ends)):
            raise NotPreparable("it mixes right-to-left and left-to-right characters")
    return prepared


def _escaped(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailed(f"the broker's SCRAM message has {len(message)} bytes")
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the broker's SCRAM message is not UTF-8") from None


def _read_server_first(text: str, nonce: str) -> tuple[str, bytes, int]:
    if text.startswith("e="):
        raise AuthenticationFailed(f"the broker refuses: {text[2:]}")
    parts = text.split(",")
    if [part[:2] for part in parts[:3]] != ["r=", "s=", "i="]:
        raise AuthenticationFailed("the broker's first SCRAM message is malformed")
    full_nonce, salt, iterations = (part[2:] for part in parts[:3])
    if not full_nonce.startswith(nonce) or len(full_nonce) == len(nonce):
        raise AuthenticationFailed("the broker's SCRAM nonce does not continue the client's")
    is_number = iterations.isascii() and iterations.isdecimal() and len(iterations) < 10  # noqa: PLR2004
    if not is_number or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise AuthenticationFailed(
            f"the broker asks for {iterations[:20]!r} SCRAM iterations; "
            f"allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    return full_nonce, _decoded(salt), int(iterations)


def _check_server_final(text: str, expected: bytes) -> None:
    if text.startswith("e="):
        raise AuthenticationFailed(f"the broker refuses: {text[2:]}")
    signature = text.split(",", maxsplit=1)[0]
    if not signature.startswith("v=") or not hmac.compare_digest(_decoded(signature[2:]), expected):
        raise AuthenticationFailed("the broker cannot prove that it knows the password")


def _decoded(text: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise AuthenticationFailed("the broker's SCRAM message holds no proper base 64")
    return decoded
