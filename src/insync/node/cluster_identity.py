"""The cluster's id and secret, which the first broker of a cluster creates in the store."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from random import Random
from typing import Final

from insync.metadata import paths
from insync.metadata.errors import Conflict
from insync.metadata.store import Create, MetadataStore

ID_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
ID_CHARACTERS: Final = 22  # as many as Kafka's
SECRET_BITS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    cluster_id: str
    secret: bytes  # by which brokers prove themselves to each other


async def read_or_create_identity(store: MetadataStore, random: Random) -> ClusterIdentity:
    new_id = "".join(random.choices(ID_ALPHABET, k=ID_CHARACTERS))
    cluster_id = await _read_or_create(store, paths.CLUSTER_ID, new_id.encode())
    new_secret = random.randbytes(SECRET_BITS // 8)
    secret = await _read_or_create(store, paths.CLUSTER_SECRET, new_secret)
    return ClusterIdentity(cluster_id=cluster_id.decode(), secret=secret)


async def _read_or_create(store: MetadataStore, path: str, value: bytes) -> bytes:
    """The value at `path`. If two brokers create it at once, both get the value that won."""
    entry = store.get(path)
    while entry is None:
        with contextlib.suppress(Conflict):
            await store.commit(Create(path, value))
        entry = store.get(path)
    return entry.value
