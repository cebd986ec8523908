"""Holding the throttle of a broker that is rebuilding its replicas, which ends by itself."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from insync.client.admin import Admin
from insync.client.admin_connections import Refused
from insync.rules.values import BrokerId
from insync.wire import holds as wire
from insync.wire.apis import Api


async def are_offered(admin: Admin) -> bool:
    """Whether these brokers end a throttle that is not renewed."""
    connections = admin.connections
    return await connections.operation(lambda: connections.offers(Api.HOLD_THROTTLE))


async def hold(admin: Admin, broker: BrokerId, *, holder: str, bytes_per_s: int) -> int:
    """Hold the throttle, or renew it; returns for how many milliseconds it lasts."""
    return await _ask(admin, wire.HoldThrottle(broker, holder, bytes_per_s))


async def release(admin: Admin, broker: BrokerId, *, holder: str) -> None:
    """The throttle is removed when this returns; no error if it was removed before."""
    await _ask(admin, wire.HoldThrottle(broker, holder))


async def is_any_held(admin: Admin) -> bool:
    """Whether a tool holds a throttle now, which no other tool may remove."""
    if not await are_offered(admin):
        return False
    return await _ask(admin, wire.HoldThrottle(0, "none")) > 0


async def _ask(admin: Admin, request: wire.HoldThrottle) -> int:
    connections = admin.connections
    body = wire.write_request(request)

    async def attempt() -> int:
        held = wire.read_response(*await connections.ask_controller_bytes(Api.HOLD_THROTTLE, body))
        if held.error:
            raise Refused(ErrorCode(held.error), held.message or "the throttle")
        return held.lasts_ms

    return await connections.operation(attempt)
