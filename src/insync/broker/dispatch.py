"""The dispatch table: which handler answers which API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from insync.broker.admin.alter_configs import AlterConfigs, IncrementalAlterConfigs
from insync.broker.admin.alter_partition_reassignments import AlterPartitionReassignments
from insync.broker.admin.config_changes import ConfigChanges
from insync.broker.admin.config_resources import ConfigResources
from insync.broker.admin.create_partitions import CreatePartitions
from insync.broker.admin.create_topics import CreateTopics
from insync.broker.admin.delete_topics import DeleteTopics
from insync.broker.admin.describe_configs import DescribeConfigs
from insync.broker.admin.describe_log_dirs import DescribeLogDirs
from insync.broker.admin.describe_replicas import DescribeReplicas
from insync.broker.admin.describe_topic_partitions import DescribeTopicPartitions
from insync.broker.admin.elect_leaders import ElectLeaders
from insync.broker.admin.hold_throttle import HoldThrottle
from insync.broker.admin.list_partition_reassignments import ListPartitionReassignments
from insync.broker.admin.partition_steps import PartitionSteps
from insync.broker.admin.reassignments import Reassignments
from insync.broker.admin.start_moves import StartMoves
from insync.broker.admin.topic_metadata import Metadata
from insync.broker.admin.topics import Topics
from insync.broker.cluster_view import ClusterView
from insync.broker.fetch.fetch import Fetch
from insync.broker.fetch.offsets import Offsets
from insync.broker.produce.init_producer_id import InitProducerId
from insync.broker.produce.produce import Produce
from insync.broker.produce.producer_ids import ProducerIds
from insync.broker.quotas.quotas import Quotas
from insync.broker.replication.replicas import Replicas
from insync.broker.server.answers import async_handler, sync_handler
from insync.broker.server.api_versions import ApiVersions
from insync.broker.server.broker_hello import BrokerHello
from insync.broker.server.describe_cluster import DescribeCluster
from insync.broker.server.server import Handler, Reply
from insync.broker.settings import Settings
from insync.broker.topic_settings import TopicSettingsCache
from insync.wire.apis import SUPPORTED, Api, is_supported

logger = logging.getLogger(__name__)


def api_handlers(
    *,
    replicas: Replicas,
    view: ClusterView,
    topics: Topics,
    settings: Settings,
    topic_settings: TopicSettingsCache,
    quotas: Quotas,
    fetch: Fetch,
    partition_steps: PartitionSteps,
    cluster_id: str,
    secret: bytes,
    new_nonce: Callable[[], bytes],
) -> dict[Api, Handler]:
    """One handler for each API of `wire/apis.py`, made of the parts that it uses."""
    store = view.store
    offsets = Offsets(replicas, view, fetch.pool)
    resources = ConfigResources(broker=replicas.broker, view=view)
    config_changes = ConfigChanges(
        broker=replicas.broker, resources=resources, store=store, view=view, settings=settings
    )
    reassignments = Reassignments(partition_steps, topic_settings)
    return {
        Api.API_VERSIONS: ApiVersions(),
        Api.BROKER_HELLO: BrokerHello(view, secret=secret, new_nonce=new_nonce),
        # Records.
        Api.PRODUCE: Produce(replicas, view),
        Api.FETCH: fetch,
        Api.LIST_OFFSETS: async_handler(offsets.list_offsets),
        Api.OFFSET_FOR_LEADER_EPOCH: sync_handler(offsets.epoch_ends),
        Api.INIT_PRODUCER_ID: async_handler(InitProducerId(ProducerIds(store)).answer),
        # The cluster and its topics.
        Api.METADATA: async_handler(Metadata(view, topics, settings, cluster_id).answer),
        Api.DESCRIBE_CLUSTER: sync_handler(DescribeCluster(view, cluster_id).answer),
        Api.DESCRIBE_TOPIC_PARTITIONS: sync_handler(DescribeTopicPartitions(view).answer),
        Api.DESCRIBE_LOG_DIRS: sync_handler(DescribeLogDirs(replicas).answer),
        Api.DESCRIBE_REPLICAS: DescribeReplicas(replicas, quotas),
        Api.CREATE_TOPICS: async_handler(CreateTopics(topics).answer),
        Api.DELETE_TOPICS: async_handler(DeleteTopics(view, topics).answer),
        Api.CREATE_PARTITIONS: async_handler(CreatePartitions(topics).answer),
        # Settings.
        Api.DESCRIBE_CONFIGS: sync_handler(DescribeConfigs(resources, view, settings).answer),
        Api.ALTER_CONFIGS: async_handler(AlterConfigs(config_changes).answer),
        Api.INCREMENTAL_ALTER_CONFIGS: async_handler(
            IncrementalAlterConfigs(config_changes).answer
        ),
        # Reassignments and elections.
        Api.ALTER_PARTITION_REASSIGNMENTS: async_handler(
            AlterPartitionReassignments(partition_steps, reassignments).answer
        ),
        Api.LIST_PARTITION_REASSIGNMENTS: sync_handler(ListPartitionReassignments(view).answer),
        Api.ELECT_LEADERS: async_handler(ElectLeaders(partition_steps).answer),
        Api.START_MOVES: StartMoves(partition_steps, reassignments),
        Api.HOLD_THROTTLE: HoldThrottle(view),
    }


class Dispatcher:
    """Passes each request to the handler of its API."""

    def __init__(self, handlers: Mapping[Api, Handler]) -> None:
        assert handlers.keys() == SUPPORTED.keys(), "every advertised API has a handler"
        self._handlers: dict[int, Handler] = {int(api): handlers[api] for api in handlers}

    def handle(self, reply: Reply, frame: memoryview | bytes) -> None:
        header = reply.header
        if is_supported(header.api_key, header.api_version):
            self._handlers[header.api_key](reply, frame)
        elif header.api_key == Api.API_VERSIONS:
            ApiVersions.answer_unsupported_version(reply)
        else:
            logger.info(
                "%s: API key %d version %d is not supported; closing the connection",
                reply.connection.peer,
                header.api_key,
                header.api_version,
            )
            reply.connection.close()
