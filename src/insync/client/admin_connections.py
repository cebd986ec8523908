"""Connections of an admin client: to any broker or the controller, in a version that both support.

All of it works with Apache Kafka too: ApiVersions says what a broker offers, and Metadata names the
controller (before KRaft only the controller accepts changes; later any broker does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from insync.client.connection import ASKS_FOR_SASL, ClientConnection, Disconnected, Network
from insync.client.staggered import AllFailed, first_of
from insync.rules.refusals import Refusal
from insync.wire import messages
from insync.wire.any_version import Values, build
from insync.wire.apis import SUPPORTED, Api
from insync.wire.frames import BadFrame

Address = tuple[str, int]
T = TypeVar("T")

# What a client may send to any broker since 0.10: the response has the versions of the rest.
API_VERSIONS_FIRST: Final = 0
METADATA_FIRST: Final = 1  # version 0 knows no controller
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
STAGGER_S: Final = 1.0  # after this long without a response, the next broker is tried as well
PORT_MAX: Final = 65535
DISCONNECTS_MAX: Final = 3  # once may be a broker that stops

# Errors after which the same request may succeed.
RETRIABLE: Final = frozenset(
    {
        ErrorCode.not_controller,
        ErrorCode.broker_not_available,
        ErrorCode.leader_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.throttling_quota_exceeded,
    }
)


class Unreachable(Refusal):
    """None of the bootstrap addresses is a broker that responds."""


class TimedOut(Refusal):
    """Every attempt within the time limit failed."""


class NotOffered(Refusal):
    """The broker does not know this request, or in no version that Insync supports."""


class NoSuchBroker(Refusal):
    """The cluster has no live broker with this id."""


class Refused(Refusal):
    """The cluster responded with an error: its message, and the code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{message} ({code.name.upper()})")
        self.code = code
        self.message = message

    def after_lost_response(self) -> Refused:
        """The same, if an earlier attempt may have succeeded."""
        lost = "the response to an earlier attempt was lost, so it may have succeeded"
        return Refused(self.code, f"{self.message.rstrip('.')}; {lost}")


class BadAddress(Refusal):
    """Something that is not a list of HOST:PORT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits of one request, and of an operation with its retries."""

    request_ms: int = 10_000
    operation_ms: int = 30_000


def parse_bootstrap(text: str) -> list[Address]:
    """`HOST:PORT,HOST:PORT`; an IPv6 address is in brackets."""
    addresses = []
    for each in text.split(","):
        host, _, port = each.strip().rpartition(":")
        is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= PORT_MAX
        if not host or not is_port:
            raise BadAddress(f"{each.strip()!r} is not HOST:PORT")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses


