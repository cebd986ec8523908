"""Staggered attempts: the first that succeeds counts; on virtual time."""

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
    """What each attempt does, when it started, and whether it was cancelled."""

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
        async def run_scenario() -> str:
            result = await first_of(
                ways, stagger_s=1.0, is_final=lambda reason: isinstance(reason, PermissionError)
            )
            await asyncio.sleep(0)  # cancelled attempts handle their cancellation
            return result

        return self._loop.run_until_complete(run_scenario())


def test_no_other_attempt_starts_if_the_first_succeeds_in_time(loop: VirtualLoop) -> None:
    ways = Ways(loop)
    assert ways.run(ways.one("a", 0.9), ways.one("b", 0)) == "a"
    assert ways.began == {"a": 0}


def test_the_next_starts_after_the_stagger_and_at_once_after_a_failure(
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


def test_after_a_final_failure_no_attempt_starts_but_running_ones_may_succeed(
    loop: VirtualLoop,
) -> None:
    ways = Ways(loop)
    final = ways.one("b", 0.1, PermissionError("no"))
    assert ways.run(ways.one("a", 1.5), final, ways.one("c", 0)) == "a"
    assert "c" not in ways.began


def test_all_reasons_are_reported_in_order(loop: VirtualLoop) -> None:
    ways = Ways(loop)
    with pytest.raises(AllFailed, match="one; two") as failed:
        ways.run(ways.one("a", 0, OSError("one")), ways.one("b", 0, OSError("two")))
    assert [str(each) for each in failed.value.reasons] == ["one", "two"]


def test_cancelling_the_caller_cancels_all_attempts(loop: VirtualLoop) -> None:
    ways = Ways(loop)

    async def run_scenario() -> None:
        waiting = asyncio.create_task(
            first_of(
                [ways.one("a", 60), ways.one("b", 60)], stagger_s=1.0, is_final=lambda _: False
            )
        )
        await asyncio.sleep(5)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)

    loop.run_until_complete(run_scenario())
    assert sorted(ways.called_off) == ["a", "b"]
