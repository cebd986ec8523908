"""Following: one fetcher per leader, which asks for all partitions followed there and appends.

It asks in a session: after the first time it lists only what changed, so that a thousand idle
partitions cost one small request per wait. What changes while a request waits at the leader is
listed in another at once; the leader then lets the first one go.

What is throttled (KIP-73) and out of sync is asked for only as far as bytes could be reserved of
the follower's quota; otherwise it is left out of the session, and waits in turn.

Truncation is by leader epoch (KIP-101, KIP-279): each partition tells the epoch of its last
record, and a leader whose log parted there answers where, instead of with records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.broker.fetch_sessions import FIRST_EPOCH, NO_SESSION, next_epoch
from insync.broker.quotas import Quota
from insync.broker.reads import ReadPool
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.broker.settings import Settings
from insync.client.connection import ClientConnection, Disconnected, Network
from insync.rules.epochs import EpochEnd, truncation
from insync.rules.refusals import Refusal
from insync.rules.throttling import Treatment, follower_is_in_sync
from insync.rules.values import BrokerId, LeaderEpoch, Offset
from insync.storage.cutting import Cut
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
from insync.wire.headers import response_body_at

FETCH_VERSION = 17
CONNECT_TIMEOUT_S = 5.0
Place = tuple[UUID, int]  # a topic's id and a partition's number
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
        quota: Quota,
        reads: ReadPool,
    ) -> None:
        self._broker = replicas.broker
        self._new_fetcher = partial(
            _Fetcher,
            replicas=replicas,
            view=view,
            settings=settings,
            network=network,
            secret=secret,
            quota=quota,
            reads=reads,
        )
        self._fetchers: dict[BrokerId, _Fetcher] = {}
        self._fetcher_of: dict[tuple[str, int], BrokerId] = {}
        replicas.on_following = self._on_following

    def _on_following(self, replica: Replica) -> None:
        """A replica has a new leader, none, or is led here now."""
        before = self._fetcher_of.pop(replica.key, None)
        leader = replica.leader
        if before is not None:
            if before == leader and self._fetchers[before].asks_for(replica):
                self._fetcher_of[replica.key] = before
                return
            self._fetchers[before].drop(replica)
        if leader is None or leader == self._broker:
            return
        if leader not in self._fetchers:
            self._fetchers[leader] = self._new_fetcher(leader)
        self._fetcher_of[replica.key] = leader
        self._fetchers[leader].add(replica)

    @property
    def held_back(self) -> int:
        """Partitions that wait for the quota."""
        return sum(fetcher.held_back for fetcher in self._fetchers.values())

    def quota_changed(self) -> None:
        """What was asked for under another throttle, or none, is asked for anew."""
        for fetcher in self._fetchers.values():
            fetcher.quota_changed()

    async def stop(self) -> None:
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))


class _Listed(NamedTuple):
    """What the leader knows of a partition that is asked for."""

    epoch: LeaderEpoch
    request: int  # that told it: answers to earlier ones are old


class _Sent(NamedTuple):
    request: int
    answer: asyncio.Future[memoryview | bytes]


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
        quota: Quota,
        reads: ReadPool,
    ) -> None:
        self._leader = leader
        self._replicas = replicas
        self._view = view
        self._settings = settings
        self._network = network
        self._secret = secret
        self._quota = quota
        self._reads = reads
        self._followed: dict[Place, Replica] = {}
        self._to_list: dict[Place, None] = {}  # what the leader has yet to hear
        self._to_forget: dict[Place, None] = {}
        self._listed: dict[Place, _Listed] = {}
        self._resting: dict[Place, asyncio.TimerHandle] = {}  # had an error; asked for later
        self._cutting: dict[Place, tuple[LeaderEpoch, asyncio.Future[Cut]]] = {}  # asked for after
        self._held_back: dict[Place, None] = {}  # by the quota; the next in turn first
        self._reserved: dict[Place, int] = {}  # bytes that were reserved to ask for it
        self._told: set[Place] = set()  # whose leader's watermark is known in this session
        self._session_id = NO_SESSION
        self._session_epoch = FIRST_EPOCH
        self._requests = 0
        self._sent: deque[_Sent] = deque()  # not answered yet
        self._has_news = asyncio.Event()
        self._is_poked = False
        self._connection: ClientConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def asks_for(self, replica: Replica) -> bool:
        place = (replica.topic_id, replica.key[1])
        nothing = (None,)
        epochs = (self._listed.get(place, nothing)[0], self._cutting.get(place, nothing)[0])
        return (
            self._followed.get(place) is replica
            and place not in self._resting
            and (place in self._to_list or place in self._held_back or replica.epoch in epochs)
        )

    def add(self, replica: Replica) -> None:
        place = (replica.topic_id, replica.key[1])
        self._followed[place] = replica
        self._ask_for(place)

    def drop(self, replica: Replica) -> None:
        place = (replica.topic_id, replica.key[1])
        self._followed.pop(place, None)
        self._stop_asking_for(place)

    def _ask_for(self, place: Place) -> None:
        rest = self._resting.pop(place, None)
        if rest is not None:
            rest.cancel()
        self._to_forget.pop(place, None)
        self._to_list[place] = None
        self.wake()

    def wake(self) -> None:
        """There is something new to ask for."""
        self._has_news.set()
        if self._sent and not self._is_poked:
            # Once for all that change now: roles change by the hundred.
            self._is_poked = True
            asyncio.get_running_loop().call_soon(self._poke)

    def _stop_asking_for(self, place: Place) -> None:
        rest = self._resting.pop(place, None)
        if rest is not None:
            rest.cancel()
        self._to_list.pop(place, None)
        self._cutting.pop(place, None)
        self._held_back.pop(place, None)
        self._release(place)
        if place in self._listed:
            self._to_forget[place] = None

    def _let_rest(self, place: Place, rest_ms: int) -> None:
        self._stop_asking_for(place)
        loop = asyncio.get_running_loop()
        self._resting[place] = loop.call_later(rest_ms / 1_000, self._ask_for, place)

    def _begin_anew(self) -> None:
        """The leader has forgotten, or never knew, what we ask for."""
        self._session_id, self._session_epoch = NO_SESSION, FIRST_EPOCH
        self._listed.clear()
        self._to_forget.clear()
        self._held_back.clear()
        self._told.clear()
        for place in list(self._reserved):
            self._release(place)
        waiting = self._resting.keys() | self._cutting.keys()
        self._to_list = {place: None for place in self._followed if place not in waiting}

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for rest in self._resting.values():
            rest.cancel()
        self._cutting.clear()  # what is found from now on is cut by whoever follows next
        if self._connection is not None:
            self._connection.close()

    # Under a throttle.

    @property
    def held_back(self) -> int:
        return len(self._held_back)

    def quota_changed(self) -> None:
        for place, replica in self._followed.items():
            if place in self._listed and place not in self._reserved and self._is_limited(replica):
                self._to_list[place] = None
        if self._to_list or self._held_back:
            self.wake()

    def _is_limited(self, replica: Replica) -> bool:
        return self._treatment(replica) is Treatment.LIMITED

    def _treatment(self, replica: Replica) -> Treatment:
        if not self._quota.is_set:
            return Treatment.FREE
        return self._quota.treatment(replica.key, is_in_sync=self._is_in_sync(replica))

    def _is_in_sync(self, replica: Replica) -> bool:
        """By the state of this incarnation, or because it lacks nothing that is committed."""
        members, replicas = replica.members, self._replicas
        if members is not None and replicas.broker in members and replicas.may_lead():
            return True
        is_told = (replica.topic_id, replica.key[1]) in self._told
        return follower_is_in_sync(
            next_offset=Offset(replica.log.end),
            leader_high_watermark=Offset(replica.leader_watermark) if is_told else None,
        )

    def _take_turns(self) -> None:
        """Sort out what may be asked for now from what the quota holds back."""
        if not self._quota.is_set and not self._held_back:
            return
        for place in list(self._to_list):
            if place not in self._reserved and self._is_limited(self._followed[place]):
                del self._to_list[place]
                self._held_back[place] = None
        for place in list(self._held_back):
            if not self._is_limited(self._followed[place]):
                del self._held_back[place]
                self._to_list[place] = None
        if self._held_back:
            self._reserve()
        for place in self._held_back:
            if place in self._listed:
                self._to_forget[place] = None
        if not self._held_back and not self._reserved:
            self._quota.leave(self)

    def has_room(self) -> None:
        """The quota may have something for what is held back here."""
        if not self._reserved:
            self.wake()
        # Else what is asked for is on its way: asking again now could bring it twice.

    def _reserve(self) -> None:
        """Ask for as many of those that wait as the quota has bytes for, the next in turn first."""
        partition_bytes = self._settings.integer("replica.fetch.max.bytes")
        response_bytes = self._settings.integer("replica.fetch.response.max.bytes")
        first = self._followed[next(iter(self._held_back))]
        left = self._quota.reserve(
            self,
            min(response_bytes, partition_bytes * len(self._held_back)),
            batch_bytes_max=first.batch_bytes_max,
        )
        is_first = True
        for place in list(self._held_back):
            # Only the first may be answered with a batch larger than what is reserved for it.
            if left <= 0 or (not is_first and left < self._followed[place].batch_bytes_max):
                break
            is_first = False
            self._reserved[place] = min(left, partition_bytes)
            left -= self._reserved[place]
            del self._held_back[place]
            self._to_forget.pop(place, None)
            self._to_list[place] = None
        if left > 0:
            self._quota.settle(left, 0)

    def _release(self, place: Place) -> None:
        reserved = self._reserved.pop(place, None)
        if reserved is not None:
            self._quota.settle(reserved, 0)

    def _count(self, place: Place, replica: Replica, size_bytes: int) -> None:
        """What came, against what was reserved for it."""
        reserved = self._reserved.pop(place, None)
        if reserved is not None:
            self._quota.settle(reserved, size_bytes)
            return
        match self._treatment(replica):
            case Treatment.COUNTED:
                self._quota.received_in_sync(size_bytes)
            case Treatment.LIMITED:  # asked for before there was a throttle
                self._quota.settle(0, size_bytes)
            case Treatment.FREE:
                pass

    def _end_reservations(self) -> None:
        """An answer came: who got nothing of what was reserved for it is the next in turn."""
        places = list(self._reserved)
        for place in places:
            self._release(place)
        self._held_back = dict.fromkeys([*places, *self._held_back])

    async def _run(self) -> None:
        while True:
            if not self._sent:
                self._take_turns()
            if not (self._listed or self._to_list or self._sent):
                self._has_news.clear()
                await self._has_news.wait()
            try:
                await self._fetch()
            except (Disconnected, OSError, TimeoutError) as error:
                logger.info("fetching from %d: %s", self._leader, error)
                self._view.doubt()
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
        for _, answer in self._sent:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # known: it ended with its connection
        self._sent.clear()
        self._begin_anew()

    async def _fetch(self) -> None:
        connection = await self._connected()
        if not self._sent:
            self._send(connection)
        # A leader that is stopped or cut off closes no connection.
        patience_ms = self._settings.integer("replica.fetch.wait.max.ms") + self._settings.integer(
            "replica.socket.timeout.ms"
        )
        async with asyncio.timeout(patience_ms / 1_000):
            frame = await self._sent[0].answer
        request = self._sent.popleft().request
        body_at = response_body_at(Api.FETCH, FETCH_VERSION, frame)
        response = read_fetch_response(FETCH_VERSION, frame, body_at)
        if response.error:
            raise Disconnected(f"refused with {ErrorCode(response.error).name}")
        for topic, parts in response.topics:
            assert isinstance(topic, UUID), "fetched by topic id"
            for part in parts:
                self._came(request, topic, part)
        if self._reserved and not self._sent:
            self._end_reservations()
        if self._sent and not self._reserved and (self._to_list or self._held_back):
            self.wake()  # what was to be asked for while two were under way
        if self._session_id == NO_SESSION:
            if response.session_id == NO_SESSION:
                self._begin_anew()
            self._session_id = response.session_id

    def _came(self, request: int, topic: UUID, part: FetchedPartition) -> None:
        place = (topic, part.partition)
        replica = self._followed.get(place)
        if replica is None:
            return
        if part.records and self._quota.is_set:
            self._count(place, replica, len(part.records))
        # What an answer says of a partition we have changed our mind about is old: also when the
        # leader has been told, in a request that it had not seen when it answered.
        is_old = place in self._to_list or place in self._cutting
        listed = self._listed.get(place)
        if listed is not None and listed.request <= request and not is_old:
            self._take(place, replica, part)

    def _poke(self) -> None:
        """Tell the leader what changed while it holds our request."""
        self._is_poked = False
        connection = self._connection
        is_waiting = len(self._sent) == 1 and self._session_id != NO_SESSION
        if not is_waiting or connection is None or not connection.is_open:
            return
        self._take_turns()
        if self._to_list or self._to_forget:
            self._send(connection)

    def _send(self, connection: ClientConnection) -> None:
        self._requests += 1
        body = write_fetch_request(FETCH_VERSION, self._request())
        answer = connection.send(Api.FETCH, FETCH_VERSION, [body])
        self._sent.append(_Sent(self._requests, answer))

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
        """What changed since the last one: that is now known to the leader."""
        self._take_turns()
        partition_bytes = self._settings.integer("replica.fetch.max.bytes")
        wait_ms = self._settings.integer("replica.fetch.wait.max.ms")
        if not self._told.issuperset(self._reserved):
            wait_ms = 0  # what is reserved for a replica that lacks nothing is wanted elsewhere
        topics: dict[UUID, list[FetchPartition]] = {}
        for place in self._to_list:
            topic_id, number = place
            replica = self._followed[place]
            latest = replica.log.epochs.latest
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=number,
                    current_leader_epoch=replica.epoch,
                    fetch_offset=replica.log.end,
                    last_fetched_epoch=-1 if latest is None else latest,
                    log_start=replica.log.start,
                    max_bytes=self._reserved.get(place, partition_bytes),
                )
            )
            self._listed[place] = _Listed(replica.epoch, self._requests)
        forgotten: dict[UUID, list[int]] = {}
        for place in self._to_forget:
            forgotten.setdefault(place[0], []).append(place[1])
            del self._listed[place]
        self._to_list.clear()
        self._to_forget.clear()
        epoch, self._session_epoch = self._session_epoch, next_epoch(self._session_epoch)
        return FetchRequest(
            replica_id=self._replicas.broker,
            replica_epoch=self._replicas.incarnation,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self._settings.integer("replica.fetch.response.max.bytes"),
            session_id=self._session_id,
            session_epoch=epoch,
            topics=[FetchTopic(topic_id, parts) for topic_id, parts in topics.items()],
            forgotten=list(forgotten.items()),
        )

    def _take(self, place: Place, replica: Replica, part: FetchedPartition) -> None:
        try:
            match part.error:
                case ErrorCode.none if part.diverging is not None:
                    epoch, end = part.diverging
                    self._truncate(place, replica, EpochEnd(LeaderEpoch(epoch), Offset(end)))
                case ErrorCode.none:
                    if part.records:
                        self._to_list[place] = None
                        now_ms = self._replicas.wall_ms()
                        replica.log.append_follower(part.records, now_ms=now_ms)
                        self._replicas.counts.replication_bytes_in += len(part.records)
                    if part.log_start > replica.log.start:
                        replica.log.delete_records_before(min(part.log_start, replica.log.end))
                    replica.follow(part.high_watermark)
                    self._told.add(place)
                case ErrorCode.offset_out_of_range:
                    self._start_over(place, replica, part)
                case _:
                    # Most often this broker or the leader has yet to hear of a change.
                    self._let_rest(place, RETRY_MS)
        except StorageRefusal as refusal:
            logger.warning("%s-%d: %s", *replica.key, refusal)
            self._let_rest(place, self._settings.integer("replica.fetch.backoff.ms"))

    def _truncate(self, place: Place, replica: Replica, leader_says: EpochEnd) -> None:
        log = replica.log
        cut = truncation(
            log.epochs,
            log_end=Offset(log.end),
            high_watermark=Offset(replica.high_watermark),
            leader_says=leader_says,
        )
        to = max(cut.to, log.start)
        logger.info("%s-%d: is to be cut from %d to %d", *replica.key, log.end, to)
        if to >= log.end:
            log.truncate_to(to)
            replica.high_watermark = min(replica.high_watermark, log.end)
            self._to_list[place] = None
            return
        # Where to cut takes reading, and a leader that handed over may have had a slow disk.
        self._stop_asking_for(place)
        finding = self._reads.submit(partial(log.find_cut, to))
        self._cutting[place] = replica.epoch, finding
        finding.add_done_callback(partial(self._cut, place, replica))

    def _cut(self, place: Place, replica: Replica, finding: asyncio.Future[Cut]) -> None:
        if finding.cancelled():
            return
        failure = finding.exception()
        if place not in self._cutting or self._cutting[place][1] is not finding:
            return  # something else has become of the replica meanwhile
        del self._cutting[place]
        try:
            if failure is not None:
                raise failure
            if replica.log.cut(finding.result()):
                replica.high_watermark = min(replica.high_watermark, replica.log.end)
        except StorageRefusal as refusal:
            logger.warning("%s-%d: %s", *replica.key, refusal)
            self._let_rest(place, self._settings.integer("replica.fetch.backoff.ms"))
        except Exception:  # whatever it is: nobody else would ask for this replica again
            logger.exception("%s-%d: could not be cut", *replica.key)
            self._let_rest(place, self._settings.integer("replica.fetch.backoff.ms"))
        else:
            self._ask_for(place)  # cut or not: the leader says what is left to do

    def _start_over(self, place: Place, replica: Replica, part: FetchedPartition) -> None:
        """The leader's log begins after our end: what is between was deleted by retention."""
        log = replica.log
        if part.log_start > log.end or log.start == log.end:
            log.truncate_fully(part.log_start)
            replica.high_watermark = log.end
            self._to_list[place] = None
        else:
            self._let_rest(place, self._settings.integer("replica.fetch.backoff.ms"))
