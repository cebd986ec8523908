"""What only the memory store has: brokers cut off from it, and delays."""

import asyncio
from random import Random

import pytest

from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.store import Create, Write
from support.metadata.store_kinds import record_notifications, until

TIMEOUT_MS = 9_000


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


async def opened(tree: MemoryTree, clock: Clock) -> MemoryStore:
    store = MemoryStore(tree, clock_ms=clock, session_timeout_ms=TIMEOUT_MS)
    await store.start()
    return store


def test_a_paused_store_gets_no_notifications_and_its_commits_wait() -> None:
    async def scenario() -> None:
        tree, clock = MemoryTree(), Clock()
        one, two = await opened(tree, clock), await opened(tree, clock)
        received = record_notifications(one)
        one.pause()
        waiting = asyncio.ensure_future(one.commit(Create("/by-one", b"")))
        for number in range(3):
            await two.commit(Create(f"/{number}", b""))
        await asyncio.sleep(0)
        assert (received, one.revision, waiting.done()) == ([], 0, False)
        one.resume()
        assert await waiting == 4
        assert [[change.path for change in changes] for _, changes in received] == [
            ["/0"], ["/1"], ["/2"], ["/by-one"],
        ]  # fmt: skip

    asyncio.run(scenario())


def test_commits_of_a_store_that_is_cut_off_are_refused_until_it_resumes() -> None:
    async def scenario() -> None:
        tree, clock = MemoryTree(), Clock()
        one, two = await opened(tree, clock), await opened(tree, clock)
        one.cut_off()
        with pytest.raises(Unavailable):
            await one.commit(Create("/a", b""))
        assert tree.revision == 0
        await two.commit(Create("/a", b""))
        await asyncio.sleep(0)
        assert one.get("/a") is None
        one.resume()
        assert one.get("/a") is not None
        await one.commit(Write("/a", b"", 0))

    asyncio.run(scenario())


@pytest.mark.parametrize(("away_ms", "stays"), [(TIMEOUT_MS, True), (TIMEOUT_MS + 1, False)])
def test_a_store_disconnected_for_longer_than_the_timeout_lost_its_session(
    away_ms: int, *, stays: bool
) -> None:
    async def scenario() -> None:
        tree, clock = MemoryTree(), Clock()
        one, two = await opened(tree, clock), await opened(tree, clock)
        await one.open_session("one")
        clock.now_ms = 50_000  # connected until now
        assert one.is_alive(clock.now_ms)
        one.pause()
        assert one.is_alive(50_000 + away_ms) == stays
        clock.now_ms += away_ms
        one.resume()
        # For good: a new connection does not bring it back.
        assert one.is_alive(clock.now_ms) == stays
        assert one.session_lost.is_set() != stays
        await until(lambda: len(two.children("/sessions")) == stays)

    asyncio.run(scenario())


def test_a_session_ended_while_its_owner_was_paused_is_lost_when_it_resumes() -> None:
    async def scenario() -> None:
        tree, clock = MemoryTree(), Clock()
        one = await opened(tree, clock)
        incarnation = await one.open_session("one")
        one.pause()
        tree.end_session(incarnation)
        tree.end_session(incarnation)  # twice is harmless
        assert tree.revision == 2
        assert one.is_alive(1)  # it cannot know yet, and its time is not up
        one.resume()
        assert not one.is_alive(1)

    asyncio.run(scenario())


def steps_of_run(seed: int) -> list[tuple[int, object]]:
    """The steps of three stores with random delays, as one of them received them."""
    rng = Random(seed)  # noqa: S311 - a seed, not a secret

    async def scenario() -> list[tuple[int, object]]:
        tree = MemoryTree(delay_ms=lambda: rng.randrange(4))
        stores = [await opened(tree, Clock()) for _ in range(3)]
        received = [record_notifications(store) for store in stores]

        async def write(store: MemoryStore, name: int) -> None:
            for _ in range(5):
                entry = store.get("/n")
                value = b"%d" % name
                step = Write("/n", value, entry.version) if entry else Create("/n", value)
                try:
                    await store.commit(step)
                except Conflict:
                    continue

        await asyncio.gather(*(write(store, name) for name, store in enumerate(stores)))
        await until(lambda: all(store.revision == tree.revision for store in stores))
        assert received[0] == received[1] == received[2]
        return list(received[0])

    return asyncio.run(scenario())


def test_delayed_notifications_come_in_order() -> None:
    for seed in range(5):
        assert len(steps_of_run(seed)) >= 5
