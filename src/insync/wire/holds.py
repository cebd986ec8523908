"""HoldThrottle, a private API (key 32003): a throttle that lasts while a tool renews it.

It throttles a broker that is rebuilding its replicas: all replicas that follow, and their leaders.
The same request, sent again, renews it; without renewal the cluster ends the throttle.

    request   broker int32, throttle_bytes_per_s int64, holder string
    response  error int16, message string or null, lasts_ms int32

The holder is a name that the tool chooses, so that it can repeat a request whose response was lost.
A throttle of -1 releases it. `lasts_ms` is how long the current throttle of any tool lasts without
renewal (a new controller starts counting again); 0: no tool holds one.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from insync.wire.body_readers import private_body
from insync.wire.primitives import (
    INT16,
    INT32,
    read_nullable_string,
    read_string,
    string_bytes,
)

NO_THROTTLE: Final = -1

_HEAD: Final = Struct(">iq")


class HoldThrottle(NamedTuple):
    broker: int
    holder: str
    throttle_bytes_per_s: int = NO_THROTTLE


class ThrottleHeld(NamedTuple):
    """On an error nothing was changed."""

    error: int
    message: str | None = None
    lasts_ms: int = 0


def write_request(request: HoldThrottle) -> bytes:
    head = _HEAD.pack(request.broker, request.throttle_bytes_per_s)
    return head + string_bytes(request.holder, flexible=False)


@private_body("HoldThrottle request")
def read_request(data: memoryview, at: int) -> tuple[HoldThrottle, int]:
    broker, throttle_bytes_per_s = _HEAD.unpack_from(data, at)
    holder, at = read_string(data, at + _HEAD.size, flexible=False)
    return HoldThrottle(broker, holder, throttle_bytes_per_s), at


def write_response(held: ThrottleHeld) -> bytes:
    message = string_bytes(held.message, flexible=False)
    return INT16.pack(held.error) + message + INT32.pack(held.lasts_ms)


@private_body("HoldThrottle response")
def read_response(data: memoryview, at: int) -> tuple[ThrottleHeld, int]:
    (code,) = INT16.unpack_from(data, at)
    message, at = read_nullable_string(data, at + INT16.size, flexible=False)
    (lasts_ms,) = INT32.unpack_from(data, at)
    return ThrottleHeld(code, message, lasts_ms), at + INT32.size
