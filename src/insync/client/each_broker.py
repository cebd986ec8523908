"""The same request to several brokers at once, each with its own time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from insync.rules.refusals import Refusal

Broker = TypeVar("Broker", bound=int)
T = TypeVar("T")

DOES_NOT_RESPOND: Final = "does not respond"


async def ask_each_broker(
    brokers: Iterable[Broker],
    request: Callable[[Broker], Awaitable[T]],
    problems: dict[Broker, str],
    *,
    within_ms: Callable[[Broker], int],
) -> dict[Broker, T]:
    """The result of each broker; for each that failed, `problems` gets the reason."""

    async def ask(broker: Broker) -> T:
        async with asyncio.timeout(within_ms(broker) / 1_000):
            return await request(broker)

    ordered = sorted(brokers)
    results = await asyncio.gather(*map(ask, ordered), return_exceptions=True)
    results_by_broker: dict[Broker, T] = {}
    for broker, result in zip(ordered, results, strict=True):
        if isinstance(result, TimeoutError):
            problems[broker] = DOES_NOT_RESPOND
        elif isinstance(result, Refusal):
            problems[broker] = str(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            results_by_broker[broker] = result
    return results_by_broker
