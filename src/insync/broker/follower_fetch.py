"""Following: one fetcher per leader, which asks for all partitions followed there and appends.

Truncation is by leader epoch (KIP-101, KIP-279): each partition tells the epoch of its last
record, and a leader whose log parted there answers where, instead of with records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.broker.settings import Settings
from insync.client.connection import ClientConnection, Disconnected, Network
from insync.rules.epochs import EpochEnd, truncation
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId, LeaderEpoch, Offset
from insync.storage.errors import StorageRefusal
from insync.wire import hello
from insync.wire.apis import Api
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)

FETCH_VERSION = 17
CONNECT_TIMEOUT_S = 5.0
RETRY_MS = 50  # within this time every broker has heard of a change

logger = logging.getLogger(__name__)


class FollowerFetchers:
    """Keeps one fetcher per leader that leads something followed here."""

    def __init__(
        self,
        *,
        replicas: Replicas,
        view: ClusterView,
        settings: Settings,
        network: Network,
        secret: bytes,
    ) -> None:
        self._broker = replicas.broker
        self._new_fetcher = partial(
            _Fetcher,
            replicas=replicas,
            view=view,
            settings=settings,
            network=network,
            secret=secret,
        )
        self._fetchers: dict[BrokerId, _Fetcher] = {}
        self._fetcher_of: dict[tuple[str, int], BrokerId] = {}
        replicas.on_following = self._on_following

    def _on_following(self, replica: Replica) -> None:
        """A replica has a new leader, none, or is led here now."""
        before = self._fetcher_of.pop(replica.key, None)
        if before is not None:
            self._fetchers[before].drop(replica)
        leader = replica.leader
        if leader is None or leader == self._broker:
            return
        if leader not in self._fetchers:
            self._fetchers[leader] = self._new_fetcher(leader)
        self._fetcher_of[replica.key] = leader
        self._fetchers[leader].add(replica)

    async def stop(self) -> None:
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))


class _Fetcher:
    """Fetches from one leader for as long as there is something to fetch from it."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        replicas: Replicas,
        view: ClusterView,
        settings: Settings,
        network: Network,
        secret: bytes,
    ) -> None:
        self._leader = leader
        self._replicas = replicas
        self._view = view
        self._settings = settings
        self._network = network
        self._secret = secret
        self._followed: dict[tuple[UUID, int], Replica] = {}
        self._rests_until_ms: dict[tuple[UUID, int], int] = {}  # had an error; asked again then
        self._has_news = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, replica: Replica) -> None:
        key = (replica.topic_id, replica.key[1])
        self._rests_until_ms.pop(key, None)
        self._followed[key] = replica
        self._has_news.set()

    def drop(self, replica: Replica) -> None:
        key = (replica.topic_id, replica.key[1])
        self._followed.pop(key, None)
        self._rests_until_ms.pop(key, None)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def _run(self) -> None:
        while True:
            if not self._followed:
                self._has_news.clear()
                await self._has_news.wait()
            try:
                await self._fetch()
            except (Disconnected, OSError, TimeoutError) as error:
                logger.info("fetching from %d: %s", self._leader, error)
                self._disconnect()
                await self._rest(RETRY_MS)
            except Refusal as refusal:
                logger.warning("fetching from %d: %s", self._leader, refusal)
                self._disconnect()
                await self._rest(self._settings.integer("replica.fetch.backoff.ms"))

    async def _rest(self, rest_ms: int) -> None:
        """Wait, but not when there is something new to fetch."""
        self._has_news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rest_ms / 1_000):
                await self._has_news.wait()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _fetch(self) -> None:
        connection = await self._connected()
        request = self._request()
        if not request.topics:
            await self._rest(RETRY_MS)
            return
        body = write_fetch_request(FETCH_VERSION, request)
        # A leader that is stopped or cut off closes no connection.
        patience_ms = request.max_wait_ms + self._settings.integer("replica.socket.timeout.ms")
        async with asyncio.timeout(patience_ms / 1_000):
            frame, body_at = await connection.ask(Api.FETCH, FETCH_VERSION, [body])
        response = read_fetch_response(FETCH_VERSION, frame, body_at)
        if response.error:
            raise Disconnected(f"refused with {ErrorCode(response.error).name}")
        for topic, parts in response.topics:
            assert isinstance(topic, UUID), "fetched by topic id"
            for part in parts:
                key = (topic, part.partition)
                replica = self._followed.get(key)
                if replica is not None and replica.leader == self._leader:
                    self._take(key, replica, part)

    async def _connected(self) -> ClientConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        record = self._view.brokers.get(self._leader)
        if record is None:
            raise Disconnected(f"broker {self._leader} is not registered")
        connection = ClientConnection(client_id=f"broker-{self._replicas.broker}-fetcher")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await self._network.connect(record.host, record.port, connection)
            await self._prove(connection)
        self._connection = connection
        return connection

    async def _prove(self, connection: ClientConnection) -> None:
        me, incarnation = self._replicas.broker, self._replicas.incarnation
        nonce = await self._hello(connection, hello.HelloRequest(me, incarnation))
        proof = hello.proof(self._secret, nonce, me, incarnation)
        await self._hello(connection, hello.HelloRequest(me, incarnation, proof))

    async def _hello(self, connection: ClientConnection, request: hello.HelloRequest) -> bytes:
        body = hello.write_hello_request(request)
        frame, body_at = await connection.ask(Api.BROKER_HELLO, 0, [body])
        response = hello.read_hello_response(frame, body_at)
        if response.error:
            raise Disconnected("the leader did not accept this broker's proof")
        return response.nonce

    def _request(self) -> FetchRequest:
        now_ms = self._replicas.clock_ms()
        partition_bytes = self._settings.integer("replica.fetch.max.bytes")
        topics: dict[UUID, list[FetchPartition]] = {}
        for (topic_id, number), replica in self._followed.items():
            if self._rests_until_ms.get((topic_id, number), now_ms) > now_ms:
                continue
            latest = replica.log.epochs.latest
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=number,
                    current_leader_epoch=replica.epoch,
                    fetch_offset=replica.log.end,
                    last_fetched_epoch=-1 if latest is None else latest,
                    log_start=replica.log.start,
                    max_bytes=partition_bytes,
                )
            )
        return FetchRequest(
            replica_id=self._replicas.broker,
            replica_epoch=self._replicas.incarnation,
            max_wait_ms=self._settings.integer("replica.fetch.wait.max.ms"),
            min_bytes=1,
            max_bytes=self._settings.integer("replica.fetch.response.max.bytes"),
            topics=[FetchTopic(topic_id, parts) for topic_id, parts in topics.items()],
        )

    def _take(self, key: tuple[UUID, int], replica: Replica, part: FetchedPartition) -> None:
        try:
            match part.error:
                case ErrorCode.none if part.diverging is not None:
                    self._truncate(
                        replica, EpochEnd(LeaderEpoch(part.diverging[0]), Offset(part.diverging[1]))
                    )
                case ErrorCode.none:
                    if part.records:
                        now_ms = self._replicas.wall_ms()
                        replica.log.append_follower(bytes(part.records), now_ms=now_ms)
                    if part.log_start > replica.log.start:
                        replica.log.delete_records_before(min(part.log_start, replica.log.end))
                    replica.follow(part.high_watermark)
                case ErrorCode.offset_out_of_range:
                    self._start_over(key, replica, part)
                case _:
                    # Most often this broker or the leader has yet to hear of a change.
                    self._let_rest(key, RETRY_MS)
        except StorageRefusal as refusal:
            logger.warning("%s-%d: %s", *replica.key, refusal)
            self._let_rest(key, self._settings.integer("replica.fetch.backoff.ms"))

    def _let_rest(self, key: tuple[UUID, int], rest_ms: int) -> None:
        self._rests_until_ms[key] = self._replicas.clock_ms() + rest_ms

    def _truncate(self, replica: Replica, leader_says: EpochEnd) -> None:
        cut = truncation(
            replica.log.epochs,
            log_end=Offset(replica.log.end),
            high_watermark=Offset(replica.high_watermark),
            leader_says=leader_says,
        )
        logger.info("%s-%d: cut from %d to %d", *replica.key, replica.log.end, cut.to)
        replica.log.truncate_to(max(cut.to, replica.log.start))
        replica.high_watermark = min(replica.high_watermark, replica.log.end)

    def _start_over(self, key: tuple[UUID, int], replica: Replica, part: FetchedPartition) -> None:
        """The leader's log begins after our end: what is between was deleted by retention."""
        if part.log_start > replica.log.end:
            replica.log.truncate_fully(part.log_start)
            replica.high_watermark = replica.log.end
        else:
            self._let_rest(key, self._settings.integer("replica.fetch.backoff.ms"))
