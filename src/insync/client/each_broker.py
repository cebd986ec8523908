"""The same question to several brokers at once, each with its own patience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from insync.rules.refusals import Refusal

Broker = TypeVar("Broker", bound=int)
T = TypeVar("T")


async def of_each_broker(
    brokers: Iterable[Broker],
    question: Callable[[Broker], Awaitable[T]],
    problems: dict[Broker, str],
    *,
    within_ms: Callable[[Broker], int],
) -> dict[Broker, T]:
    """What each broker answers; why the others do not is added to `problems`."""

    async def ask(broker: Broker) -> T:
        async with asyncio.timeout(within_ms(broker) / 1_000):
            return await question(broker)

    asked = sorted(brokers)
    results = await asyncio.gather(*map(ask, asked), return_exceptions=True)
    answers: dict[Broker, T] = {}
    for broker, result in zip(asked, results, strict=True):
        if isinstance(result, TimeoutError):
            problems[broker] = "does not answer"
        elif isinstance(result, Refusal):
            problems[broker] = str(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[broker] = result
    return answers
