"""SCRAM against the RFCs' own conversations, and against brokers that do not know the password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.client import scram as module
from insync.client.sasl import plain
from insync.client.scram import AuthenticationFailed, NotPreparable, saslprep, scram
from support.client.scram_server import ScramServer

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)


def test_the_conversation_of_rfc_7677() -> None:
    exchange = scram("SCRAM-SHA-256", user="user", password="pencil", nonce=NONCE)
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.send(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_the_conversation_of_rfc_5802(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.HASHES, "SCRAM-SHA-1", "sha1")  # which Kafka does not have
    exchange = scram(
        "SCRAM-SHA-1", user="user", password="pencil", nonce="fyko+d2lbbFgONRv9qkxdawL"
    )
    assert next(exchange) == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    first = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
    assert exchange.send(first) == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    with pytest.raises(StopIteration):
        exchange.send(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


@pytest.mark.property
@given(
    mechanism=st.sampled_from(sorted(module.HASHES)),
    user=st.text(min_size=1, max_size=10),
    password=st.text(min_size=1, max_size=10),
    typed=st.text(min_size=1, max_size=10) | st.none(),
)
def test_only_the_right_password_is_accepted(
    mechanism: str, user: str, password: str, typed: str | None
) -> None:
    server = ScramServer(module.HASHES[mechanism], password)
    exchange = scram(mechanism, user=user, password=typed or password, nonce="ours")
    first = next(exchange)
    name = first.decode().removeprefix("n,,n=").rpartition(",r=")[0]
    assert "," not in name
    assert name.replace("=2C", ",").replace("=3D", "=") == user
    answer = server.final(exchange.send(server.first(first)))
    if typed in (None, password):
        assert answer is not None
        with pytest.raises(StopIteration):
            exchange.send(answer)
    else:
        assert answer is None


@pytest.mark.parametrize(
    ("server_first", "message"),
    [
        (b"", "malformed"),
        (b"r=", "malformed"),
        (b"\xff", "not UTF-8"),
        (b"x" * 20_000, "20000 bytes"),
        (b"e=other-error", "other-error"),
        (b"r=another-nonce,s=W22Z,i=4096", "does not continue the client's"),
        (b"r=ours,s=W22Z,i=4096", "does not continue the client's"),
        (b"r=ours+,s=,i=4096", "base 64"),
        (b"r=ours+,s=*,i=4096", "base 64"),
        (b"r=ours+,s=W22Z,i=4095", "'4095' SCRAM iterations"),
        (b"r=ours+,s=W22Z,i=1000001", "'1000001' SCRAM iterations"),
        (b"r=ours+,s=W22Z,i=-4096", "SCRAM iterations"),
        (b"r=ours+,s=W22Z,i=" + b"9" * 5_000, "SCRAM iterations"),
        (b"m=ext,r=ours+,s=W22Z,i=4096", "malformed"),
    ],
)
def test_a_first_message_that_is_refused(server_first: bytes, message: str) -> None:
    exchange = scram("SCRAM-SHA-256", user="u", password="p", nonce="ours")
    next(exchange)
    with pytest.raises(AuthenticationFailed, match=message):
        exchange.send(server_first)


@pytest.mark.parametrize(
    ("server_final", "message"),
    [
        (b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "cannot prove"),
        (b"v=", "base 64"),
        (b"", "cannot prove"),
        (b"e=invalid-proof", "invalid-proof"),
    ],
)
def test_a_broker_that_does_not_know_the_password(server_final: bytes, message: str) -> None:
    exchange = scram("SCRAM-SHA-256", user="user", password="pencil", nonce=NONCE)
    next(exchange)
    exchange.send(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=message):
        exchange.send(server_final)


@pytest.mark.property
@given(first=st.binary(max_size=60), final=st.binary(max_size=60))
def test_any_message_of_a_broker_is_accepted_or_refused(first: bytes, final: bytes) -> None:
    def respond_with(*messages: bytes) -> None:
        exchange = scram("SCRAM-SHA-256", user="user", password="pencil", nonce=NONCE)
        next(exchange)
        for each in messages:
            exchange.send(each)

    with pytest.raises(AuthenticationFailed):
        respond_with(first, b"")
    with pytest.raises(AuthenticationFailed):
        respond_with(SERVER_FIRST, final)


@pytest.mark.parametrize(
    ("given_text", "prepared"),
    [
        # RFC 4013 section 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
    ],
)
def test_saslprep(given_text: str, prepared: str) -> None:
    assert saslprep(given_text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u0627a\u0628"])
def test_what_saslprep_prohibits(text: str) -> None:
    with pytest.raises(NotPreparable):
        saslprep(text)


def test_plain_is_rfc_4616s() -> None:
    """Its example, section 4, with the characters it has there."""
    assert list(plain("tim", "tanstaaftanstaaf")) == [b"\0tim\0tanstaaftanstaaf"]
    assert list(plain("Kurt", "xipj3plmq")) == [b"\0Kurt\0xipj3plmq"]
