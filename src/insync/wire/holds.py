"""HoldThrottle, a private API (key 32003): a throttle that lasts while somebody renews it.

It holds back a broker that fills itself anew: all that it follows, and the leaders it fetches from.
The same request, sent again, renews it; when it stays away the cluster ends the throttle.

    request   broker int32, throttle_bytes_per_s int64, holder string
    response  error int16, message string or null, lasts_ms int32

The holder is a name that the tool makes up for itself, so that a lost answer does no harm. A
throttle of -1: let go of it. `lasts_ms` is how long from now what anybody holds lasts if it is not
renewed, and a new controller counts anew; 0: nobody holds any.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from insync.wire.primitives import (
    INT16,
    INT32,
    MALFORMED,
    BadMessage,
    Frame,
    check_end,
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


def read_request(frame: Frame, body_at: int) -> HoldThrottle:
    data = memoryview(frame)
    try:
        broker, throttle_bytes_per_s = _HEAD.unpack_from(data, body_at)
        holder, at = read_string(data, body_at + _HEAD.size, flexible=False)
    except MALFORMED as error:
        raise BadMessage(f"no HoldThrottle request: {error}") from error
    check_end(data, at)
    return HoldThrottle(broker, holder, throttle_bytes_per_s)


def write_response(held: ThrottleHeld) -> bytes:
    message = string_bytes(held.message, flexible=False)
    return INT16.pack(held.error) + message + INT32.pack(held.lasts_ms)


def read_response(frame: Frame, body_at: int) -> ThrottleHeld:
    data = memoryview(frame)
    try:
        (code,) = INT16.unpack_from(data, body_at)
        message, at = read_nullable_string(data, body_at + INT16.size, flexible=False)
        (lasts_ms,) = INT32.unpack_from(data, at)
    except MALFORMED as error:
        raise BadMessage(f"no HoldThrottle response: {error}") from error
    check_end(data, at + INT32.size)
    return ThrottleHeld(code, message, lasts_ms)
