"""Who one is, to a broker that asks: the mechanisms, from Kafka's properties.

A mechanism is a conversation: a generator that yields what to send, is sent what came back, and
returns when it is content.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from insync.client.jaas import LoginModule, parse_jaas
from insync.client.scram import HASHES, AuthenticationFailed, NotPreparable, saslprep, scram
from insync.rules.refusals import BadSetting

Conversation = Generator[bytes, bytes, None]

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *HASHES, OAUTHBEARER)
NONCE_BYTES: Final = 24
TOKEN_BYTES_MAX: Final = 1 << 20

# By Kafka's names, except the first, which is ours: a token that one has at hand.
TOKEN: Final = "sasl.oauthbearer.token"  # noqa: S105 - a name
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a name
JAAS: Final = "sasl.jaas.config"
MECHANISM: Final = "sasl.mechanism"

_MODULES: Final = {
    PLAIN: "PlainLoginModule",
    **dict.fromkeys(HASHES, "ScramLoginModule"),
    OAUTHBEARER: "OAuthBearerLoginModule",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Login:
    """One mechanism; each way to begin is tried in turn, nearly always there is but one."""

    mechanism: str
    ways: tuple[Callable[[], Conversation], ...]


def login_from(given: Mapping[str, str]) -> Login:
    mechanism = given.get(MECHANISM, "GSSAPI")
    if mechanism not in MECHANISMS:
        usual = "" if MECHANISM in given else ", Kafka's default"
        raise BadSetting(f"{MECHANISM} is {mechanism}{usual}; insync knows {', '.join(MECHANISMS)}")
    module = None if JAAS not in given else parse_jaas(given[JAAS])
    if module is not None and module.name != _MODULES[mechanism]:
        raise BadSetting(
            f"{JAAS} is for {module.name[:80]}; {MECHANISM}={mechanism} wants {_MODULES[mechanism]}"
        )
    if mechanism == OAUTHBEARER:
        token = _token_source(given, module)
        return Login(mechanism=mechanism, ways=(lambda: bearer(token()),))
    user, password = _option(module, "username"), _option(module, "password")
    if mechanism == PLAIN:
        return Login(mechanism=mechanism, ways=(lambda: plain(user, password),))
    is_token = module is not None and module.options.get("tokenauth", "").lower() == "true"
    return _scram_login(mechanism, user, password, extensions=",tokenauth=true" * is_token)


def _option(module: LoginModule | None, name: str) -> str:
    if module is None:
        raise BadSetting(f"{JAAS} is missing; it holds username and password")
    value = module.options.get(name)
    if not value:
        raise BadSetting(f"{JAAS} has no {name}")
    if "\0" in value:
        raise BadSetting(f"{JAAS}: {name} holds a NUL")
    return value


# PLAIN (RFC 4616).


def plain(user: str, password: str) -> Conversation:
    yield b"\0".join([b"", user.encode(), password.encode()])


# SCRAM.


def _scram_login(mechanism: str, user: str, password: str, *, extensions: str) -> Login:
    """Apache Kafka takes a password as it is, others prepare it as the RFC says.

    For nearly every password that is the same.
    """
    forms = [(user, password)]
    with suppress(NotPreparable):
        prepared = saslprep(user), saslprep(password)
        forms += [prepared] * (prepared != forms[0] and all(prepared))

    def way(name: str, secret: str) -> Callable[[], Conversation]:
        return lambda: scram(
            mechanism,
            user=name,
            password=secret,
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            extensions=extensions,
        )

    return Login(mechanism=mechanism, ways=tuple(way(*form) for form in forms))


# OAUTHBEARER (RFC 7628).


def bearer(token: str) -> Conversation:
    refusal = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if refusal:
        # The broker says what is wrong, and waits for this before it refuses.
        yield b"\x01"
        raise AuthenticationFailed(f"the broker refuses the token: {_status(refusal)}")


def _status(refusal: bytes) -> str:
    with suppress(ValueError):
        told = json.loads(refusal)
        if isinstance(told, dict) and "status" in told:
            return str(told["status"])[:200]
    return "it does not say why"


def _token_source(given: Mapping[str, str], module: LoginModule | None) -> Callable[[], str]:
    """A file is read for each connection: whoever renews tokens writes it anew."""
    inline = given.get(TOKEN) or (module.options.get("token") if module is not None else None)
    if inline is not None:
        checked = _checked_token(inline, TOKEN)
        return lambda: checked
    url = urlsplit(given.get(TOKEN_URL, ""))
    if url.scheme == "file":
        path = Path(unquote(url.path))
        _token_in(path)  # refused at once
        return lambda: _token_in(path)
    if url.scheme:
        raise BadSetting(
            f"{TOKEN_URL} is of {url.scheme}; insync fetches no tokens: "
            f"save one and give its file:// URL, or set {TOKEN}"
        )
    raise BadSetting(f"{OAUTHBEARER} wants {TOKEN}, or {TOKEN_URL}=file:///PATH")


def _token_in(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(TOKEN_BYTES_MAX)
    except OSError as error:
        raise BadSetting(f"{TOKEN_URL}: cannot read {path}: {error.strerror}") from None
    return _checked_token(content.decode("ascii", "replace"), f"{TOKEN_URL}: {path}")


def _checked_token(text: str, where: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BadSetting(f"{where} holds no token")
    return token
