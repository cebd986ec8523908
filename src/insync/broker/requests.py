"""The table of every API, and those that are a function each."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker import answers
from insync.broker.cluster_view import ClusterView
from insync.broker.configs import Configs
from insync.broker.describe_replicas import DescribeReplicas
from insync.broker.elections import Elections
from insync.broker.fetch import Fetch
from insync.broker.hold_throttle import HoldThrottle
from insync.broker.log_dirs import LogDirs
from insync.broker.offsets import Offsets
from insync.broker.produce import Produce
from insync.broker.producer_ids import ProducerIds
from insync.broker.quotas import Quotas
from insync.broker.reassignments import PartitionSteps, Reassignments
from insync.broker.replicas import Replicas
from insync.broker.server import Reply
from insync.broker.settings import Settings
from insync.broker.start_moves import StartMoves
from insync.broker.topic_partitions import TopicPartitions
from insync.broker.topics import TopicRefused, Topics, Wanted
from insync.rules.values import BrokerId, Incarnation
from insync.wire import hello, messages
from insync.wire.apis import SUPPORTED, Api, is_supported

logger = logging.getLogger(__name__)

BROKERS = 1  # DescribeCluster's endpoint type
METADATA_BY_ID_FROM = 12  # two versions have the field and do not honour it (KAFKA-13270)


class Requests:
    """One broker's answers."""

    def __init__(
        self,
        *,
        replicas: Replicas,
        view: ClusterView,
        topics: Topics,
        configs: Configs,
        producer_ids: ProducerIds,
        settings: Settings,
        cluster_id: str,
        secret: bytes,
        nonce: Callable[[], bytes],
        fetch: Fetch,
        quotas: Quotas,
        steps: PartitionSteps,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._topics = topics
        self._producer_ids = producer_ids
        self._settings = settings
        self._cluster_id = cluster_id
        self._secret = secret
        self._nonce = nonce
        self._answering = answers.Answering()
        self._produce = Produce(replicas, view)
        offsets = Offsets(replicas, view, fetch.pool)
        reassignments = Reassignments(steps)
        self._handlers: dict[int, Callable[[Reply, memoryview | bytes], None]] = {
            Api.PRODUCE: self._produce,
            Api.FETCH: fetch,
            Api.BROKER_HELLO: self._hello,
            Api.API_VERSIONS: self._api_versions,
            Api.METADATA: self._later(self._metadata),
            Api.LIST_OFFSETS: self._later(offsets.list_offsets),
            Api.OFFSET_FOR_LEADER_EPOCH: self._at_once(offsets.epoch_ends),
            Api.INIT_PRODUCER_ID: self._later(self._init_producer_id),
            Api.CREATE_TOPICS: self._later(self._create_topics),
            Api.DELETE_TOPICS: self._later(self._delete_topics),
            Api.CREATE_PARTITIONS: self._later(self._create_partitions),
            Api.DESCRIBE_CONFIGS: self._at_once(configs.describe),
            Api.ALTER_CONFIGS: self._later(configs.replace),
            Api.INCREMENTAL_ALTER_CONFIGS: self._later(configs.alter),
            Api.DESCRIBE_CLUSTER: self._at_once(self._describe_cluster),
            Api.DESCRIBE_REPLICAS: DescribeReplicas(replicas, quotas),
            Api.DESCRIBE_LOG_DIRS: self._at_once(LogDirs(replicas).describe),
            Api.DESCRIBE_TOPIC_PARTITIONS: self._at_once(TopicPartitions(view).describe),
            Api.ALTER_PARTITION_REASSIGNMENTS: self._later(reassignments.alter),
            Api.LIST_PARTITION_REASSIGNMENTS: self._at_once(reassignments.list),
            Api.ELECT_LEADERS: self._later(Elections(steps).elect),
            Api.START_MOVES: StartMoves(steps, reassignments),
            Api.HOLD_THROTTLE: HoldThrottle(steps),
        }

    def handle(self, reply: Reply, frame: memoryview | bytes) -> None:
        header = reply.header
        if not is_supported(header.api_key, header.api_version):
            if header.api_key == Api.API_VERSIONS:
                self._unknown_api_versions(reply)
            else:
                logger.info("no API %d version %d", header.api_key, header.api_version)
                reply.connection.close()
            return
        self._handlers[header.api_key](reply, frame)

    def _at_once(
        self, answer: Callable[[Any, int], answers.Values]
    ) -> Callable[[Reply, memoryview | bytes], None]:
        def handle(reply: Reply, frame: memoryview | bytes) -> None:
            header = reply.header
            request = messages.read_request(
                Api(header.api_key), header.api_version, frame, header.body_at
            )
            answers.send(reply, answer(request, header.api_version))

        return handle

    def _later(
        self, answer: Callable[[Any], Awaitable[answers.Values]]
    ) -> Callable[[Reply, memoryview | bytes], None]:
        """For what may have to wait for the store."""

        async def work(reply: Reply, request: Any) -> None:
            answers.send(reply, await answer(request))

        def handle(reply: Reply, frame: memoryview | bytes) -> None:
            header = reply.header
            request = messages.read_request(
                Api(header.api_key), header.api_version, frame, header.body_at
            )
            self._answering.begin(reply, work(reply, request))

        return handle

    # Who are you, what can you do.

    def _api_versions(self, reply: Reply, frame: memoryview | bytes) -> None:
        header = reply.header
        messages.read_request(Api.API_VERSIONS, header.api_version, frame, header.body_at)
        answers.send(reply, {"api_keys": _api_keys()})

    def _unknown_api_versions(self, reply: Reply) -> None:
        """A version we do not know is answered in version 0, so that the client can step down."""
        reply.header = reply.header._replace(api_version=0)
        answers.send(reply, {"error_code": ErrorCode.unsupported_version, "api_keys": _api_keys()})

    def _hello(self, reply: Reply, frame: memoryview | bytes) -> None:
        """A broker proves itself by the cluster's secret, over a nonce of ours."""
        request = hello.read_hello_request(frame, reply.header.body_at)
        connection = reply.connection
        if not request.proof:
            connection.nonce = self._nonce()
            reply.send([hello.write_hello_response(hello.HelloResponse(0, connection.nonce))])
            return
        nonce, connection.nonce = connection.nonce, b""
        is_proven = bool(nonce) and hello.is_proof(
            request.proof, self._secret, nonce, request.broker_id, request.incarnation
        )
        if is_proven:
            self._answering.begin(reply, self._welcome(reply, request))
        else:
            self._verdict(reply, ErrorCode.cluster_authorization_failed)

    async def _welcome(self, reply: Reply, request: hello.HelloRequest) -> None:
        """Who has the secret must also be registered, in the life it says that it has."""
        broker, incarnation = BrokerId(request.broker_id), Incarnation(request.incarnation)
        await self._view.until_heard_of(broker, incarnation)
        if self._view.incarnations.get(broker) != incarnation:
            self._verdict(reply, ErrorCode.cluster_authorization_failed)
            return
        reply.connection.broker = (broker, incarnation)
        self._verdict(reply, ErrorCode.none)

    def _verdict(self, reply: Reply, code: ErrorCode) -> None:
        reply.send([hello.write_hello_response(hello.HelloResponse(code))])

    def _describe_cluster(self, request: Any, _version: int) -> answers.Values:
        if getattr(request, "endpoint_type", BROKERS) != BROKERS:
            return {
                "error_code": ErrorCode.mismatched_endpoint_type,
                "error_message": "There are brokers here, and no controllers of their own.",
            }
        return {
            "cluster_id": self._cluster_id,
            "controller_id": self._controller(),
            "brokers": [
                {"broker_id": b.broker, "host": b.host, "port": b.port, "rack": b.rack}
                for b in self._view.brokers.values()
            ],
        }

    def _controller(self) -> int:
        return -1 if self._view.controller is None else self._view.controller

    # Topics.

    async def _metadata(self, request: Any) -> answers.Values:
        await self._view.until_certain()
        asked = request.topics
        if asked is None or (request.__version__ == 0 and not asked):
            described = [self._topic_values(name) for name in sorted(self._view.topics)]
        else:
            may_create = getattr(request, "allow_auto_topic_creation", True)
            known = len(self._view.topics)
            described = [await self._asked_topic(each, may_create=may_create) for each in asked]
            if len(self._view.topics) > known:
                await self._topics.known_everywhere()
        return {
            "brokers": [
                {"node_id": b.broker, "host": b.host, "port": b.port, "rack": b.rack}
                for b in self._view.brokers.values()
            ],
            "cluster_id": self._cluster_id,
            "controller_id": self._controller(),
            "topics": described,
        }

    async def _asked_topic(self, asked: Any, *, may_create: bool) -> answers.Values:
        name: str | None = asked.name
        topic_id: UUID | None = getattr(asked, "topic_id", None)
        if name is None:
            if asked.__version__ < METADATA_BY_ID_FROM:
                return {"error_code": ErrorCode.unsupported_version, "name": ""}
            name = self._view.topic_names.get(topic_id) if topic_id else None
            if name is None:
                return {
                    "error_code": ErrorCode.unknown_topic_id,
                    "topic_id": topic_id,
                    "name": None,
                }
        if name in self._view.topics:
            return self._topic_values(name)
        if not may_create or not self._settings.flag("auto.create.topics.enable"):
            return {"error_code": ErrorCode.unknown_topic_or_partition, "name": name}
        try:
            await self._topics.create(Wanted(name=name))
        except TopicRefused as refused:
            if refused.code is not ErrorCode.topic_already_exists:
                return {"error_code": refused.code, "name": name}
        return self._topic_values(name)

    def _topic_values(self, name: str) -> answers.Values:
        topic = self._view.topics.get(name)
        if topic is None:
            return {"error_code": ErrorCode.unknown_topic_or_partition, "name": name}
        return {
            "name": name,
            "topic_id": topic.topic_id,
            "is_internal": name.startswith("__"),
            "partitions": [
                self._partition_values(name, number) for number in range(topic.partitions)
            ],
        }

    def _partition_values(self, name: str, number: int) -> answers.Values:
        state = self._view.states[name, number]
        live = self._view.live
        has_leader = state.leader is not None and state.leader in live
        return {
            "error_code": ErrorCode.none if has_leader else ErrorCode.leader_not_available,
            "partition_index": number,
            "leader_id": state.leader if has_leader else -1,
            "leader_epoch": state.leader_epoch,
            "replica_nodes": state.replicas,
            "isr_nodes": state.isr,
            "offline_replicas": tuple(b for b in state.replicas if b not in live),
        }

    async def _create_topics(self, request: Any) -> answers.Values:
        results = []
        for each in request.topics:
            wanted = Wanted(
                name=each.name,
                partitions=each.num_partitions,
                replication_factor=each.replication_factor,
                assignment={a.partition_index: a.broker_ids for a in each.assignments},
                config={c.name: c.value for c in each.configs if c.value is not None},
            )
            try:
                record = await self._topics.create(wanted, validate_only=request.validate_only)
            except TopicRefused as refused:
                results.append(_refused(each.name, refused))
            else:
                results.append(
                    {
                        "name": each.name,
                        "topic_id": record.topic_id,
                        "num_partitions": record.partitions,
                        "replication_factor": record.replication_factor,
                        "configs": self._topics.settings_of(wanted.config or {}),
                    }
                )
        await self._topics.known_everywhere()
        return {"topics": results}

    async def _delete_topics(self, request: Any) -> answers.Values:
        if request.__version__ >= 6:  # noqa: PLR2004 - from here on also by id
            asked = [(each.name, each.topic_id) for each in request.topics]
        else:
            asked = [(name, None) for name in request.topic_names]
        results: list[answers.Values] = []
        for name, topic_id in asked:
            found = name or (self._view.topic_names.get(topic_id) if topic_id else None)
            if found is None:
                results.append(
                    {"name": None, "topic_id": topic_id, "error_code": ErrorCode.unknown_topic_id}
                )
                continue
            known = self._view.topics.get(found)
            try:
                await self._topics.delete(found)
            except TopicRefused as refused:
                results.append(_refused(found, refused))
            else:
                results.append({"name": found, "topic_id": known.topic_id if known else None})
        await self._topics.known_everywhere()
        return {"responses": results}

    async def _create_partitions(self, request: Any) -> answers.Values:
        results: list[answers.Values] = []
        for each in request.topics:
            given = each.assignments
            assignment = None if given is None else [each.broker_ids for each in given]
            try:
                await self._topics.grow(
                    each.name, each.count, assignment, validate_only=request.validate_only
                )
            except TopicRefused as refused:
                results.append(_refused(each.name, refused))
            else:
                results.append({"name": each.name})
        await self._topics.known_everywhere()
        return {"results": results}

    async def _init_producer_id(self, request: Any) -> answers.Values:
        if request.transactional_id is not None:
            return {
                "error_code": ErrorCode.transactional_id_authorization_failed,
                "producer_id": -1,
                "producer_epoch": -1,
            }
        return {"producer_id": await self._producer_ids.next(), "producer_epoch": 0}


def _api_keys() -> list[answers.Values]:
    return [
        {"api_key": api, "min_version": versions[0], "max_version": versions[-1]}
        for api, versions in SUPPORTED.items()
        if api is not Api.BROKER_HELLO
    ]


def _refused(name: str, refused: TopicRefused) -> answers.Values:
    return {"name": name, "error_code": refused.code, "error_message": refused.message}
