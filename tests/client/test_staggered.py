"""The first way that gets there counts; all on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from insync.client.staggered import AllFailed, first_of
from insync.sim.virtual_loop import VirtualLoop, virtual_time


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with virtual_time() as loop:
        yield loop


Way = Callable[[], Coroutine[Any, Any, str]]


class Ways:
    """What each attempt does, when it began, and whether it was called off."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.began: dict[str, float] = {}
        self.called_off: list[str] = []

    def one(self, name: str, takes_s: float, error: Exception | None = None) -> Way:
        async def way() -> str:
            self.began[name] = self._loop.time()
            try:
                await asyncio.sleep(takes_s)
            except asyncio.CancelledError:
                self.called_off.append(name)
                raise
            if error is not None:
                raise error
            return name

        return way

    def run(self, *ways: Way) -> str:
        async def whole() -> str:
            found = await first_of(
                ways, hurry_s=1.0, is_final=lambda reason: isinstance(reason, PermissionError)
            )
            await asyncio.sleep(0)  # who was called off hears of it
            return found

        return self._loop.run_until_complete(whole())


def test_who_answers_in_time_is_asked_alone(loop: VirtualLoop) -> None:
    ways = Ways(loop)
    assert ways.run(ways.one("a", 0.9), ways.one("b", 0)) == "a"
    assert ways.began == {"a": 0}


def test_the_next_is_asked_beside_one_that_takes_long_and_at_once_after_a_failure(
    loop: VirtualLoop,
) -> None:
    ways = Ways(loop)
    failing = ways.one("b", 0.25, OSError("b"))
    assert ways.run(ways.one("a", 60), failing, ways.one("c", 0.5)) == "c"
    assert ways.began == {"a": 0, "b": 1.0, "c": 1.25}
    assert ways.called_off == ["a"]


def test_a_slow_one_may_still_be_the_first(loop: VirtualLoop) -> None:
    ways = Ways(loop)
    assert ways.run(ways.one("a", 1.5), ways.one("b", 60)) == "a"
    assert ways.called_off == ["b"]


def test_after_a_final_failure_nobody_else_is_asked_but_who_was_may_answer(
    loop: VirtualLoop,
) -> None:
    ways = Ways(loop)
    final = ways.one("b", 0.1, PermissionError("no"))
    assert ways.run(ways.one("a", 1.5), final, ways.one("c", 0)) == "a"
    assert "c" not in ways.began


def test_all_reasons_are_told_in_their_order(loop: VirtualLoop) -> None:
    ways = Ways(loop)
    with pytest.raises(AllFailed, match="one; two") as failed:
        ways.run(ways.one("a", 0, OSError("one")), ways.one("b", 0, OSError("two")))
    assert [str(each) for each in failed.value.reasons] == ["one", "two"]


def test_whoever_waits_may_be_called_off_and_takes_all_with_him(loop: VirtualLoop) -> None:
    ways = Ways(loop)

    async def whole() -> None:
        waiting = asyncio.create_task(
            first_of([ways.one("a", 60), ways.one("b", 60)], hurry_s=1.0, is_final=lambda _: False)
        )
        await asyncio.sleep(5)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)

    loop.run_until_complete(whole())
    assert sorted(ways.called_off) == ["a", "b"]
