"""The one place that knows all parts of a broker, and the order they start and stop in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Protocol

from insync.broker.awake import Awake
from insync.broker.changes import Changes
from insync.broker.cluster_view import ClusterView
from insync.broker.configs import Configs
from insync.broker.fetch import Fetch
from insync.broker.fetch_sessions import FetchSessions
from insync.broker.follower_fetch import FollowerFetchers
from insync.broker.in_sync import rule_of
from insync.broker.producer_ids import ProducerIds
from insync.broker.quotas import Quotas
from insync.broker.reads import ReadPool
from insync.broker.reassignments import PartitionSteps
from insync.broker.replicas import Replicas
from insync.broker.requests import Requests
from insync.broker.scrapes import Scrapes
from insync.broker.server import SWEEPS_UNTIL_IDLE, Connection, Connections
from insync.broker.settings import BROKER_SETTINGS, Settings
from insync.broker.telemetry import Publisher
from insync.broker.throttle_record import ThrottleRecord
from insync.broker.topics import Topics
from insync.client.connection import ClientConnection
from insync.controller.controller import Controller
from insync.controller.preferred import Rebalance
from insync.metadata import paths
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.records import BrokerRecord
from insync.metadata.store import Create, Delete, MetadataStore
from insync.rules.partition_state import PartitionState
from insync.rules.refusals import BadSetting, Refusal
from insync.rules.values import BrokerId, Incarnation
from insync.storage.config import LogConfig
from insync.storage.directory import LogDirectory
from insync.storage.disk import Disk
from insync.storage.errors import StorageRefusal
from insync.telemetry.recorder import Recorder
from insync.telemetry.schemas import TABLES

CHECKPOINT_INTERVAL_MS = 5_000
SECRET_BITS = 256
REGISTER_AGAIN_S = 0.1
FREED_AFTER_S = 1.0
NO_DROPS: Mapping[str, int] = dict.fromkeys(TABLES, 0)  # of a broker that records nothing

logger = logging.getLogger(__name__)


class Listener(Protocol):
    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


class NodeNetwork(Protocol):
    """Where connections come from and go to."""

    async def connect(
        self, host: str, port: int, protocol: ClientConnection
    ) -> asyncio.Transport: ...
    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> Listener: ...


async def at_once(work: Callable[[], None]) -> None:
    """Blocking work where nothing ever blocks: in a simulation."""
    work()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything a broker does not decide itself."""

    clock_ms: Callable[[], int]  # monotonic
    wall_ms: Callable[[], int]
    network: NodeNetwork
    disk: Disk
    store: MetadataStore
    reads: ReadPool
    random: Random
    connections_max: int = 1 << 31  # that the operating system bears
    in_thread: Callable[[Callable[[], None]], Awaitable[None]] = at_once  # for what may block


def listener_address(settings: Settings) -> tuple[str, int]:
    text = settings.text("listeners")
    scheme, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if scheme != "PLAINTEXT" or not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004
        raise BadSetting(f"listeners is {text!r}; write PLAINTEXT://HOST:PORT")
    return host, int(port)


async def _nothing_to_end() -> None:
    pass


