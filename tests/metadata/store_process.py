"""A process that uses the store, started by `test_processes`; it speaks in lines."""

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from insync.metadata.errors import Conflict
from insync.metadata.sqlite import SqliteStore, monotonic_ms
from insync.metadata.store import Change, Create, Write

COUNTERS = 20


def say(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


async def own(store: SqliteStore, name: str) -> None:
    """Own a session, and say when it is lost."""
    incarnation = await store.open_session(name)
    await store.commit(Create(f"/brokers/ids/{name}", b"", ephemeral=True))
    say("ready", incarnation)
    await store.session_lost.wait()
    say("lost", store.is_alive(monotonic_ms()))
    await asyncio.sleep(3600)


async def ask(store: SqliteStore, name: str) -> None:
    """Own a session, and look all the time whether it may still act: the order of the answers."""
    await store.open_session(name)
    say("ready")
    alive = store.is_alive(monotonic_ms())
    while alive:
        await asyncio.sleep(0.001)
        alive = store.is_alive(monotonic_ms())
    say("not-alive")
    await asyncio.sleep(0.3)
    say("still", store.is_alive(monotonic_ms()))


async def hang(store: SqliteStore, name: str) -> None:
    """Own a session and then hang: the process lives, its loop does not."""
    await store.open_session(name)
    say("ready")
    time.sleep(3600)


async def count(store: SqliteStore, seconds: str) -> None:
    """Raise counters by compare-and-set, and say how often that succeeded."""
    say("ready")
    made, number, end = 0, 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        path = f"/counters/{number % COUNTERS}"
        entry = store.get(path)
        assert entry is not None
        try:
            await store.commit(Write(path, b"%d" % (int(entry.value) + 1), entry.version))
        except Conflict:
            continue
        made, number = made + 1, number + 1
    say("made", made)


async def twins(store: SqliteStore, name: str) -> None:
    """Write two nodes in one step, forever; say what was acknowledged."""
    await store.commit(Create(f"/{name}/left", b"0"), Create(f"/{name}/right", b"0"))
    number = 0
    while True:
        number += 1
        value = b"%d" % number
        await store.commit(
            Write(f"/{name}/left", value, number - 1), Write(f"/{name}/right", value, number - 1)
        )
        say("made", number)


async def hear(store: SqliteStore, path: str) -> None:
    """Say when each change of a node was heard, on the clock that all processes share."""

    def on_changes(changes: Sequence[Change]) -> None:
        for change in changes:
            if change.path == path and change.after is not None:
                say("heard", change.after.value.decode(), time.monotonic_ns())

    store.watch(on_changes)
    say("ready")
    await asyncio.sleep(3600)


async def main() -> None:
    path, timeout_ms, interval_ms, act, argument = sys.argv[1:]
    store = SqliteStore(
        Path(path), session_timeout_ms=int(timeout_ms), heartbeat_interval_ms=int(interval_ms)
    )
    await store.start()
    acts = {"own": own, "ask": ask, "hang": hang, "count": count, "twins": twins, "hear": hear}
    await acts[act](store, argument)
    await store.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
