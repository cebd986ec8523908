"""SASL mechanisms, from Kafka's properties.

A mechanism is a conversation: a generator that yields what to send, is sent the response, and
returns when authentication has succeeded.
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

# Kafka's names, except the first, which is Insync's: the token itself.
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
    """A mechanism, and its conversations to try in turn; nearly always only one."""

    mechanism: str
    conversations: tuple[Callable[[], Conversation], ...]


def login_from(properties: Mapping[str, str]) -> Login:
    mechanism = properties.get(MECHANISM, "GSSAPI")
    if mechanism not in MECHANISMS:
        default = "" if MECHANISM in properties else ", Kafka's default"
        raise BadSetting(
            f"{MECHANISM} is {mechanism}{default}; insync knows {', '.join(MECHANISMS)}"
        )
    module = None if JAAS not in properties else parse_jaas(properties[JAAS])
    if module is not None and module.name != _MODULES[mechanism]:
        raise BadSetting(
            f"{JAAS} is for {module.name[:80]}; {MECHANISM}={mechanism} needs {_MODULES[mechanism]}"
        )
    if mechanism == OAUTHBEARER:
        token = _token_source(properties, module)
        return Login(mechanism=mechanism, conversations=(lambda: bearer(token()),))
    user, password = _option(module, "username"), _option(module, "password")
    if mechanism == PLAIN:
        return Login(mechanism=mechanism, conversations=(lambda: plain(user, password),))
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
    """Apache Kafka uses a password as it is, others prepare it as in the RFC.

    For nearly every password that is the same.
    """
    forms = [(user, password)]
    with suppress(NotPreparable):
        prepared = saslprep(user), saslprep(password)
        forms += [prepared] * (prepared != forms[0] and all(prepared))

    def conversation(name: str, secret: str) -> Callable[[], Conversation]:
        return lambda: scram(
            mechanism,
            user=name,
            password=secret,
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            extensions=extensions,
        )

    return Login(mechanism=mechanism, conversations=tuple(conversation(*form) for form in forms))


# OAUTHBEARER (RFC 7628).


def bearer(token: str) -> Conversation:
    refusal = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if refusal:
        # The broker sends the reason, and waits for this before it refuses.
        yield b"\x01"
        raise AuthenticationFailed(f"the broker refuses the token: {_status(refusal)}")


def _status(refusal: bytes) -> str:
    with suppress(ValueError):
        details = json.loads(refusal)
        if isinstance(details, dict) and "status" in details:
            return str(details["status"])[:200]
    return "no reason given"


def _token_source(properties: Mapping[str, str], module: LoginModule | None) -> Callable[[], str]:
    """A file is read for each connection, because tokens in it are renewed."""
    inline = properties.get(TOKEN) or (module.options.get("token") if module is not None else None)
    if inline is not None:
        checked = _checked_token(inline, TOKEN)
        return lambda: checked
    url = urlsplit(properties.get(TOKEN_URL, ""))
    if url.scheme == "file":
        path = Path(unquote(url.path))
        _token_in(path)  # check it now
        return lambda: _token_in(path)
    if url.scheme:
        raise BadSetting(
            f"{TOKEN_URL} is of {url.scheme}; insync fetches no tokens: "
            f"save one and give its file:// URL, or set {TOKEN}"
        )
    raise BadSetting(f"{OAUTHBEARER} needs {TOKEN}, or {TOKEN_URL}=file:///PATH")


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
