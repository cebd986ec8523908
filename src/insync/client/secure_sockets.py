"""Connections for administrators of clusters that ask for more than plaintext.

A connection is given away when it is encrypted and the broker knows who we are. What cannot be
mended by trying again is a refusal at once: a wrong password tried on would lock its user out.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.client.connection import ASKS_FOR_SASL, ClientConnection, Disconnected
from insync.client.sasl import Conversation, Login
from insync.client.scram import AuthenticationFailed
from insync.client.sockets import connect, unreachable
from insync.client.tls import WANTS_CERTIFICATE, Tls, tls_words
from insync.rules.refusals import Refusal
from insync.wire import messages
from insync.wire.any_version import build
from insync.wire.apis import ASKED_OF_OTHERS, Api

# A session that the broker ends (KIP-368) is over for us a little earlier.
SESSION_USED: Final = 0.9
LIFETIME_S_MAX: Final = 30 * 24 * 3_600.0  # longer is for good: nothing of ours runs as long
TRIAL: Final = "insync"
ROUNDS_MAX: Final = 8  # no mechanism of ours has more than three


class Untrusted(Refusal):
    """TLS cannot be had with this broker as things are set; trying again does not mend it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Security:
    tls: Tls | None = None
    login: Login | None = None


class SecureSockets:
    """This machine's network, for a cluster with security."""

    def __init__(self, security: Security) -> None:
        self._tls = security.tls
        self._login = security.login
        self._way: Callable[[], Conversation] | None = None

    async def connect(self, host: str, port: int, protocol: ClientConnection) -> asyncio.Transport:
        if self._login is not None and self._way is None:
            self._way = await self._way_that_works(host, port, self._login)
        return await self._connect(host, port, protocol, self._way)

    async def _way_that_works(
        self, host: str, port: int, login: Login
    ) -> Callable[[], Conversation]:
        """The last needs no trial: it is tried by whoever wants the connection."""
        for way in login.ways[:-1]:
            trial = ClientConnection(client_id=TRIAL)
            try:
                await self._connect(host, port, trial, way)
            except AuthenticationFailed:
                continue
            trial.close()
            return way
        return login.ways[-1]

    async def _connect(
        self,
        host: str,
        port: int,
        protocol: ClientConnection,
        way: Callable[[], Conversation] | None,
    ) -> asyncio.Transport:
        try:
            if self._tls is None:
                transport = await connect(host, port, protocol)
            else:
                transport = await _connect_tls(host, port, protocol, self._tls)
            versions = await self._first_answer(host, port, protocol)
            if self._login is None or way is None:
                await _check_no_login_is_wanted(protocol)
            else:
                await self._log_in(protocol, versions, self._login.mechanism, way)
        except BaseException as error:
            protocol.close()
            if isinstance(error, AuthenticationFailed):
                raise AuthenticationFailed(f"{host}:{port}: {error}") from None
            raise
        return transport

    async def _first_answer(
        self, host: str, port: int, protocol: ClientConnection
    ) -> dict[int, range]:
        """Which versions the broker offers.

        Where TLS 1.3 refuses our certificate it does so after the handshake, and here.
        """
        try:
            answer = await protocol.request(_api_versions())
        except Disconnected as gone:
            if self._tls is None:
                raise
            has_own = self._tls.has_own_certificate
            if isinstance(protocol.ended_by, ssl.SSLError):
                words = tls_words(protocol.ended_by, has_own_certificate=has_own)
                raise Untrusted(f"{host}:{port}: {words}") from None
            if has_own:
                raise
            raise Disconnected(f"{gone}; {WANTS_CERTIFICATE}") from None
        return {
            each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys
        }

    async def _log_in(
        self,
        protocol: ClientConnection,
        offered: Mapping[int, range],
        mechanism: str,
        way: Callable[[], Conversation],
    ) -> None:
        if Api.SASL_HANDSHAKE not in offered:
            raise AuthenticationFailed(f"the broker offers no SASL; {self._without_sasl}")
        versions = [
            version
            for version in offered.get(Api.SASL_AUTHENTICATE, ())
            if version in ASKED_OF_OTHERS[Api.SASL_AUTHENTICATE]
        ]
        if not versions:
            raise AuthenticationFailed("the broker is too old: it does not offer SaslAuthenticate")
        await self._shake_hands(protocol, mechanism)
        _retire_before_expiry(protocol, await _converse(protocol, versions[-1], way()))

    async def _shake_hands(self, protocol: ClientConnection, mechanism: str) -> None:
        answer = await protocol.request(
            build(messages.request_type(Api.SASL_HANDSHAKE, 1), {"mechanism": mechanism})
        )
        if answer.error_code is ErrorCode.none:
            return
        if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
            offered = ", ".join(sorted(answer.mechanisms)) or "none"
            raise AuthenticationFailed(
                f"the broker does not take {mechanism}; it offers {offered} (sasl.mechanism)"
            )
        if answer.error_code is ErrorCode.illegal_sasl_state:
            raise AuthenticationFailed(f"this listener does not use SASL; {self._without_sasl}")
        raise AuthenticationFailed(f"the broker refuses SASL ({answer.error_code.name.upper()})")

    @property
    def _without_sasl(self) -> str:
        return f"set security.protocol={'PLAINTEXT' if self._tls is None else 'SSL'}"


