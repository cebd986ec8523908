"""Readers of whole bodies: here alone, malformed bytes become a `BadMessage` naming the message.

A decorated reader is written for the bytes it expects and lets Python raise (`MALFORMED`). Its
callers see a function of a frame and of the position at which the body begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from insync.wire.primitives import MALFORMED, BadMessage, Frame, check_end

T = TypeVar("T")


def versioned_body(
    api: str, kind: str, versions: range
) -> Callable[[Callable[[int, memoryview, int], T]], Callable[[int, Frame, int], T]]:
    """Of an API of Kafka: refuse other versions; bytes after the last field are ignored."""

    def decorate(read: Callable[[int, memoryview, int], T]) -> Callable[[int, Frame, int], T]:
        @wraps(read)
        def read_body(version: int, frame: Frame, body_at: int) -> T:
            if version not in versions:
                raise BadMessage(f"{api} v{version} is not supported")
            try:
                return read(version, memoryview(frame), body_at)
            except (*MALFORMED, BadMessage) as error:
                raise BadMessage(f"no {api} v{version} {kind}: {error}") from error

        return read_body

    return decorate


def private_body(
    message: str,
) -> Callable[[Callable[[memoryview, int], tuple[T, int]]], Callable[[Frame, int], T]]:
    """Of an API of Insync's own: refuse bytes after the last field."""

    def decorate(read: Callable[[memoryview, int], tuple[T, int]]) -> Callable[[Frame, int], T]:
        @wraps(read)
        def read_body(frame: Frame, body_at: int) -> T:
            data = memoryview(frame)
            try:
                value, at = read(data, body_at)
            except MALFORMED as error:
                raise BadMessage(f"no {message}: {error}") from error
            check_end(data, at)
            return value

        return read_body

    return decorate
