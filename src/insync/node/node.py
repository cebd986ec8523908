"""One broker: how its parts are put together, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final
from uuid import UUID

from insync.broker.accepted import NOTHING, Accepted
from insync.broker.admin.partition_steps import PartitionSteps
from insync.broker.admin.topics import Topics
from insync.broker.broker_loop import BrokerLoop
from insync.broker.cluster_view import ClusterView
from insync.broker.dispatch import Dispatcher, api_handlers
from insync.broker.fetch.fetch import Fetch
from insync.broker.fetch.fetch_sessions import FetchSessions
from insync.broker.observability.telemetry import Publisher
from insync.broker.observability.throttle_recorder import ThrottleRecord
from insync.broker.quotas.quota_admission import NoQuota
from insync.broker.quotas.quotas import Quotas
from insync.broker.replication.follower_fetchers import FollowerFetchers
from insync.broker.replication.in_sync import rule_of
from insync.broker.replication.replicas import Replicas
from insync.broker.server.server import Connection, Connections
from insync.broker.settings import Settings
from insync.broker.settings_table import BROKER_SETTINGS
from insync.broker.topic_settings import TopicSettingsCache
from insync.controller.controller import Controller
from insync.controller.preferred import Rebalance
from insync.node.admission import Admission, MetadataCheckpoints, read_history
from insync.node.background import run_for_ever
from insync.node.cluster_identity import ClusterIdentity, read_or_create_identity
from insync.node.corrections import Corrections, find_unissued_ids
from insync.node.listeners import listener_address, open_listener
from insync.node.maintenance import Maintenance
from insync.node.metrics_endpoint import start_metrics_endpoint
from insync.node.registration import OwnDirectory, Registration
from insync.node.scrub import Scrub
from insync.node.world import World
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId
from insync.storage.config import LogConfig
from insync.storage.directory import LogDirectory
from insync.storage.errors import StorageRefusal
from insync.storage.strays import bring_back_strays, delete_expired_strays
from insync.telemetry.recorder import Recorder
from insync.telemetry.schemas import TABLES

NO_DROPS: Final[Mapping[str, int]] = dict.fromkeys(TABLES, 0)
NONCE_BYTES: Final = 32

logger = logging.getLogger(__name__)


class Node:
    def __init__(self, settings: Settings, world: World, *, accepted: Accepted = NOTHING) -> None:
        rule_of(settings)  # refuse contradictory settings before anything is changed on disk
        self.settings = settings
        self.world = world
        self._accepted = accepted
        self.broker = BrokerId(settings.broker.node_id)
        self.host, self.port = listener_address(settings)
        self._connections = Connections(
            connections_max=min(settings.broker.max_connections, world.connections_max)
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start to serve. A refused start leaves nothing behind."""
        world = self.world
        await world.store.start()
        identity = await read_or_create_identity(world.store, world.random)
        self.view = ClusterView(world.store)
        self.topic_settings = TopicSettingsCache(self.settings, self.view)
        self._apply_broker_configs()
        await self._open_log_directory(identity)
        self._build_replication(identity)
        self._build_telemetry()
        self._build_handlers(identity)
        self._metrics = await start_metrics_endpoint(
            settings=self.settings,
            network=world.network,
            replicas=self.replicas,
            view=self.view,
            loop=self.loop,
            quotas=self.quotas,
            telemetry_drops=self.telemetry_drops,
        )
        await self._open_listener()
        self.loop.start()
        registration = Registration(
            broker=self.broker,
            host=self.host,
            port=self.port,
            rack=self.settings.broker.broker_rack or None,
            store=world.store,
            replicas=self.replicas,
            directory=OwnDirectory(
                directory_id=self.directory.directory_id,
                is_another=self._admission.is_another_directory,
            ),
            corrections=Corrections(
                broker=self.broker,
                store=world.store,
                unissued=find_unissued_ids(self.view, world.store, self.directory),
            ),
        )
        await registration.register()
        self._write_metadata_checkpoint()
        self._start_controller()
        self._start_background_tasks(registration)

    async def stop(self) -> None:
        """Stop cleanly: first end all promises to clients and brokers, then close the logs."""
        self.loop.stop()
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
        if self._metrics is not None:
            await self._metrics.stop()
        try:
            self.replicas.checkpoint()
            self._write_metadata_checkpoint()
            self.directory.close()
        except StorageRefusal as refusal:
            logger.warning(
                "%s: the next start will recover the logs: %s", self.directory.path, refusal
            )
        self.world.reads.close()
        await self.world.store.close()

    # The parts, in the order in which they are built.

    async def _open_log_directory(self, identity: ClusterIdentity) -> None:
        world, path = self.world, self.settings.broker.log_dirs
        self._admission = Admission(
            broker=self.broker,
            store=world.store,
            metadata_dir=self.settings.broker.metadata_dir,
            log_dir=path,
            history=await read_history(world.store, world.disk, path),
            accepted=self._accepted,
        )
        self.directory = LogDirectory.open(
            world.disk,
            path,
            cluster_id=identity.cluster_id,
            broker_id=self.broker,
            lock=True,
            now_ms=world.wall_ms(),
            config_of=self._log_config,
            new_id=lambda: UUID(bytes=world.random.randbytes(16), version=4),
            admit=self._admission,
        )
        self._metadata_checkpoints = MetadataCheckpoints(world.store, world.disk, path)
        assigned = {
            key: self.view.topics[key[0]].topic_id
            for key, state in self.view.states.items()
            if self.broker in state.replicas and key[0] in self.view.topics
        }
        bring_back_strays(self.directory, world.disk, assigned, now_ms=world.wall_ms())
        if self._admission.is_another_directory:
            reason = "it is in another directory than the log that was in sync"
            for key, topic_id in assigned.items():
                self.directory.mark_untrusted(
                    key, reason, topic_id=topic_id, now_ms=world.wall_ms()
                )

    def _write_metadata_checkpoint(self) -> None:
        try:
            self._metadata_checkpoints.write()
        except StorageRefusal as refusal:
            logger.warning("metadata checkpoint not written: %s", refusal)

    def _delete_expired_strays(self) -> None:
        delete_expired_strays(
            self.world.disk,
            self.directory.path,
            retention_ms=self.settings.broker.log_stray_retention_ms,
            now_ms=self.world.wall_ms(),
        )

    def _build_replication(self, identity: ClusterIdentity) -> None:
        world = self.world
        self.loop = BrokerLoop(world.clock_ms)
        self._recorder = self._new_recorder()
        self.replicas = Replicas(
            broker=self.broker,
            settings=self.settings,
            topic_settings=self.topic_settings,
            store=world.store,
            view=self.view,
            directory=self.directory,
            loop=self.loop,
            wall_ms=world.wall_ms,
            recorder=self._recorder,
        )
        self.view.config_listeners.append(self._on_configs_changed)
        self.quotas = Quotas(self.broker, self.loop)
        self.fetchers = FollowerFetchers(
            replicas=self.replicas,
            view=self.view,
            settings=self.settings,
            network=world.network,
            secret=identity.secret,
            quota=self.quotas.follower if world.has_quotas else NoQuota(),
            reads=world.reads,
        )
        self.quotas.apply_rates(self.settings)
        self.quotas.apply_lists(self.view.topic_configs, self.view.topic_configs)

    def _build_telemetry(self) -> None:
        world = self.world
        self.topics = Topics(
            store=world.store, view=self.view, settings=self.settings, random=world.random
        )
        self.publisher: Publisher | None = None
        if self._recorder is not None:
            self.publisher = Publisher(
                self._recorder,
                view=self.view,
                topics=self.topics,
                settings=self.settings,
                network=world.network,
                address=(self.host, self.port),
                wall_ms=world.wall_ms,
            )

    def _build_handlers(self, identity: ClusterIdentity) -> None:
        world = self.world
        self._fetch_sessions = FetchSessions(
            slots=self.settings.broker.max_incremental_fetch_session_cache_slots,
            new_id=lambda: world.random.getrandbits(31),
        )
        self.handlers = api_handlers(
            replicas=self.replicas,
            view=self.view,
            topics=self.topics,
            settings=self.settings,
            topic_settings=self.topic_settings,
            quotas=self.quotas,
            fetch=Fetch(
                self.replicas,
                self.view,
                self._fetch_sessions,
                world.reads,
                self.quotas.leader if world.has_quotas else NoQuota(),
            ),
            partition_steps=PartitionSteps(
                store=world.store, view=self.view, on_election=self._record_election
            ),
            cluster_id=identity.cluster_id,
            secret=identity.secret,
            new_nonce=lambda: world.random.randbytes(NONCE_BYTES),
        )

    async def _open_listener(self) -> None:
        dispatcher = Dispatcher(self.handlers)
        frame_bytes_max = self.settings.broker.socket_request_max_bytes
        self._listener = await open_listener(
            self.world.network,
            setting="listeners",
            host=self.host,
            port=self.port,
            protocol=lambda: Connection(
                dispatcher.handle,
                frame_bytes_max=frame_bytes_max,
                connections=self._connections,
                loop=self.loop,
            ),
        )

    def _start_controller(self) -> None:
        self.controller = Controller(
            broker=self.broker,
            store=self.world.store,
            unclean_default=self.settings.broker.unclean_leader_election_enable,
            min_isr_default=self.settings.broker.min_insync_replicas,
            rebalance=self._rebalance_settings(),
            cooldown_ms=self.settings.broker.leader_resign_cooldown_ms,
            on_election=self._record_election,
        )
        self.view.config_listeners.append(self._update_controller)

    def _start_background_tasks(self, registration: Registration) -> None:
        maintenance = Maintenance(
            settings=self.settings,
            replicas=self.replicas,
            directory=self.directory,
            connections=self._connections,
            clock_ms=self.world.clock_ms,
            in_thread=self.world.in_thread,
            write_metadata_checkpoint=self._metadata_checkpoints.write,
            delete_expired_strays=self._delete_expired_strays,
        )
        scrub = Scrub(
            settings=self.settings,
            replicas=self.replicas,
            directory=self.directory,
            clock_ms=self.world.clock_ms,
            in_thread=self.world.in_thread,
        )
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            maintenance.write_checkpoints,
            registration.register_again_when_lost,
            maintenance.apply_retention,
            maintenance.remove_dropped_logs,
            maintenance.close_idle_connections,
            scrub.read_logs,
            scrub.repair_followers,
        ]
        if self.publisher is not None:
            throttle_record = ThrottleRecord(
                self.publisher.recorder,
                quotas=self.quotas,
                replicas=self.replicas,
                sessions=self._fetch_sessions,
                fetchers=self.fetchers,
            )
            loops += [self.publisher.run, throttle_record.run]
        event_loop = asyncio.get_running_loop()
        self._tasks = [event_loop.create_task(run_for_ever(loop)) for loop in loops]

    # Settings, and what happens when they change at run time.

    def _apply_broker_configs(self) -> None:
        configs = self.view.broker_configs
        self.settings.change(own=configs.get(self.broker, {}), everyones=configs.get(None, {}))

    def _on_configs_changed(self, topics: AbstractSet[str] | None) -> None:
        """The settings of these topics changed; None: those of brokers, and perhaps of topics."""
        if topics is None:
            self._apply_broker_configs()
            if self._recorder is not None:
                # Before the topics' own: these are recorded where they differ.
                self._record_settings(self._recorder, now_ms=self.world.clock_ms())
        self.directory.apply_configs(topics)
        self.replicas.settings_changed(topics)
        self._update_quotas(topics)

    def _update_quotas(self, topics: AbstractSet[str] | None) -> None:
        if topics is None:
            self.quotas.apply_rates(self.settings)
            topics = self.view.topics.keys() | self.quotas.topics
        self.quotas.apply_lists(self.view.topic_configs, topics)
        self.fetchers.on_quota_changed()

    def _update_controller(self, topics: AbstractSet[str] | None) -> None:
        if topics is None:
            self.controller.apply_settings(
                unclean_default=self.settings.broker.unclean_leader_election_enable,
                min_isr_default=self.settings.broker.min_insync_replicas,
                rebalance=self._rebalance_settings(),
                cooldown_ms=self.settings.broker.leader_resign_cooldown_ms,
            )

    def _rebalance_settings(self) -> Rebalance | None:
        if not self.settings.broker.auto_leader_rebalance_enable:
            return None
        return Rebalance(
            interval_s=self.settings.broker.leader_imbalance_check_interval_seconds,
            percentage_max=self.settings.broker.leader_imbalance_per_broker_percentage,
        )

    def _log_config(self, topic: str) -> LogConfig:
        settings = self.topic_settings.of_topic(topic)
        return LogConfig(
            segment_bytes=settings.log_segment_bytes,
            segment_ms=settings.log_roll_ms,
            retention_bytes=settings.log_retention_bytes,
            retention_ms=settings.log_retention_ms,
            flush_messages=settings.log_flush_interval_messages,
            flush_ms=settings.log_flush_interval_ms,
        )

    # Telemetry.

    @property
    def telemetry_drops(self) -> Mapping[str, int]:
        """Rows lost since the start, by table. The mapping is live: its counts grow."""
        return NO_DROPS if self.publisher is None else self.publisher.recorder.drops

    def _new_recorder(self) -> Recorder | None:
        if not self.settings.broker.telemetry_enable:
            return None
        now_ms = self.world.clock_ms()
        recorder = Recorder(
            broker=self.broker,
            anchor_ms=self.world.wall_ms() - now_ms,
            buffer_bytes=self.settings.broker.telemetry_buffer_bytes // 2,
        )
        self._record_settings(recorder, now_ms=now_ms)
        return recorder

    def _record_settings(self, recorder: Recorder, *, now_ms: int) -> None:
        values = {name: self.settings[name] for name in BROKER_SETTINGS}
        recorder.record_settings(values, now_ms=now_ms)

    def _record_election(
        self, key: tuple[str, int], before: PartitionState, after: PartitionState, cause: str
    ) -> None:
        if self._recorder is not None:
            self._recorder.elected(
                key,
                before=before.leader,
                after=after.leader,
                epoch=after.leader_epoch,
                cause=cause,
                now_ms=self.world.clock_ms(),
            )
