"""Producer ids, taken from the store in blocks of a thousand, so that most need no step."""

from __future__ import annotations

import asyncio
from typing import Final

from insync.metadata import paths
from insync.metadata.errors import Conflict
from insync.metadata.store import Create, MetadataStore, Write

BLOCK_SIZE: Final = 1_000


class ProducerIds:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._next = self._end = 0

    async def next(self) -> int:
        """An id that no producer of this cluster has had."""
        async with self._lock:
            while self._next == self._end:
                await self._reserve_block()
            self._next += 1
            return self._next - 1

    async def _reserve_block(self) -> None:
        entry = self._store.get(paths.PRODUCER_IDS)
        first = 0 if entry is None else int(entry.value)
        value = str(first + BLOCK_SIZE).encode()
        step = (
            Create(paths.PRODUCER_IDS, value)
            if entry is None
            else Write(entry.path, value, entry.version)
        )
        try:
            await self._store.commit(step)
        except Conflict:
            return  # another broker took this block; the store now names the next one
        self._next, self._end = first, first + BLOCK_SIZE
