"""Connections of admin clients to clusters with TLS or SASL.

`connect` returns when the connection is encrypted and authenticated. An error that is not
retriable is raised at once: repeated attempts with a wrong password could lock its user out.
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
from insync.client.tls import WANTS_CERTIFICATE, Tls, tls_error_text
from insync.rules.refusals import Refusal
from insync.wire import messages
from insync.wire.any_version import build
from insync.wire.apis import CLIENT_ONLY, Api

# If the broker limits sessions (KIP-368), a connection is retired a little earlier.
SESSION_USED: Final = 0.9
LIFETIME_S_MAX: Final = 30 * 24 * 3_600.0  # a longer session needs no timer
TRIAL: Final = "insync"
ROUNDS_MAX: Final = 8  # no supported mechanism has more than three


class Untrusted(Refusal):
    """TLS with this broker fails with these settings; another attempt would fail too."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Security:
    tls: Tls | None = None
    login: Login | None = None


class SecureSockets:
    """This machine's network, for a cluster with security."""

    def __init__(self, security: Security) -> None:
        self._tls = security.tls
        self._login = security.login
        self._conversation: Callable[[], Conversation] | None = None

    async def connect(self, host: str, port: int, protocol: ClientConnection) -> asyncio.Transport:
        if self._login is not None and self._conversation is None:
            self._conversation = await self._find_conversation(host, port, self._login)
        return await self._connect(host, port, protocol, self._conversation)

    async def _find_conversation(
        self, host: str, port: int, login: Login
    ) -> Callable[[], Conversation]:
        """The first that authenticates, or else the last, which the caller tries."""
        for conversation in login.conversations[:-1]:
            trial = ClientConnection(client_id=TRIAL)
            try:
                await self._connect(host, port, trial, conversation)
            except AuthenticationFailed:
                continue
            trial.close()
            return conversation
        return login.conversations[-1]

    async def _connect(
        self,
        host: str,
        port: int,
        protocol: ClientConnection,
        conversation: Callable[[], Conversation] | None,
    ) -> asyncio.Transport:
        try:
            if self._tls is None:
                transport = await connect(host, port, protocol)
            else:
                transport = await _connect_tls(host, port, protocol, self._tls)
            versions = await self._read_versions(host, port, protocol)
            if self._login is None or conversation is None:
                await _check_no_login_is_needed(protocol)
            else:
                await self._log_in(protocol, versions, self._login.mechanism, conversation)
        except BaseException as error:
            protocol.close()
            if isinstance(error, AuthenticationFailed):
                raise AuthenticationFailed(f"{host}:{port}: {error}") from None
            raise
        return transport

    async def _read_versions(
        self, host: str, port: int, protocol: ClientConnection
    ) -> dict[int, range]:
        """The versions that the broker offers.

        With TLS 1.3 a broker that refuses this client's certificate does so here, after the
        handshake.
        """
        try:
            response = await protocol.request(_api_versions())
        except Disconnected as gone:
            if self._tls is None:
                raise
            has_own = self._tls.has_own_certificate
            if isinstance(protocol.ended_by, ssl.SSLError):
                text = tls_error_text(protocol.ended_by, has_own_certificate=has_own)
                raise Untrusted(f"{host}:{port}: {text}") from None
            if has_own:
                raise
            raise Disconnected(f"{gone}; {WANTS_CERTIFICATE}") from None
        return {
            each.api_key: range(each.min_version, each.max_version + 1)
            for each in response.api_keys
        }

    async def _log_in(
        self,
        protocol: ClientConnection,
        offered: Mapping[int, range],
        mechanism: str,
        conversation: Callable[[], Conversation],
    ) -> None:
        if Api.SASL_HANDSHAKE not in offered:
            raise AuthenticationFailed(f"the broker offers no SASL; {self._without_sasl}")
        versions = [
            version
            for version in offered.get(Api.SASL_AUTHENTICATE, ())
            if version in CLIENT_ONLY[Api.SASL_AUTHENTICATE]
        ]
        if not versions:
            raise AuthenticationFailed("the broker is too old: it does not offer SaslAuthenticate")
        await self._send_handshake(protocol, mechanism)
        _retire_before_expiry(protocol, await _converse(protocol, versions[-1], conversation()))

    async def _send_handshake(self, protocol: ClientConnection, mechanism: str) -> None:
        response = await protocol.request(
            build(messages.request_type(Api.SASL_HANDSHAKE, 1), {"mechanism": mechanism})
        )
        if response.error_code is ErrorCode.none:
            return
        if response.error_code is ErrorCode.unsupported_sasl_mechanism:
            offered = ", ".join(sorted(response.mechanisms)) or "none"
            raise AuthenticationFailed(
                f"the broker does not support {mechanism}; it offers {offered} (sasl.mechanism)"
            )
        if response.error_code is ErrorCode.illegal_sasl_state:
            raise AuthenticationFailed(f"this listener does not use SASL; {self._without_sasl}")
        raise AuthenticationFailed(f"the broker refuses SASL ({response.error_code.name.upper()})")

    @property
    def _without_sasl(self) -> str:
        return f"set security.protocol={'PLAINTEXT' if self._tls is None else 'SSL'}"


def _api_versions() -> Any:
    """In the version that every broker supports."""
    return messages.request_type(Api.API_VERSIONS, 0)()


async def _check_no_login_is_needed(protocol: ClientConnection) -> None:
    """Before a login, Apache Kafka accepts this request once, and disconnects at the second."""
    try:
        await protocol.request(_api_versions())
    except Disconnected as gone:
        raise Disconnected(f"{gone}; {ASKS_FOR_SASL}") from None


async def _connect_tls(
    host: str, port: int, protocol: ClientConnection, tls: Tls
) -> asyncio.Transport:
    loop = asyncio.get_running_loop()

    def error_text(error: Exception) -> str:
        return (
            f"{host}:{port}: {tls_error_text(error, has_own_certificate=tls.has_own_certificate)}"
        )

    try:
        transport, _ = await loop.create_connection(
            lambda: protocol, host, port, ssl=tls.context, server_hostname=host
        )
    except (ssl.SSLError, ssl.CertificateError) as error:
        raise Untrusted(error_text(error)) from None
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise Disconnected(error_text(error)) from None
    except (OSError, UnicodeError) as error:
        raise unreachable(host, port, error) from None
    return transport


async def _converse(protocol: ClientConnection, version: int, conversation: Conversation) -> float:
    """Authenticate; returns for how many seconds the session lasts (0: without a limit)."""
    token = next(conversation)
    for _ in range(ROUNDS_MAX):
        response = await protocol.request(
            build(messages.request_type(Api.SASL_AUTHENTICATE, version), {"auth_bytes": token})
        )
        if response.error_code is not ErrorCode.none:
            why = response.error_message or "the broker gives no reason"
            raise AuthenticationFailed(f"{why} ({response.error_code.name.upper()})")
        try:
            token = conversation.send(response.auth_bytes)
        except StopIteration:
            return _lifetime_s(response)
    raise AuthenticationFailed("the broker does not end the SASL exchange")


def _lifetime_s(response: Any) -> float:
    lifetime = getattr(response, "session_lifetime", None)  # from version 1 on
    return 0.0 if lifetime is None else max(0.0, float(lifetime.total_seconds()))


def _retire_before_expiry(protocol: ClientConnection, lifetime_s: float) -> None:
    """The next request then opens another connection, and logs in again."""
    if 0 < lifetime_s < LIFETIME_S_MAX:
        asyncio.get_running_loop().call_later(SESSION_USED * lifetime_s, protocol.retire)
