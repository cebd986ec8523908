"""Fetching from one leader: one connection, one fetch session, all partitions that it leads.

After the first request of a session a request lists only what changed, so that a thousand idle
partitions cost one small request per wait. Changes while the leader holds a request are sent in
a second one at once; the leader then answers the first.

Logs are truncated by leader epoch (KIP-101, KIP-279): a request names the epoch of the last record
of each partition, and a leader whose log differs answers with the offset where it does.
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
from insync.broker.quotas.quota_admission import QuotaAdmission
from insync.broker.reads import ReadPool
from insync.broker.replication.followed_partition import (
    FollowedPartition,
    FollowedPartitions,
    Truncating,
)
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.settings import Settings
from insync.client.connection import ClientConnection, Disconnected, Network
from insync.rules.epochs import EpochEnd, truncation
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId, LeaderEpoch, Offset
from insync.storage.errors import StorageRefusal
from insync.storage.truncation import PreparedTruncation
from insync.wire import hello
from insync.wire.apis import Api
from insync.wire.batches import CorruptBatch
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from insync.wire.fetch_session_epochs import FIRST_EPOCH, NO_SESSION, next_epoch
from insync.wire.frames import REPLICATION_FRAME_BYTES_MAX
from insync.wire.headers import response_body_at

FETCH_VERSION = 17
CONNECT_TIMEOUT_S = 5.0
RETRY_MS = 50  # within this time every broker has read a change of the metadata

logger = logging.getLogger(__name__)


class _SentRequest(NamedTuple):
    number: int
    answer: asyncio.Future[memoryview | bytes]


class LeaderFetcher:
    """Fetches from one leader for as long as it leads a partition that is followed here."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        replicas: Replicas,
        view: ClusterView,
        settings: Settings,
        network: Network,
        secret: bytes,
        quota: QuotaAdmission,
        reads: ReadPool,
    ) -> None:
        self._leader = leader
        self._replicas = replicas
        self._view = view
        self._settings = settings
        self._network = network
        self._secret = secret
        self._reads = reads
        self._partitions = FollowedPartitions(
            replicas=replicas, settings=settings, quota=quota, waiter=self
        )
        self._session_id = NO_SESSION
        self._session_epoch = FIRST_EPOCH
        self._requests = 0  # sent so far: the number of the last one
        self._sent: deque[_SentRequest] = deque()  # not answered yet; two at most
        self._answer_due_s = 0.0  # when the first of these is late
        self._silence_timer: asyncio.TimerHandle | None = None
        self._has_changes = asyncio.Event()
        self._is_second_request_due = False
        self._connection: ClientConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def follow(self, replica: Replica) -> None:
        if self._partitions.follow(replica):
            self._wake()

    def drop(self, replica: Replica) -> None:
        self._partitions.drop(replica)

    def _list_again(self, partition: FollowedPartition) -> None:
        self._partitions.list_again(partition)
        self._wake()

    def _rest(self, partition: FollowedPartition, rest_ms: int) -> None:
        """List the partition again only after a pause."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(rest_ms / 1_000, self._list_again, partition)
        self._partitions.rest(partition, timer)

    def _back_off(self, partition: FollowedPartition) -> None:
        self._rest(partition, self._settings.broker.replica_fetch_backoff_ms)

    def _wake(self) -> None:
        """Send a request for what changed."""
        self._has_changes.set()
        if self._sent and not self._is_second_request_due:
            # One request for all changes of this moment: roles change by the hundred.
            self._is_second_request_due = True
            asyncio.get_running_loop().call_soon(self._send_second_request)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self._partitions.stop()
        if self._connection is not None:
            self._connection.close()

    # Under a throttle.

    @property
    def held_back(self) -> int:
        return self._partitions.held_back

    def on_quota_changed(self) -> None:
        if self._partitions.on_quota_changed():
            self._wake()

    def has_room(self) -> None:
        """The quota may have bytes for partitions held back here."""
        if not self._partitions.has_reservations:
            self._wake()
        # Else what is reserved is being fetched: a second request now could bring it twice.

    async def _run(self) -> None:
        logged = ""  # the last error: each is logged once until a fetch succeeds
        while True:
            if not self._sent:
                self._partitions.apply_quota()
            if not (self._partitions.needs_request or self._sent):
                self._has_changes.clear()
                await self._has_changes.wait()
            try:
                await self._fetch()
                logged = ""
            except (Disconnected, OSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                if reason != logged:
                    logger.info(
                        "cannot fetch from leader %d: %s; trying again", self._leader, reason
                    )
                logged = reason
                self._view.expect_leader_changes()
                self._disconnect()
                await self._pause(RETRY_MS)
            except Refusal as refusal:
                if str(refusal) != logged:
                    logger.warning(
                        "cannot fetch from leader %d: %s; trying again", self._leader, refusal
                    )
                logged = str(refusal)
                self._disconnect()
                await self._pause(self._settings.broker.replica_fetch_backoff_ms)
            except Exception:  # without this fetcher, every partition of the leader would stop
                logger.exception("cannot fetch from leader %d; trying again", self._leader)
                self._disconnect()
                await self._pause(self._settings.broker.replica_fetch_backoff_ms)

    async def _pause(self, pause_ms: int) -> None:
        """Wait, but no longer than until there is something new to fetch."""
        self._has_changes.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1_000):
                await self._has_changes.wait()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for _, answer in self._sent:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieved: it is the end of the connection
        self._sent.clear()
        self._start_session()

    def _start_session(self) -> None:
        """The next request begins a fetch session, which lists everything."""
        self._session_id, self._session_epoch = NO_SESSION, FIRST_EPOCH
        self._partitions.start_session()

    async def _fetch(self) -> None:
        connection = await self._open_connection()
        if not self._sent:
            self._send(connection)
        self._watch_for_silence()
        frame = await self._sent[0].answer
        request = self._sent.popleft().number
        body_at = response_body_at(Api.FETCH, FETCH_VERSION, frame)
        response = read_fetch_response(FETCH_VERSION, frame, body_at)
        if response.error:
            raise Disconnected(f"refused with {ErrorCode(response.error).name}")
        for topic_id, answers in response.topics:
            assert isinstance(topic_id, UUID), "fetched by topic id"
            for answer in answers:
                self._receive(request, topic_id, answer)
        partitions = self._partitions
        if not self._sent:
            if partitions.has_reservations:
                partitions.end_reservations()
        elif not partitions.has_reservations and (partitions.to_list or partitions.held_back):
            self._wake()  # these had to wait while two requests were under way
        if self._session_id == NO_SESSION:
            if response.session_id == NO_SESSION:
                self._start_session()
            self._session_id = response.session_id

    def _watch_for_silence(self) -> None:
        """Fail the answer that is awaited now if it takes too long.

        A leader that is stopped or cut off closes no connection. One timer serves many answers:
        it is set again when it fires early.
        """
        loop, settings = asyncio.get_running_loop(), self._settings.broker
        timeout_ms = settings.replica_fetch_wait_max_ms + settings.replica_socket_timeout_ms
        self._answer_due_s = loop.time() + timeout_ms / 1_000
        if self._silence_timer is None or self._silence_timer.when() > self._answer_due_s:
            self._set_silence_timer()

    def _set_silence_timer(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        loop = asyncio.get_running_loop()
        self._silence_timer = loop.call_at(self._answer_due_s, self._on_silence)

    def _on_silence(self) -> None:
        self._silence_timer = None
        if not self._sent:
            return  # the next answer sets it again
        if asyncio.get_running_loop().time() < self._answer_due_s:
            self._set_silence_timer()
        elif not self._sent[0].answer.done():
            self._sent[0].answer.set_exception(TimeoutError())

    def _receive(self, request: int, topic_id: UUID, answer: FetchedPartition) -> None:
        partition = self._partitions.get((topic_id, answer.partition))
        if partition is None:
            return
        if answer.records:
            self._partitions.count_received(partition, len(answer.records))
        # An answer is stale if the partition has changed here since it was requested. The leader
        # may not have seen the request with the change when it answered.
        if partition.accepts_answer_to(request):
            self._apply(partition, answer)

    def _send_second_request(self) -> None:
        """Send what changed while the leader holds the first request."""
        self._is_second_request_due = False
        connection = self._connection
        is_waiting = len(self._sent) == 1 and self._session_id != NO_SESSION
        if not is_waiting or connection is None or not connection.is_open:
            return
        self._partitions.apply_quota()
        if self._partitions.has_unsent_changes:
            self._send(connection)

    def _send(self, connection: ClientConnection) -> None:
        self._requests += 1
        body = write_fetch_request(FETCH_VERSION, self._next_request())
        answer = connection.send(Api.FETCH, FETCH_VERSION, [body])
        self._sent.append(_SentRequest(self._requests, answer))

    async def _open_connection(self) -> ClientConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        record = self._view.brokers.get(self._leader)
        if record is None:
            raise Disconnected(f"broker {self._leader} is not registered")
        connection = ClientConnection(
            client_id=f"broker-{self._replicas.broker}-fetcher",
            frame_bytes_max=REPLICATION_FRAME_BYTES_MAX,
        )
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await self._network.connect(record.host, record.port, connection)
            await self._authenticate(connection)
        self._connection = connection
        return connection

    async def _authenticate(self, connection: ClientConnection) -> None:
        """Prove to the leader that this broker has the cluster's secret."""
        broker, incarnation = self._replicas.broker, self._replicas.incarnation
        nonce = await self._hello(connection, hello.HelloRequest(broker, incarnation))
        proof = hello.proof(self._secret, nonce, broker, incarnation)
        await self._hello(connection, hello.HelloRequest(broker, incarnation, proof))

    async def _hello(self, connection: ClientConnection, request: hello.HelloRequest) -> bytes:
        body = hello.write_hello_request(request)
        frame, body_at = await connection.ask(Api.BROKER_HELLO, 0, [body])
        response = hello.read_hello_response(frame, body_at)
        if response.error:
            raise Disconnected("the leader did not accept this broker's proof")
        return response.nonce

    def _next_request(self) -> FetchRequest:
        """A request with everything that changed since the last one."""
        partitions = self._partitions
        partitions.apply_quota()
        settings = self._settings.broker
        partition_bytes = settings.replica_fetch_max_bytes
        wait_ms = settings.replica_fetch_wait_max_ms
        if not partitions.knows_reserved_watermarks:
            wait_ms = 0  # bytes reserved for a replica that lacks nothing are needed elsewhere
        topics: dict[UUID, list[FetchPartition]] = {}
        for partition in partitions.to_list:
            topic_id, number = partition.key
            replica, reserved_bytes = partition.replica, partition.reserved_bytes
            latest_epoch = replica.log.epochs.latest
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=number,
                    current_leader_epoch=replica.epoch,
                    fetch_offset=replica.log.end,
                    last_fetched_epoch=-1 if latest_epoch is None else latest_epoch,
                    log_start=replica.log.start,
                    max_bytes=partition_bytes if reserved_bytes is None else reserved_bytes,
                )
            )
        forgotten: dict[UUID, list[int]] = {}
        for partition in partitions.to_forget:
            topic_id, number = partition.key
            forgotten.setdefault(topic_id, []).append(number)
        partitions.note_sent(self._requests)
        epoch, self._session_epoch = self._session_epoch, next_epoch(self._session_epoch)
        return FetchRequest(
            replica_id=self._replicas.broker,
            replica_epoch=self._replicas.incarnation,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=settings.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=epoch,
            topics=[FetchTopic(topic_id, listed) for topic_id, listed in topics.items()],
            forgotten=list(forgotten.items()),
        )

    # Answers.

    def _apply(self, partition: FollowedPartition, answer: FetchedPartition) -> None:
        replica = partition.replica
        try:
            match answer.error:
                case ErrorCode.none if answer.diverging is not None:
                    epoch, end = answer.diverging
                    self._truncate(partition, EpochEnd(LeaderEpoch(epoch), Offset(end)))
                case ErrorCode.none:
                    if answer.records:
                        self._partitions.list_again(partition)
                        now_ms = self._replicas.wall_ms()
                        replica.log.append_follower(answer.records, now_ms=now_ms)
                        self._replicas.counters.replication_bytes_in += len(answer.records)
                    if answer.log_start > replica.log.start:
                        replica.log.delete_records_before(min(answer.log_start, replica.log.end))
                    replica.follow(answer.high_watermark)
                    partition.is_watermark_known = True
                case ErrorCode.offset_out_of_range:
                    self._restart_log(partition, answer)
                case _:
                    # Most often this broker or the leader has not read a metadata change yet.
                    self._rest(partition, RETRY_MS)
        except (StorageRefusal, CorruptBatch) as refusal:  # the other partitions go on
            self._handle_refusal(partition, refusal, _action_of(answer))
        except Exception:
            logger.exception("%s-%d: the leader's answer could not be applied", *replica.key)
            self._back_off(partition)

    def _handle_refusal(self, partition: FollowedPartition, refusal: Refusal, action: str) -> None:
        """Fetch again after the backoff, or never: a failed log takes nothing until a restart."""
        replica = partition.replica
        logger.warning("%s-%d: %s failed: %s", *replica.key, action, refusal)
        if replica.log.has_failed:
            self.drop(replica)
        else:
            self._back_off(partition)

    def _truncate(self, partition: FollowedPartition, leader_end: EpochEnd) -> None:
        """Remove what the leader's log does not have; it names where its epoch ends."""
        replica = partition.replica
        log = replica.log
        cut = truncation(
            log.epochs,
            log_end=Offset(log.end),
            high_watermark=Offset(replica.high_watermark),
            leader_says=leader_end,
        )
        offset = max(cut.to, log.start)
        if offset >= log.end:
            log.truncate_to(offset)
            replica.log_truncated()
            self._partitions.list_again(partition)
            return
        logger.info(
            "%s-%d: truncating from offset %d to %d: leader %d has epoch %d up to offset %d",
            *replica.key,
            log.end,
            offset,
            self._leader,
            leader_end.epoch,
            leader_end.end,
        )
        # The position is searched for in the log, and a leader that resigned may have a slow disk.
        search = self._reads.submit(partial(log.prepare_truncation, offset))
        self._partitions.truncate(partition, search)
        search.add_done_callback(partial(self._finish_truncation, partition))

    def _finish_truncation(
        self, partition: FollowedPartition, search: asyncio.Future[PreparedTruncation]
    ) -> None:
        if search.cancelled():
            return
        failure = search.exception()
        state, replica = partition.state, partition.replica
        if not isinstance(state, Truncating) or state.search is not search:
            return  # the replica has another leader or leader epoch, or none
        try:
            if failure is not None:
                raise failure
            if replica.log.truncate(search.result()):
                replica.log_truncated()
        except StorageRefusal as refusal:
            self._handle_refusal(partition, refusal, "truncation")
        except Exception:  # any other fault: nothing else would fetch for this replica again
            logger.exception("%s-%d: truncation failed", *replica.key)
            self._back_off(partition)
        else:
            self._list_again(partition)  # truncated or not: the leader's answer says what is next

    def _restart_log(self, partition: FollowedPartition, answer: FetchedPartition) -> None:
        """The leader's log starts after this log's end: retention deleted what is between."""
        replica = partition.replica
        log = replica.log
        if answer.log_start > log.end or log.start == log.end:
            log.truncate_fully(answer.log_start)
            replica.log_restarted()
            self._partitions.list_again(partition)
        else:
            self._back_off(partition)


def _action_of(answer: FetchedPartition) -> str:
    """What the follower does with an answer, for a line of the log."""
    if answer.diverging is not None:
        return "truncation"
    if answer.error == ErrorCode.offset_out_of_range:
        return "restart of the log at the leader's start offset"
    return "append of fetched records" if answer.records else "deletion of old records"