class Node:
    def __init__(self, settings: Settings, world: World) -> None:
        rule_of(settings)  # what contradicts itself is refused before anything is touched
        self.settings = settings
        self.world = world
        self.broker = BrokerId(settings.integer("node.id"))
        self.host, self.port = listener_address(settings)
        self._connections = Connections(
            most=min(settings.integer("max.connections"), world.connections_max)
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Whatever is refused on the way leaves nothing behind."""
        world, store = self.world, self.world.store
        await store.start()
        cluster_id = await self._once(paths.CLUSTER_ID, self._new_id())
        secret = await self._once(paths.CLUSTER_SECRET, world.random.randbytes(SECRET_BITS // 8))
        self.view = ClusterView(store)
        self._take_settings()
        self.directory = LogDirectory.open(
            world.disk,
            self.settings.text("log.dirs"),
            cluster_id=cluster_id.decode(),
            broker_id=self.broker,
            lock=True,
            now_ms=world.wall_ms(),
            config_of=self._log_config,
        )
        self.awake = Awake(world.clock_ms)
        recorder = self._recorder()
        self.replicas = Replicas(
            broker=self.broker,
            settings=self.settings,
            store=store,
            view=self.view,
            directory=self.directory,
            awake=self.awake,
            wall_ms=world.wall_ms,
            recorder=recorder,
        )
        self.view.config_listeners.append(self._on_configs)
        self.quotas = Quotas(self.broker, self.awake.now_ms)
        self.fetchers = FollowerFetchers(
            replicas=self.replicas,
            view=self.view,
            settings=self.settings,
            network=world.network,
            secret=secret,
            quota=self.quotas.follower,
            reads=world.reads,
        )
        self.quotas.take_rates(self.settings)
        self.quotas.take_lists(self.view.topic_configs, self.view.topic_configs)
        self.topics = Topics(
            store=store, view=self.view, settings=self.settings, random=world.random
        )
        self.publisher = None if recorder is None else self._publisher(recorder)
        sessions = self._sessions()
        requests = Requests(
            replicas=self.replicas,
            view=self.view,
            topics=self.topics,
            configs=Configs(
                broker=self.broker, store=store, view=self.view, settings=self.settings
            ),
            producer_ids=ProducerIds(store),
            settings=self.settings,
            cluster_id=cluster_id.decode(),
            secret=secret,
            nonce=lambda: world.random.randbytes(32),
            fetch=Fetch(self.replicas, self.view, sessions, world.reads, self.quotas.leader),
            quotas=self.quotas,
            steps=PartitionSteps(
                store=store, view=self.view, settings=self.settings, on_election=self._on_election
            ),
        )
        frame_bytes_max = self.settings.integer("socket.request.max.bytes")
        self._end_metrics = await self._serve_metrics()
        self._listener = await self._listen(
            "listeners",
            self.host,
            self.port,
            lambda: Connection(
                requests.handle, frame_bytes_max=frame_bytes_max, everybody=self._connections
            ),
        )
        self.awake.start()
        await self._register()
        self.controller = Controller(
            broker=self.broker,
            store=store,
            unclean_default=self.settings.flag("unclean.leader.election.enable"),
            min_isr_default=self.settings.integer("min.insync.replicas"),
            rebalance=self._rebalance(),
            cooldown_ms=self.settings.integer("leader.resign.cooldown.ms"),
            on_election=self._on_election,
        )
        self.view.config_listeners.append(self._tell_controller)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep_up_checkpoints()),
            loop.create_task(self._register_again_when_lost()),
            loop.create_task(self._apply_retention_now_and_then()),
            loop.create_task(self._free_what_is_dropped()),
            loop.create_task(self._close_idle_connections()),
        ]
        if self.publisher is not None:
            throttles = ThrottleRecord(
                self.publisher.recorder,
                quotas=self.quotas,
                replicas=self.replicas,
                sessions=sessions,
                fetchers=self.fetchers,
            )
            self._tasks += [
                loop.create_task(self.publisher.run()),
                loop.create_task(throttles.run()),
            ]

    async def stop(self) -> None:
        """Stop cleanly: nothing is promised any more, then everything is put away."""
        self.awake.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.publisher is not None:
            await self.publisher.stop()
        await self.controller.stop()
        self._listener.close()
        await self.fetchers.stop()
        self.quotas.stop()
        await self.replicas.stop()
        for connection in self._connections:
            connection.close()
        await self._listener.wait_closed()
        await self._end_metrics()
        try:
            self.replicas.checkpoint()
            self.directory.close()
        except StorageRefusal as refusal:
            logger.warning("the next start will recover the logs: %s", refusal)
        self.world.reads.close()
        await self.world.store.close()

    async def _listen(
        self, setting: str, host: str, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> Listener:
        try:
            return await self.world.network.listen(host, port, protocol)
        except Refusal as refusal:
            raise BadSetting(f"{refusal}; choose another address in {setting}") from None

    async def _serve_metrics(self) -> Callable[[], Awaitable[None]]:
        """Serve /metrics if it is asked for; returns what ends it."""
        port = self.settings.integer("metrics.port")
        if not port:
            return _nothing_to_end
        # Imported by who needs it: it takes longer than the rest of a broker's start.
        from insync.broker.metrics import Metrics  # noqa: PLC0415

        changes = Changes(self.broker, self.world.store)
        metrics = Metrics(
            replicas=self.replicas,
            view=self.view,
            awake=self.awake,
            changes=changes,
            quotas=self.quotas,
            telemetry_drops=self.telemetry_drops,
        )
        scrapes = Scrapes(metrics.text, clock_ms=self.world.clock_ms)
        host = self.settings.text("metrics.host")
        listener = await self._listen("metrics.port", host, port, scrapes.connection)

        async def end() -> None:
            changes.stop()
            listener.close()
            scrapes.close()
            await listener.wait_closed()

        return end

    def _sessions(self) -> FetchSessions:
        return FetchSessions(
            slots=self.settings.integer("max.incremental.fetch.session.cache.slots"),
            new_id=lambda: self.world.random.getrandbits(31),
        )

    # Settings changed at run time.

    def _take_settings(self) -> None:
        configs = self.view.broker_configs
        self.settings.change(own=configs.get(self.broker, {}), everyones=configs.get(None, {}))

    def _on_configs(self, topics: AbstractSet[str] | None) -> None:
        if topics is None:
            self._take_settings()
        self.directory.take_configs(topics)
        self.replicas.settings_changed(topics)
        self._take_throttles(topics)

    def _take_throttles(self, topics: AbstractSet[str] | None) -> None:
        if topics is None:  # whatever changed, in one step with something of brokers
            self.quotas.take_rates(self.settings)
            topics = self.view.topics.keys() | self.quotas.topics
        self.quotas.take_lists(self.view.topic_configs, topics)
        self.fetchers.quota_changed()

    def _tell_controller(self, topics: AbstractSet[str] | None) -> None:
        if topics is None:
            self.controller.change(
                unclean_default=self.settings.flag("unclean.leader.election.enable"),
                min_isr_default=self.settings.integer("min.insync.replicas"),
                rebalance=self._rebalance(),
                cooldown_ms=self.settings.integer("leader.resign.cooldown.ms"),
            )

    # Telling of itself.

    def _recorder(self) -> Recorder | None:
        if not self.settings.flag("telemetry.enable"):
            return None
        now_ms = self.world.clock_ms()
        recorder = Recorder(
            broker=self.broker,
            anchor_ms=self.world.wall_ms() - now_ms,
            buffer_bytes=self.settings.integer("telemetry.buffer.bytes") // 2,
        )
        recorder.settings({name: self.settings[name] for name in BROKER_SETTINGS}, now_ms=now_ms)
        return recorder

    @property
    def telemetry_drops(self) -> Mapping[str, int]:
        """Rows lost since the start, by table; it grows as they are."""
        return NO_DROPS if self.publisher is None else self.publisher.recorder.drops

    def _publisher(self, recorder: Recorder) -> Publisher:
        return Publisher(
            recorder,
            view=self.view,
            topics=self.topics,
            settings=self.settings,
            network=self.world.network,
            address=(self.host, self.port),
            wall_ms=self.world.wall_ms,
        )

    def _on_election(
        self, key: tuple[str, int], before: PartitionState, after: PartitionState, cause: str
    ) -> None:
        if self.publisher is not None:
            self.publisher.recorder.elected(
                key,
                before=before.leader,
                after=after.leader,
                epoch=after.leader_epoch,
                cause=cause,
                now_ms=self.world.clock_ms(),
            )

    # Being one of the cluster.

    async def _register(self) -> None:
        """A new incarnation, at once: it need not wait for the end of a former one."""
        while True:
            try:
                incarnation = await self._try_to_register()
            except (Conflict, SessionEnded):
                continue  # the former one is still there, or the new one is gone already
            except Unavailable as error:
                logger.warning("broker %d cannot register: %s", self.broker, error)
                await asyncio.sleep(REGISTER_AGAIN_S)
                continue
            break
        self.replicas.start(incarnation)
        logger.info("broker %d serves as incarnation %d", self.broker, incarnation)

    async def _try_to_register(self) -> Incarnation:
        store = self.world.store
        if store.session is None:
            await store.open_session(f"broker-{self.broker}")
        incarnation = Incarnation(int(store.session or -1))
        path = paths.broker_id(self.broker)
        former = store.get(path)
        if former is not None:
            replaced = BrokerRecord.decode(self.broker, former.value).incarnation
            await store.commit(
                Delete(path, former.version), Delete(paths.broker_incarnation(replaced))
            )
        record = BrokerRecord(
            broker=self.broker,
            incarnation=incarnation,
            host=self.host,
            port=self.port,
            rack=self.settings.text("broker.rack") or None,
        )
        await store.commit(
            Create(path, record.encode(), ephemeral=True),
            Create(paths.broker_incarnation(incarnation), b"", ephemeral=True),
        )
        return incarnation

    async def _register_again_when_lost(self) -> None:
        while True:
            await self.world.store.session_lost.wait()
            logger.warning("broker %d lost its session", self.broker)
            self.replicas.abandon()
            await self._register()

    async def _once(self, path: str, value: bytes) -> bytes:
        """The value at `path`, which the first broker to come makes."""
        store = self.world.store
        entry = store.get(path)
        while entry is None:
            with contextlib.suppress(Conflict):
                await store.commit(Create(path, value))
            entry = store.get(path)
        return entry.value

    def _new_id(self) -> bytes:
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
        return "".join(self.world.random.choices(alphabet, k=22)).encode()

    def _rebalance(self) -> Rebalance | None:
        if not self.settings.flag("auto.leader.rebalance.enable"):
            return None
        return Rebalance(
            interval_s=self.settings.integer("leader.imbalance.check.interval.seconds"),
            percentage_max=self.settings.integer("leader.imbalance.per.broker.percentage"),
        )

    def _log_config(self, topic: str) -> LogConfig:
        settings = self.settings.for_stored_topic(self.view.topic_configs.get(topic, {}))
        return LogConfig(
            segment_bytes=settings.integer("log.segment.bytes"),
            segment_ms=settings.integer("log.roll.ms"),
            retention_bytes=settings.integer("log.retention.bytes"),
            retention_ms=settings.integer("log.retention.ms"),
            flush_messages=settings.integer("log.flush.interval.messages"),
            flush_ms=settings.integer("log.flush.interval.ms"),
        )

    async def _apply_retention_now_and_then(self) -> None:
        interval_s = self.settings.integer("log.retention.check.interval.ms") / 1_000
        while True:
            await asyncio.sleep(interval_s)
            self.replicas.apply_retention()
            await self._in_thread(self._remove_deleted)

    async def _free_what_is_dropped(self) -> None:
        """Soon: who moves replicas away does it for the room. All that go at once, together."""
        while True:
            await self.replicas.has_dropped.wait()
            await asyncio.sleep(FREED_AFTER_S)
            self.replicas.has_dropped.clear()
            await self._in_thread(self._remove_deleted)

    def _remove_deleted(self) -> None:
        self.directory.remove_deleted()

    async def _close_idle_connections(self) -> None:
        interval_ms = self.settings.integer("connections.max.idle.ms") / SWEEPS_UNTIL_IDLE
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            self._connections.sweep()

    async def _keep_up_checkpoints(self) -> None:
        """Note what is committed and what is flushed, so that the next start has little to do."""
        while True:
            flush_ms = self.settings.integer("log.flush.interval.ms")
            await asyncio.sleep(min(CHECKPOINT_INTERVAL_MS, flush_ms) / 1_000)
            await self._in_thread(self._write_checkpoints)

    def _write_checkpoints(self) -> None:
        self.replicas.checkpoint()
        self.directory.flush_due(now_ms=self.world.clock_ms())

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """A disk that refuses is tried again the next time; it does not end the task."""
        try:
            await self.world.in_thread(work)
        except StorageRefusal as refusal:
            logger.warning("%s", refusal)
