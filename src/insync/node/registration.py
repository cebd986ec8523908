"""Broker registration: a new incarnation in the store, at each start and after a lost session.

The same data directory replaces its earlier incarnation at once. Another one waits a moment for the
end of a session whose process may have died just now, and is refused if that session lives on.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from insync.broker.replication.replicas import Replicas
from insync.metadata import paths
from insync.metadata.errors import Conflict, SessionEnded, StoreWentBack, Unavailable
from insync.metadata.records import BrokerRecord, decode_directory, encode_directory
from insync.metadata.store import Check, Create, Delete, MetadataStore, Operation, Write
from insync.node.admission import DirectoryRefused
from insync.node.corrections import Corrections
from insync.rules.values import BrokerId, Incarnation
from insync.wire.uuid_text import write_uuid

RETRY_S: Final = 0.1
SESSION_END_WITHIN_S: Final = 3.0
"""A process that died is noticed at once, by this store too."""

logger = logging.getLogger(__name__)


class OtherSessionLives(Unavailable):
    """The broker is registered with another directory, by a session that may be about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDirectory:
    """The data directory that this broker registers with."""

    directory_id: UUID
    is_another: bool = False  # than the one that the store knows; the operator accepted it


class Registration:
    def __init__(
        self,
        *,
        broker: BrokerId,
        host: str,
        port: int,
        rack: str | None,
        store: MetadataStore,
        replicas: Replicas,
        directory: OwnDirectory,
        corrections: Corrections | None = None,
    ) -> None:
        self._broker = broker
        self._host = host
        self._port = port
        self._rack = rack
        self._store = store
        self._replicas = replicas
        self._directory = directory
        self._corrections = corrections  # until they are written

    async def register(self) -> None:
        """Register, and serve replicas from then on. Retries until the store accepts it.

        Raises DirectoryRefused if the broker is registered, or known, with another directory.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + SESSION_END_WITHIN_S
        logged = ""
        while True:
            try:
                self._check_registered(has_waited=loop.time() >= give_up_s)
                incarnation = await self._try_to_register()
            except (Conflict, SessionEnded):
                continue  # the old registration changed meanwhile, or the new session ended
            except StoreWentBack:
                raise
            except Unavailable as error:
                if str(error) != logged:
                    logger.warning(
                        "broker %d cannot register: %s; trying again every %d ms",
                        self._broker,
                        error,
                        RETRY_S * 1_000,
                    )
                logged = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            break
        # What was accepted is done: from now on this is the directory that the store knows.
        self._directory = OwnDirectory(directory_id=self._directory.directory_id)
        self._corrections = None
        self._replicas.start(incarnation)
        logger.info(
            "broker %d: registered, incarnation (broker epoch) %d", self._broker, incarnation
        )

    async def register_again_when_lost(self) -> None:
        while True:
            await self._store.session_lost.wait()
            logger.warning(
                "broker %d lost its session: its replicas stop until it has registered again",
                self._broker,
            )
            self._replicas.end_terms()
            try:
                await self.register()
            except (DirectoryRefused, StoreWentBack) as refusal:
                logger.error(
                    "broker %d does not register again and serves nothing; stop it: %s",
                    self._broker,
                    refusal,
                )
                await asyncio.get_running_loop().create_future()  # until it is stopped

    def _check_registered(self, *, has_waited: bool) -> None:
        entry = self._store.get(paths.broker_id(self._broker))
        if entry is None:
            return
        record = BrokerRecord.decode(self._broker, entry.value)
        if record.directory_id in (None, self._directory.directory_id):
            return
        assert record.directory_id is not None
        problem = (
            f"broker {self._broker} is registered with directory "
            f"{write_uuid(record.directory_id)}, at {record.host}:{record.port}"
        )
        if has_waited:
            raise DirectoryRefused(f"{problem}; stop that process first, or set another node.id")
        raise OtherSessionLives(f"{problem}; waiting for the end of its session")

    async def _try_to_register(self) -> Incarnation:
        """Replace the registration of an earlier incarnation without waiting for its end."""
        store = self._store
        if store.session is None:
            await store.open_session(f"broker-{self._broker}")
        incarnation = Incarnation(int(store.session or -1))
        directory_step = self._directory_step()
        path = paths.broker_id(self._broker)
        earlier = store.get(path)
        if earlier is not None:
            replaced = BrokerRecord.decode(self._broker, earlier.value)
            if replaced.directory_id not in (None, self._directory.directory_id):
                raise Conflict(path, index=0, expected="nothing", found_version=earlier.version)
            await store.commit(
                Delete(path, earlier.version),
                Delete(paths.broker_incarnation(replaced.incarnation)),
            )
        if self._corrections is not None:
            await self._corrections.write()
        record = BrokerRecord(
            broker=self._broker,
            incarnation=incarnation,
            host=self._host,
            port=self._port,
            rack=self._rack,
            directory_id=self._directory.directory_id,
        )
        await store.commit(
            Create(path, record.encode(), ephemeral=True),
            Create(paths.broker_incarnation(incarnation), b"", ephemeral=True),
            *self._replicas.offline.steps(incarnation),
            directory_step,
        )
        return incarnation

    def _directory_step(self) -> Operation:
        """Let the store know this directory, or check that it does."""
        path, own = paths.broker_directory(self._broker), self._directory.directory_id
        entry = self._store.get(path)
        if entry is None:
            return Create(path, encode_directory(own))
        known = decode_directory(entry.value)
        if known == own:
            return Check(path, entry.version)
        if self._directory.is_another:
            return Write(path, encode_directory(own), entry.version)
        raise DirectoryRefused(
            f"the metadata store knows broker {self._broker} with directory {write_uuid(known)}, "
            f"and this is directory {write_uuid(own)}; another process took this broker's id"
        )
