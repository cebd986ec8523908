"""When Python's garbage collector visits the objects of a broker.

A full collection visits every object that may be part of a cycle, and the event loop waits for it:
a quarter of a second with 10 000 partitions. Python starts one whenever a quarter more objects have
survived, and finds next to nothing: most objects of a broker live as long as its partitions.

So the objects that survive a full collection are frozen (`gc.freeze`): the next one visits only
those that came after it. Garbage among the frozen ones, as of closed connections and deleted
partitions, is freed by a collection of everything once an hour.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

THRESHOLDS: Final = (2_000, 10, 3)
"""A young collection visits 2 000 objects, a middle one 20 000, a full one about 60 000: 25 ms."""
ALL_EVERY_S: Final = 3_600.0


@contextmanager
def short_collections() -> Iterator[None]:
    """Let each full collection visit only what came since the last one."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(_freeze_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze_survivors)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:  # noqa: PLR2004 - the oldest
        gc.freeze()


def collect_all() -> None:
    """Visit the frozen objects as well."""
    gc.unfreeze()
    gc.collect()


async def collect_all_every_hour() -> None:
    while True:
        await asyncio.sleep(ALL_EVERY_S)
        collect_all()