class Connections:
    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "insync-admin",
        patience: Patience | None = None,
    ) -> None:
        assert bootstrap, "at least one bootstrap address"
        self._network = network
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self.patience = patience or Patience()
        self._open: dict[Address, tuple[ClientConnection, dict[int, range]]] = {}
        self._addresses: dict[int, Address] = {}  # of brokers, from Metadata
        self._last_responder: Address | None = None
        self._controller: int | None = None
        self._had_response = False
        self._early_disconnects = 0  # connections that ended at a request, before any response

    def close(self) -> None:
        for connection, _ in self._open.values():
            connection.close()
        self._open.clear()

    async def operation(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it succeeds, fails with an error that is not retriable, or times out."""
        pause_s, last = RETRY_S, "no broker responded"
        try:
            async with asyncio.timeout(self.patience.operation_ms / 1_000):
                while True:
                    try:
                        return await attempt()
                    except Disconnected as gone:
                        last = str(gone)
                    except Refused as refused:
                        if refused.code not in RETRIABLE:
                            raise
                        last = str(refused)
                    self._controller = None
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_S_MAX)
        except TimeoutError:
            raise TimedOut(f"not done within {self.patience.operation_ms} ms: {last}") from None

    async def offers(self, api: Api) -> bool:
        """Whether the broker that gets the other requests knows this one."""
        _, versions = await self._connect(await self._responding_broker())
        return _common_version(api, versions) is not None

    async def ask(self, api: Api, values: Values) -> Any:
        """The response of any broker."""
        return await self._ask(await self._responding_broker(), api, values)

    async def ask_controller(self, api: Api, values: Values) -> Any:
        if self._controller is None:
            await self.metadata([])
        address = self._addresses.get(-1 if self._controller is None else self._controller)
        return await self._ask(address or await self._responding_broker(), api, values)

    # Requests to one broker only.

    @property
    def brokers(self) -> dict[int, Address]:
        """The address of each broker, from the latest Metadata response."""
        return dict(self._addresses)

    async def broker_offers(self, broker: int, api: Api) -> bool:
        _, versions = await self._connect(self._addresses[broker])
        return _common_version(api, versions) is not None

    async def ping_broker(self, broker: int) -> None:
        """Return when this broker has answered a small request."""
        address = self._addresses[broker]
        connection, _ = await self._connect(address)
        await self._await_response(address, _versions(connection))

    async def ask_broker(self, broker: int, api: Api, values: Values) -> Any:
        """The response of this broker."""
        if broker not in self._addresses:
            await self.metadata([])
        if broker not in self._addresses:
            live = ", ".join(str(each) for each in sorted(self._addresses))
            raise NoSuchBroker(f"there is no live broker {broker}; live brokers: {live}")
        return await self._ask(self._addresses[broker], api, values)

    async def ask_broker_bytes(
        self, broker: int, api: Api, body: bytes
    ) -> tuple[memoryview | bytes, int]:
        """For an API of Insync's own: the response's frame, and where its body begins."""
        address = self._addresses[broker]
        connection, version = await self._ready(address, api)
        return await self._await_response(address, connection.ask(api, version, [body]))

    async def ask_controller_bytes(self, api: Api, body: bytes) -> tuple[memoryview | bytes, int]:
        """The same of the current controller."""
        controller = (await self.metadata([])).controller_id
        if controller not in self._addresses:
            raise Disconnected("the cluster has no controller now")
        return await self.ask_broker_bytes(controller, api, body)

    async def metadata(self, names: Sequence[str] | None) -> Any:
        """Metadata of these topics or (None) of all; updates brokers and controller."""
        topics = None if names is None else [{"name": name} for name in names]
        values = {"topics": topics, "allow_auto_topic_creation": False}
        response = await self.ask(Api.METADATA, values)
        self._addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
        self._controller = response.controller_id if response.controller_id >= 0 else None
        return response

    async def _responding_broker(self) -> Address:
        """A broker that responds: the last one, a bootstrap address, or one from Metadata.

        While one hangs, others are tried too: that is when operators need answers.
        """
        last = [] if self._last_responder is None else [self._last_responder]
        candidates: list[Address] = [*last, *self._bootstrap, *self._addresses.values()]

        async def try_connect(address: Address) -> Address:
            await self._connect(address)
            return address

        attempts = [partial(try_connect, address) for address in dict.fromkeys(candidates)]
        try:
            # A wrong password, for example, is not sent to all other brokers too.
            self._last_responder = await first_of(
                attempts,
                stagger_s=STAGGER_S,
                is_final=lambda reason: not isinstance(reason, Disconnected),
            )
        except AllFailed as failed:
            for reason in failed.reasons:
                if not isinstance(reason, Disconnected):
                    raise reason from None
            if self._last_responder is None:
                raise Unreachable(str(failed)) from None
            raise Disconnected(str(failed)) from None
        return self._last_responder

    async def _ask(self, address: Address, api: Api, values: Values) -> Any:
        connection, version = await self._ready(address, api)
        request = build(messages.request_type(api, version), values)
        return await self._await_response(address, connection.request(request))

    async def _ready(self, address: Address, api: Api) -> tuple[ClientConnection, int]:
        """A connection, and the version of the request."""
        connection, versions = await self._connect(address)
        version = _common_version(api, versions)
        if version is None:
            raise NotOffered(f"the broker at {_name(address)} does not offer {_title(api)}")
        return connection, version

    async def _await_response(self, address: Address, response: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.patience.request_ms / 1_000):
                result = await response
        except TimeoutError:
            self._drop(address)
            raise Disconnected(
                f"the broker at {_name(address)} did not respond within "
                f"{self.patience.request_ms} ms"
            ) from None
        except Disconnected as gone:
            self._refuse_if_sasl_is_needed(address, gone)
            self._drop(address)
            raise Disconnected(f"{_name(address)}: {gone}") from None
        self._had_response = True
        return result

    def _refuse_if_sasl_is_needed(self, address: Address, gone: Disconnected) -> None:
        """A listener that requires SASL accepts ApiVersions of any client, and then disconnects."""
        _, versions = self._open.get(address, (None, {}))
        if self._had_response or Api.SASL_HANDSHAKE not in versions:
            return
        self._early_disconnects += 1
        if self._early_disconnects >= DISCONNECTS_MAX:
            raise Unreachable(f"{_name(address)}: {gone}; {ASKS_FOR_SASL}")

    async def _connect(self, address: Address) -> tuple[ClientConnection, dict[int, range]]:
        opened = self._open.get(address)
        if opened is not None and opened[0].is_open:
            return opened
        connection = ClientConnection(client_id=self._client_id)
        try:
            async with asyncio.timeout(self.patience.request_ms / 1_000):
                await self._network.connect(*address, connection)
                versions = await _versions(connection)
        except asyncio.CancelledError:
            connection.close()  # another broker responded first
            raise
        except TimeoutError:
            connection.close()
            raise Disconnected(f"no broker responds at {_name(address)}") from None
        except messages.BadMessage:
            connection.close()
            raise Disconnected(f"what responds at {_name(address)} is not a broker") from None
        except Disconnected as gone:
            # The message of a refused connection has the address already.
            text = str(gone)
            if isinstance(connection.ended_by, BadFrame):
                text = f"does not speak Kafka's protocol: {connection.ended_by}"
            raise Disconnected(
                text if _name(address) in text else f"{_name(address)}: {text}"
            ) from None
        meanwhile = self._open.get(address)
        if meanwhile is not None and meanwhile[0].is_open:  # another caller connected too
            connection.close()
            return meanwhile
        self._open[address] = connection, versions
        return self._open[address]

    def _drop(self, address: Address) -> None:
        opened = self._open.pop(address, None)
        if opened is not None:
            opened[0].close()


async def _versions(connection: ClientConnection) -> dict[int, range]:
    response = await connection.request(
        messages.request_type(Api.API_VERSIONS, API_VERSIONS_FIRST)()
    )
    return {
        each.api_key: range(each.min_version, each.max_version + 1) for each in response.api_keys
    }


def _common_version(api: Api, offered: dict[int, range]) -> int | None:
    supported = SUPPORTED[api]
    first = METADATA_FIRST if api is Api.METADATA else supported[0]
    common = [
        version for version in offered.get(api, ()) if version in supported and version >= first
    ]
    return max(common, default=None)


def _title(api: Api) -> str:
    return "".join(part.capitalize() for part in api.name.split("_"))


def _name(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
