"""A cluster as an administrator reaches it: any broker or the controller, in a version both speak.

Nothing here is ours alone: what a broker can do is what its ApiVersions says, and the controller is
whom Metadata names (Apache Kafka before KRaft takes changes nowhere else; later any broker does).
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

Address = tuple[str, int]
T = TypeVar("T")

# What a client may send to any broker since 0.10: the answer tells the rest.
API_VERSIONS_FIRST: Final = 0
METADATA_FIRST: Final = 1  # version 0 knows no controller
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
HURRY_S: Final = 1.0  # without an answer for so long, the next is asked as well
PORT_MAX: Final = 65535
SENT_AWAY_MAX: Final = 3  # once may be a broker that stops

# What another attempt may mend without the administrator changing anything.
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
    """None of the given addresses is a broker that answers."""


class TimedOut(Refusal):
    """It was tried until the time was up."""


class NotOffered(Refusal):
    """The broker does not know this request, or not in a version that we do."""


class NoSuchBroker(Refusal):
    """The cluster does not tell of a living broker with this id."""


class Refused(Refusal):
    """The cluster answered with an error: its own words, and the code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{message} ({code.name.upper()})")
        self.code = code
        self.message = message

    def after_lost_answer(self) -> Refused:
        """The same, when an attempt before it may have been the one that counted."""
        lost = "the answer to an earlier attempt was lost, which may have done it"
        return Refused(self.code, f"{self.message.rstrip('.')}; {lost}")


class BadAddress(Refusal):
    """Something that is not a list of HOST:PORT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one answer, and one whole operation with its retries, may take."""

    request_ms: int = 10_000
    operation_ms: int = 30_000


