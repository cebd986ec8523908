"""An idempotent producer with several batches under way, as Kafka's own with five.

All of them are on one connection, in order. If the oldest fails, nothing is known of those behind
it: the connection is dropped, and every batch is sent again in its order on another one. What the
first connection still carries may arrive at any time, also after newer batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from insync.client.connection import ClientConnection, Disconnected
from insync.client.partition_client import ACKS_ALL, PRODUCE_VERSION, RESPONSE_WITHIN_S, Refused
from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from insync.sim.history import Append, Partition
from insync.wire import batches
from insync.wire.apis import Api
from insync.wire.headers import response_body_at
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)

WINDOW_MAX: Final = 5
"""Batches of one producer of which a broker remembers the offsets."""


Response = asyncio.Future[memoryview | bytes]


@dataclass
class _Batch:
    append: Append
    body: bytes = b""


class PipelinedProducer(SimClient):
    def __init__(
        self,
        cluster: Cluster,
        host: int,
        partition: Partition,
        random: Random,
        *,
        on_acknowledged: Callable[[PipelinedProducer, Append, int], None],
        may_lose_state: Callable[[], bool],
    ) -> None:
        super().__init__(cluster, host, partition, random)
        self._on_acknowledged = on_acknowledged
        self._may_lose_state = may_lose_state  # then a refused sequence is no failure
        self._under_way: deque[_Batch] = deque()
        self._sent_on: ClientConnection | None = None
        # Responses to the first batches under way, which were sent on that connection.
        self._waiting: deque[asyncio.Future[memoryview | bytes]] = deque()
        self._sent_at_s: dict[Response, float] = {}  # of responses that have arrived

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    async def send(self, append: Append) -> None:
        """Queue a batch; it is sent by `settle`."""
        if self._producer_id is None:
            self._producer_id = await self._new_producer_id()
        batch = _Batch(append)
        self._under_way.append(batch)
        self._number(batch)

    def _number(self, batch: _Batch) -> None:
        """Give a batch the next sequence number."""
        values = batch.append.values
        data = batches.build(
            [(None, value) for value in values],
            producer_id=self._producer_id or 0,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        self._sequence += len(values)
        produce = ProducePartition(self._topic, self._partition, data)
        batch.body = write_produce_request(
            PRODUCE_VERSION, ProduceRequest(None, ACKS_ALL, 1_000, [produce])
        )

    async def settle(self, *, down_to: int) -> None:
        """Send what is queued until at most `down_to` batches wait for an acknowledgement."""
        while len(self._under_way) > down_to:
            try:
                await self._send_all(down_to)
            except Refused:
                if not self._may_lose_state():
                    raise
                await self._start_again()

    async def _start_again(self) -> None:
        """With a new producer id, after the broker forgot or lost records of the current one."""
        self._sequence = 0
        self._producer_id = await self._new_producer_id()
        for batch in self._under_way:
            self._number(batch)

    async def _send_all(self, down_to: int) -> None:
        """Send what is not sent yet, and take responses; return after the first that fails."""
        if self._leader is None:
            self._leader = await self._find_leader()
        if self._leader is None:
            await asyncio.sleep(self._retry_s)
            return
        leader, waiting = self._leader, self._waiting
        code = ErrorCode.none
        try:
            async with asyncio.timeout(RESPONSE_WITHIN_S):
                connection = await self._connection(leader)
            if connection is not self._sent_on:
                self._forget_sent()
                self._sent_on = connection
            for batch in list(self._under_way)[len(waiting) :]:
                response = connection.send(Api.PRODUCE, PRODUCE_VERSION, [batch.body])
                response.add_done_callback(partial(self._note_sent_at, leader))
                waiting.append(response)
            while code is ErrorCode.none and len(self._under_way) > down_to:
                response = waiting.popleft()
                async with asyncio.timeout(RESPONSE_WITHIN_S):
                    frame = await response
                code = self._take_response(leader, frame, self._sent_at_s.pop(response, None))
        except (Disconnected, TimeoutError):
            code = ErrorCode.not_leader_or_follower
        if code is not ErrorCode.none:
            # The answers of those behind are of no use: all are sent again, in order.
            self._drop(leader)
            self._forget_sent()
        await self._is_success(code)

    def _note_sent_at(self, leader: tuple[str, int], response: Response) -> None:
        """Later responses may arrive before this one is taken."""
        transport = self._host.transports.get(leader)
        if transport is not None and not response.cancelled() and response.exception() is None:
            self._sent_at_s[response] = transport.last_sent_at_s

    def _take_response(
        self, leader: tuple[str, int], frame: memoryview | bytes, sent_at_s: float | None
    ) -> ErrorCode:
        at = response_body_at(Api.PRODUCE, PRODUCE_VERSION, frame)
        (result,) = read_produce_response(PRODUCE_VERSION, frame, at).results
        code = ErrorCode(result.error)
        if code is ErrorCode.none:
            self.note_response(leader, sent_at_s)
            batch = self._under_way.popleft()
            self._on_acknowledged(self, batch.append, result.base_offset)
        return code

    def _forget_sent(self) -> None:
        for future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._sent_at_s.clear()
        self._sent_on = None
