"""The addresses that a broker listens on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from insync.broker.settings import Settings
from insync.node.world import Listener, NodeNetwork
from insync.rules.refusals import BadSetting, Refusal


def listener_address(settings: Settings) -> tuple[str, int]:
    text = settings.broker.listeners
    scheme, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if scheme != "PLAINTEXT" or not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004
        raise BadSetting(f"listeners is {text!r}; write PLAINTEXT://HOST:PORT")
    return host, int(port)


async def open_listener(
    network: NodeNetwork,
    *,
    setting: str,
    host: str,
    port: int,
    protocol: Callable[[], asyncio.Protocol],
) -> Listener:
    """Listen at the address that a setting names; a refusal names that setting."""
    try:
        return await network.listen(host, port, protocol)
    except Refusal as refusal:
        raise BadSetting(f"{refusal}; choose another address in {setting}") from None
