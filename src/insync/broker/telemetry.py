"""Publishing what was recorded: blocks, into the cluster's own topic, over the ordinary way in.

Each broker publishes its own rows. Those of one partition go to one partition of the topic, a
round of them in one batch: all of it is there or none. Nothing waits for this: a partition of the
topic that cannot be written to keeps its batches in a queue, and what the queue has no room for is
dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.broker.settings import Settings
from insync.broker.topics import TopicRefused, Topics, Wanted
from insync.client.connection import Network
from insync.client.partition_client import PartitionClient, Refused
from insync.telemetry.recorder import Recorder, Row
from insync.telemetry.schemas import TABLES, TELEMETRY_TOPIC

ROWS_MAX: Final = 4_000  # in one batch: some 100 kB once compressed, built in a few milliseconds
RETRY_S: Final = 0.2
LAST_ROUND_WITHIN_S: Final = 0.5
SEGMENTS_PER_PARTITION: Final = 8  # retention deletes whole ones
SEGMENT_BYTES_MIN: Final = 64 * 1_024

logger = logging.getLogger(__name__)

Rows = dict[str, list[Row]]


class Batch(NamedTuple):
    records: list[tuple[bytes | None, bytes | None]]
    rows: dict[str, int]
    size_bytes: int


class Publisher:
    def __init__(
        self,
        recorder: Recorder,
        *,
        view: ClusterView,
        topics: Topics,
        settings: Settings,
        network: Network,
        address: tuple[str, int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.recorder = recorder
        self._view = view
        self._topics = topics
        self._settings = settings
        self._network = network
        self._address = address
        self._wall_ms = wall_ms
        self._started_at_ms = wall_ms()
        self._blocks = 0
        self._queued_bytes = 0
        self._queued_bytes_max = settings.integer("telemetry.buffer.bytes") // 2
        self._slots: dict[int, Slot] = {}

    async def run(self) -> None:
        interval_s = self._settings.integer("telemetry.publish.interval.ms") / 1_000
        while True:
            await asyncio.sleep(interval_s)
            await self._round()

    async def stop(self) -> None:
        """What can be published soon still is."""
        try:
            async with asyncio.timeout(LAST_ROUND_WITHIN_S):
                if TELEMETRY_TOPIC in self._view.topics:
                    await self._round()
                for slot in self._slots.values():
                    await slot.is_idle.wait()
        except TimeoutError:
            logger.info("some telemetry of the last moments is lost")
        for slot in self._slots.values():
            await slot.stop()

    async def _round(self) -> None:
        recorder = self.recorder
        if not recorder.count or not await self._has_topic():
            return
        partitions = self._view.topics[TELEMETRY_TOPIC].partitions
        for number, rows in sorted(_by_slot(recorder.take(), partitions).items()):
            for part in _parts(rows):
                self._enqueue(number, part)
                await asyncio.sleep(0)  # whoever waits for this broker comes first

    async def _has_topic(self) -> bool:
        """Created on first need: when somebody leads something, the cluster is there to hold it."""
        if TELEMETRY_TOPIC in self._view.topics:
            return True
        if not self.recorder.is_needed:
            return False
        count = self._settings.integer("telemetry.topic.partitions")
        share_bytes = self._settings.integer("telemetry.retention.bytes") // count
        config = {
            "retention.bytes": str(share_bytes),
            "retention.ms": "-1",
            "segment.bytes": str(max(SEGMENT_BYTES_MIN, share_bytes // SEGMENTS_PER_PARTITION)),
            "min.insync.replicas": "1",
        }
        factor = min(3, len(self._view.live))
        wanted = Wanted(
            name=TELEMETRY_TOPIC, partitions=count, replication_factor=factor, config=config
        )
        try:
            await self._topics.create(wanted)
        except TopicRefused as refused:
            if refused.code is ErrorCode.request_timed_out:
                logger.info("cannot create %s yet: %s", TELEMETRY_TOPIC, refused.message)
            elif refused.code is not ErrorCode.topic_already_exists:
                logger.warning("cannot create %s: %s", TELEMETRY_TOPIC, refused.message)
        return TELEMETRY_TOPIC in self._view.topics

    def _enqueue(self, number: int, rows: Rows) -> None:
        batch = self._batch(rows)
        if self._queued_bytes + batch.size_bytes > self._queued_bytes_max:
            self._drop(batch)
            return
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = Slot(self._client, number, self._wall_ms, self._done)
        self._queued_bytes += batch.size_bytes
        slot.put(batch)

    def _batch(self, rows: Rows) -> Batch:
        from insync.telemetry.blocks import (  # noqa: PLC0415 - not before there is something
            Label,
            write_block,
            write_label,
        )

        recorder = self.recorder
        dropped = {table: count for table, count in recorder.drops.items() if count}
        records: list[tuple[bytes | None, bytes | None]] = []
        for table, some in rows.items():
            label = Label(
                table=table,
                broker=recorder.broker,
                started_at_ms=self._started_at_ms,
                block=self._blocks,
                rows=len(some),
                dropped=dropped,
            )
            self._blocks += 1
            block = write_block(TABLES[table], some, anchor_ms=recorder.anchor_ms)
            records.append((write_label(label), block))
        size_bytes = sum(len(key or b"") + len(value or b"") for key, value in records)
        return Batch(records, {table: len(some) for table, some in rows.items()}, size_bytes)

    def _client(self, number: int) -> PartitionClient:
        others = [(broker.host, broker.port) for broker in self._view.brokers.values()]
        bootstrap = list(dict.fromkeys([self._address, *others]))
        return PartitionClient(self._network, bootstrap, TELEMETRY_TOPIC, number, retry_s=RETRY_S)

    def _done(self, batch: Batch, refusal: Refused | None) -> None:
        self._queued_bytes -= batch.size_bytes
        if refusal is not None:
            logger.warning("telemetry is refused: %s", refusal)
            self._drop(batch)

    def _drop(self, batch: Batch) -> None:
        for table, count in batch.rows.items():
            self.recorder.drops[table] += count


class Slot:
    """One partition of the topic: one batch at a time, tried until it is taken."""

    def __init__(
        self,
        new_client: Callable[[int], PartitionClient],
        number: int,
        wall_ms: Callable[[], int],
        done: Callable[[Batch, Refused | None], None],
    ) -> None:
        self._new_client = new_client
        self._number = number
        self._wall_ms = wall_ms
        self._done = done
        self._client: PartitionClient | None = None
        self._queue: deque[Batch] = deque()
        self._has_work = asyncio.Event()
        self.is_idle = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, batch: Batch) -> None:
        self._queue.append(batch)
        self._has_work.set()
        self.is_idle.clear()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._close()

    async def _run(self) -> None:
        while True:
            while self._queue:
                refusal = await self._publish(self._queue[0])
                self._done(self._queue.popleft(), refusal)
            self._has_work.clear()
            self.is_idle.set()
            await self._has_work.wait()

    async def _publish(self, batch: Batch) -> Refused | None:
        """A producer that the topic has forgotten, or fenced, begins anew; once is enough."""
        refusal = None
        for _ in range(2):
            if self._client is None:
                self._client = self._new_client(self._number)
            try:
                await self._client.append_records(
                    batch.records, timestamp_ms=self._wall_ms(), is_zipped=True
                )
            except Refused as refused:
                refusal = refused
                await self._close()
            else:
                return None
        return refusal

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


def _by_slot(rows: Rows, partitions: int) -> dict[int, Rows]:
    slots: dict[int, Rows] = {}
    for table, some in rows.items():
        for row in some:
            slot = slots.setdefault(row[0].hash % partitions, {})
            slot.setdefault(table, []).append(row)
    return slots


def _parts(rows: Rows) -> Iterator[Rows]:
    """No more at a time than one batch should hold. The causes come before what they caused."""
    part: Rows = {}
    room = ROWS_MAX
    for table, some in rows.items():
        left = some
        while left:
            part[table], left = left[:room], left[room:]
            room -= len(part[table])
            if room == 0:
                yield part
                part, room = {}, ROWS_MAX
    if part:
        yield part
