"""A process that uses the store, started by `test_store_processes`; it prints what happens."""

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


def report(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


async def own(store: SqliteStore, name: str) -> None:
    """Own a session, and print when it is lost."""
    incarnation = await store.open_session(name)
    await store.commit(Create(f"/brokers/ids/{name}", b"", ephemeral=True))
    report("ready", incarnation)
    await store.session_lost.wait()
    report("lost", store.is_alive(monotonic_ms()))
    await asyncio.sleep(3600)


async def poll_alive(store: SqliteStore, name: str) -> None:
    """Own a session, and check all the time whether it is alive: print when it is not."""
    await store.open_session(name)
    report("ready")
    alive = store.is_alive(monotonic_ms())
    while alive:
        await asyncio.sleep(0.001)
        alive = store.is_alive(monotonic_ms())
    report("not-alive")
    await asyncio.sleep(0.3)
    report("still", store.is_alive(monotonic_ms()))


async def hang(store: SqliteStore, name: str) -> None:
    """Own a session and then block the event loop of a process that runs."""
    await store.open_session(name)
    report("ready")
    time.sleep(3600)


async def count(store: SqliteStore, seconds: str) -> None:
    """Increment counters by compare-and-set, and print how often that succeeded."""
    report("ready")
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
    report("made", made)


async def twins(store: SqliteStore, name: str) -> None:
    """Write two nodes in one step, forever; print what was acknowledged."""
    await store.commit(Create(f"/{name}/left", b"0"), Create(f"/{name}/right", b"0"))
    number = 0
    while True:
        number += 1
        value = b"%d" % number
        await store.commit(
            Write(f"/{name}/left", value, number - 1), Write(f"/{name}/right", value, number - 1)
        )
        report("made", number)


async def watch(store: SqliteStore, path: str) -> None:
    """Print when each change of a node was received, on the clock that all processes share."""

    def on_changes(changes: Sequence[Change]) -> None:
        for change in changes:
            if change.path == path and change.after is not None:
                report("received", change.after.value.decode(), time.monotonic_ns())

    store.watch(on_changes)
    report("ready")
    await asyncio.sleep(3600)


async def main() -> None:
    path, timeout_ms, interval_ms, action, argument = sys.argv[1:]
    store = SqliteStore(
        Path(path), session_timeout_ms=int(timeout_ms), heartbeat_interval_ms=int(interval_ms)
    )
    await store.start()
    actions = {
        "own": own,
        "poll_alive": poll_alive,
        "hang": hang,
        "count": count,
        "twins": twins,
        "watch": watch,
    }
    await actions[action](store, argument)
    await store.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