def parse_bootstrap(text: str) -> list[Address]:
    """`HOST:PORT,HOST:PORT`; an IPv6 address stands in brackets."""
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
        assert bootstrap, "there is somebody to ask"
        self._network = network
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self.patience = patience or Patience()
        self._open: dict[Address, tuple[ClientConnection, dict[int, range]]] = {}
        self._addresses: dict[int, Address] = {}  # of brokers, as the cluster tells them
        self._anybody: Address | None = None  # who answered last
        self._controller: int | None = None
        self._was_answered = False
        self._sent_away = 0  # connections that ended at a question, and none was ever answered

    def close(self) -> None:
        for connection, _ in self._open.values():
            connection.close()
        self._open.clear()

    async def operation(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it is done, is refused for good, or the time for it is up."""
        pause_s, last = RETRY_S, "no broker answered"
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
        """Whether the broker asked for everything else knows this request."""
        _, versions = await self._connect(await self._somebody())
        return _common_version(api, versions) is not None

    async def ask(self, api: Api, values: Values) -> Any:
        """The answer of whichever broker answers."""
        return await self._ask(await self._somebody(), api, values)

    async def ask_controller(self, api: Api, values: Values) -> Any:
        if self._controller is None:
            await self.metadata([])
        address = self._addresses.get(-1 if self._controller is None else self._controller)
        return await self._ask(address or await self._somebody(), api, values)

    # One broker, and no other: only it can tell.

    @property
    def brokers(self) -> dict[int, Address]:
        """Where each broker is, as the latest `metadata` told."""
        return dict(self._addresses)

    async def broker_offers(self, broker: int, api: Api) -> bool:
        _, versions = await self._connect(self._addresses[broker])
        return _common_version(api, versions) is not None

    async def ask_broker(self, broker: int, api: Api, values: Values) -> Any:
        """The answer of just this one."""
        if broker not in self._addresses:
            await self.metadata([])
        if broker not in self._addresses:
            known = ", ".join(str(each) for each in sorted(self._addresses))
            raise NoSuchBroker(f"there is no broker {broker} now; there are {known}")
        return await self._ask(self._addresses[broker], api, values)

    async def ask_broker_bytes(
        self, broker: int, api: Api, body: bytes
    ) -> tuple[memoryview | bytes, int]:
        """For an API of our own: the answer's frame, and where its body begins."""
        address = self._addresses[broker]
        connection, version = await self._ready(address, api)
        return await self._answered(address, connection.ask(api, version, [body]))

    async def ask_controller_bytes(self, api: Api, body: bytes) -> tuple[memoryview | bytes, int]:
        """The same of whoever is the controller now."""
        controller = (await self.metadata([])).controller_id
        if controller not in self._addresses:
            raise Disconnected("the cluster has no controller now")
        return await self.ask_broker_bytes(controller, api, body)

    async def metadata(self, names: Sequence[str] | None) -> Any:
        """Metadata of these topics or (None) all; who leads the cluster is noted on the way."""
        topics = None if names is None else [{"name": name} for name in names]
        values = {"topics": topics, "allow_auto_topic_creation": False}
        answer = await self.ask(Api.METADATA, values)
        self._addresses = {each.node_id: (each.host, each.port) for each in answer.brokers}
        self._controller = answer.controller_id if answer.controller_id >= 0 else None
        return answer

    async def _somebody(self) -> Address:
        """A broker that answers: the last one, one of those given, or one that was told of.

        One that hangs is not waited for alone: that is when administrators have questions.
        """
        last = [] if self._anybody is None else [self._anybody]
        candidates: list[Address] = [*last, *self._bootstrap, *self._addresses.values()]

        async def answers(address: Address) -> Address:
            await self._connect(address)
            return address

        ways = [partial(answers, address) for address in dict.fromkeys(candidates)]
        try:
            # A wrong password, say, is not shown to everybody else as well.
            self._anybody = await first_of(
                ways, hurry_s=HURRY_S, is_final=lambda reason: not isinstance(reason, Disconnected)
            )
        except AllFailed as failed:
            for reason in failed.reasons:
                if not isinstance(reason, Disconnected):
                    raise reason from None
            if self._anybody is None:
                raise Unreachable(str(failed)) from None
            raise Disconnected(str(failed)) from None
        return self._anybody

    async def _ask(self, address: Address, api: Api, values: Values) -> Any:
        connection, version = await self._ready(address, api)
        request = build(messages.request_type(api, version), values)
        return await self._answered(address, connection.request(request))

    async def _ready(self, address: Address, api: Api) -> tuple[ClientConnection, int]:
        """A connection, and the version to ask in."""
        connection, versions = await self._connect(address)
        version = _common_version(api, versions)
        if version is None:
            raise NotOffered(f"the broker at {_name(address)} does not offer {_title(api)}")
        return connection, version

    async def _answered(self, address: Address, asking: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.patience.request_ms / 1_000):
                answer = await asking
        except TimeoutError:
            self._drop(address)
            raise Disconnected(
                f"the broker at {_name(address)} did not answer within "
                f"{self.patience.request_ms} ms"
            ) from None
        except Disconnected as gone:
            self._refuse_if_sent_away(address, gone)
            self._drop(address)
            raise Disconnected(f"{_name(address)}: {gone}") from None
        self._was_answered = True
        return answer

    def _refuse_if_sent_away(self, address: Address, gone: Disconnected) -> None:
        """A listener that asks for SASL takes ApiVersions of anybody, and then ends it."""
        _, versions = self._open.get(address, (None, {}))
        if self._was_answered or Api.SASL_HANDSHAKE not in versions:
            return
        self._sent_away += 1
        if self._sent_away >= SENT_AWAY_MAX:
            raise Unreachable(f"{_name(address)}: {gone}; {ASKS_FOR_SASL}")

    async def _connect(self, address: Address) -> tuple[ClientConnection, dict[int, range]]:
        known = self._open.get(address)
        if known is not None and known[0].is_open:
            return known
        connection = ClientConnection(client_id=self._client_id)
        try:
            async with asyncio.timeout(self.patience.request_ms / 1_000):
                await self._network.connect(*address, connection)
                versions = await _versions(connection)
        except asyncio.CancelledError:
            connection.close()  # whoever asked was in more of a hurry
            raise
        except TimeoutError:
            connection.close()
            raise Disconnected(f"no broker answers at {_name(address)}") from None
        except messages.BadMessage:
            connection.close()
            raise Disconnected(f"what answers at {_name(address)} is no broker") from None
        except Disconnected as gone:
            # A refused connection names the address by itself.
            text = str(gone)
            raise Disconnected(
                text if _name(address) in text else f"{_name(address)}: {text}"
            ) from None
        meanwhile = self._open.get(address)
        if meanwhile is not None and meanwhile[0].is_open:  # somebody else asked as well
            connection.close()
            return meanwhile
        self._open[address] = connection, versions
        return self._open[address]

    def _drop(self, address: Address) -> None:
        found = self._open.pop(address, None)
        if found is not None:
            found[0].close()


async def _versions(connection: ClientConnection) -> dict[int, range]:
    answer = await connection.request(messages.request_type(Api.API_VERSIONS, API_VERSIONS_FIRST)())
    return {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}


def _common_version(api: Api, theirs: dict[int, range]) -> int | None:
    ours = SUPPORTED[api]
    first = METADATA_FIRST if api is Api.METADATA else ours[0]
    common = [version for version in theirs.get(api, ()) if version in ours and version >= first]
    return max(common, default=None)


def _title(api: Api) -> str:
    return "".join(part.capitalize() for part in api.name.split("_"))


def _name(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