def _api_versions() -> Any:
    """In the version that every broker takes."""
    return messages.request_type(Api.API_VERSIONS, 0)()


async def _check_no_login_is_wanted(protocol: ClientConnection) -> None:
    """Of somebody who has not logged in Apache Kafka takes this request once, and not again."""
    try:
        await protocol.request(_api_versions())
    except Disconnected as gone:
        raise Disconnected(f"{gone}; {ASKS_FOR_SASL}") from None


async def _connect_tls(
    host: str, port: int, protocol: ClientConnection, tls: Tls
) -> asyncio.Transport:
    loop = asyncio.get_running_loop()

    def words(error: Exception) -> str:
        return f"{host}:{port}: {tls_words(error, has_own_certificate=tls.has_own_certificate)}"

    try:
        transport, _ = await loop.create_connection(
            lambda: protocol, host, port, ssl=tls.context, server_hostname=host
        )
    except (ssl.SSLError, ssl.CertificateError) as error:
        raise Untrusted(words(error)) from None
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise Disconnected(words(error)) from None
    except (OSError, UnicodeError) as error:
        raise unreachable(host, port, error) from None
    return transport


async def _converse(protocol: ClientConnection, version: int, conversation: Conversation) -> float:
    """Talk until both sides are content; for how many seconds that counts (0: for good)."""
    token = next(conversation)
    for _ in range(ROUNDS_MAX):
        answer = await protocol.request(
            build(messages.request_type(Api.SASL_AUTHENTICATE, version), {"auth_bytes": token})
        )
        if answer.error_code is not ErrorCode.none:
            why = answer.error_message or "the broker does not say why"
            raise AuthenticationFailed(f"{why} ({answer.error_code.name.upper()})")
        try:
            token = conversation.send(answer.auth_bytes)
        except StopIteration:
            return _lifetime_s(answer)
    raise AuthenticationFailed("the broker does not come to an end")


def _lifetime_s(answer: Any) -> float:
    lifetime = getattr(answer, "session_lifetime", None)  # from version 1 on
    return 0.0 if lifetime is None else max(0.0, float(lifetime.total_seconds()))


def _retire_before_expiry(protocol: ClientConnection, lifetime_s: float) -> None:
    """The next question then opens another connection, and logs in anew."""
    if 0 < lifetime_s < LIFETIME_S_MAX:
        asyncio.get_running_loop().call_later(SESSION_USED * lifetime_s, protocol.retire)
