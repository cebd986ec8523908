"""Publishes recorded telemetry: blocks of rows, produced to the topic `__insync_telemetry`.

Each broker publishes its own rows. The rows of one partition go to one partition of the topic, in
one batch per round, so that all of them arrive or none. Nothing else in the broker waits for this:
batches for a partition of the topic that cannot be written wait in a queue, and batches that the
queue has no room for are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from insync.broker.admin.topics import RequestedTopic, TopicRefused, Topics
from insync.broker.cluster_view import ClusterView
from insync.broker.settings import Settings
from insync.client.connection import Network
from insync.client.partition_client import PartitionClient, Refused
from insync.telemetry.recorder import Recorder
from insync.telemetry.rows import Row
from insync.telemetry.schemas import TABLES, TELEMETRY_TOPIC

ROWS_MAX: Final = 1_000
"""Of one batch: about 30 kB compressed, built in 2 ms, during which no request is handled. A broker
that has recorded so many rows publishes them, without waiting for the end of the interval."""

CHECK_ROWS_EVERY_S: Final = 0.1
RETRY_S: Final = 0.2
LAST_ROUND_WITHIN_S: Final = 0.5
SEGMENTS_PER_PARTITION: Final = 8  # retention deletes whole segments
SEGMENT_BYTES_MIN: Final = 64 * 1_024

logger = logging.getLogger(__name__)

Rows = dict[str, list[Row]]


class Batch(NamedTuple):
    records: list[tuple[bytes | None, bytes | None]]
    row_counts: dict[str, int]
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
        self._queued_bytes_max = settings.broker.telemetry_buffer_bytes // 2
        self._queues: dict[int, PartitionQueue] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self._settings.broker.telemetry_publish_interval_ms / 1_000
        due_s = loop.time() + interval_s
        while True:
            await asyncio.sleep(min(CHECK_ROWS_EVERY_S, interval_s))
            has_batch = self.recorder.count >= ROWS_MAX and TELEMETRY_TOPIC in self._view.topics
            if has_batch or loop.time() >= due_s:
                await self._publish_round()
                due_s = loop.time() + interval_s

    async def stop(self) -> None:
        """Publish what can be published within `LAST_ROUND_WITHIN_S`."""
        try:
            async with asyncio.timeout(LAST_ROUND_WITHIN_S):
                if TELEMETRY_TOPIC in self._view.topics:
                    await self._publish_round()
                for queue in self._queues.values():
                    await queue.is_idle.wait()
        except TimeoutError:
            logger.info(
                "telemetry: some rows are lost: not published within %d ms of the stop",
                LAST_ROUND_WITHIN_S * 1_000,
            )
        for queue in self._queues.values():
            await queue.stop()

    async def _publish_round(self) -> None:
        recorder = self.recorder
        if not recorder.count or not await self._has_topic():
            return
        partitions = self._view.topics[TELEMETRY_TOPIC].partitions
        for number, rows in sorted(_by_partition(recorder.take(), partitions).items()):
            for chunk in _chunks(rows):
                self._enqueue(number, chunk)
                await asyncio.sleep(0)  # let requests run between batches

    async def _has_topic(self) -> bool:
        """Create the topic when there is something to record: brokers are live then."""
        if TELEMETRY_TOPIC in self._view.topics:
            return True
        if not self.recorder.is_needed:
            return False
        count = self._settings.broker.telemetry_topic_partitions
        share_bytes = self._settings.broker.telemetry_retention_bytes // count
        config = {
            "retention.bytes": str(share_bytes),
            "retention.ms": "-1",
            "segment.bytes": str(max(SEGMENT_BYTES_MIN, share_bytes // SEGMENTS_PER_PARTITION)),
            "min.insync.replicas": "1",
        }
        factor = min(3, len(self._view.live))
        requested = RequestedTopic(
            name=TELEMETRY_TOPIC, partitions=count, replication_factor=factor, config=config
        )
        try:
            await self._topics.create(requested)
        except TopicRefused as refused:
            if refused.code is ErrorCode.request_timed_out:
                logger.info("%s: cannot be created yet: %s", TELEMETRY_TOPIC, refused.message)
            elif refused.code is not ErrorCode.topic_already_exists:
                logger.warning("%s: cannot be created: %s", TELEMETRY_TOPIC, refused.message)
        return TELEMETRY_TOPIC in self._view.topics

    def _enqueue(self, number: int, rows: Rows) -> None:
        batch = self._batch(rows)
        if self._queued_bytes + batch.size_bytes > self._queued_bytes_max:
            self._drop(batch)
            return
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = PartitionQueue(
                self._new_client, number, self._wall_ms, self._on_batch_done
            )
        self._queued_bytes += batch.size_bytes
        queue.put(batch)

    def _batch(self, rows: Rows) -> Batch:
        from insync.telemetry.blocks import (  # noqa: PLC0415 - slow to import, and not needed at start
            Label,
            write_block,
            write_label,
        )

        recorder = self.recorder
        dropped = {table: count for table, count in recorder.drops.items() if count}
        records: list[tuple[bytes | None, bytes | None]] = []
        for table, table_rows in rows.items():
            label = Label(
                table=table,
                broker=recorder.broker,
                started_at_ms=self._started_at_ms,
                block=self._blocks,
                rows=len(table_rows),
                dropped=dropped,
            )
            self._blocks += 1
            block = write_block(TABLES[table], table_rows, anchor_ms=recorder.anchor_ms)
            records.append((write_label(label), block))
        size_bytes = sum(len(key or b"") + len(value or b"") for key, value in records)
        row_counts = {table: len(table_rows) for table, table_rows in rows.items()}
        return Batch(records, row_counts, size_bytes)

    def _new_client(self, number: int) -> PartitionClient:
        others = [(broker.host, broker.port) for broker in self._view.brokers.values()]
        bootstrap = list(dict.fromkeys([self._address, *others]))
        return PartitionClient(self._network, bootstrap, TELEMETRY_TOPIC, number, retry_s=RETRY_S)

    def _on_batch_done(self, batch: Batch, refusal: Refused | None) -> None:
        self._queued_bytes -= batch.size_bytes
        if refusal is not None:
            logger.warning("telemetry: a batch was refused and dropped: %s", refusal)
            self._drop(batch)

    def _drop(self, batch: Batch) -> None:
        for table, count in batch.row_counts.items():
            self.recorder.drops[table] += count


class PartitionQueue:
    """The batches for one partition of the topic, published one at a time."""

    def __init__(
        self,
        new_client: Callable[[int], PartitionClient],
        number: int,
        wall_ms: Callable[[], int],
        on_done: Callable[[Batch, Refused | None], None],
    ) -> None:
        self._new_client = new_client
        self._number = number
        self._wall_ms = wall_ms
        self._on_done = on_done
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
                self._on_done(self._queue.popleft(), refusal)
            self._has_work.clear()
            self.is_idle.set()
            await self._has_work.wait()

    async def _publish(self, batch: Batch) -> Refused | None:
        """Retry a refused batch once, with a new producer: the old one may be fenced."""
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


def _by_partition(rows: Rows, partitions: int) -> dict[int, Rows]:
    by_partition: dict[int, Rows] = {}
    for table, table_rows in rows.items():
        for row in table_rows:
            partition_rows = by_partition.setdefault(row.publish_key.hash % partitions, {})
            partition_rows.setdefault(table, []).append(row)
    return by_partition


def _chunks(rows: Rows) -> Iterator[Rows]:
    """At most `ROWS_MAX` rows each. The order of tables stays: causes before their effects."""
    chunk: Rows = {}
    room = ROWS_MAX
    for table, table_rows in rows.items():
        remaining = table_rows
        while remaining:
            chunk[table], remaining = remaining[:room], remaining[room:]
            room -= len(chunk[table])
            if room == 0:
                yield chunk
                chunk, room = {}, ROWS_MAX
    if chunk:
        yield chunk
