"""Producer ids in blocks: one step of the store for a thousand of them, and never one twice."""

from __future__ import annotations

import asyncio

from insync.metadata import paths
from insync.metadata.errors import Conflict
from insync.metadata.store import Create, MetadataStore, Write

BLOCK = 1_000


class ProducerIds:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._next = self._end = 0

    async def next(self) -> int:
        async with self._lock:
            while self._next == self._end:
                await self._take_block()
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> None:
        entry = self._store.get(paths.PRODUCER_IDS)
        first = 0 if entry is None else int(entry.value)
        value = str(first + BLOCK).encode()
        step = (
            Create(paths.PRODUCER_IDS, value)
            if entry is None
            else Write(entry.path, value, entry.version)
        )
        try:
            await self._store.commit(step)
        except Conflict:
            return  # somebody else took this block; the view has the next one
        self._next, self._end = first, first + BLOCK
