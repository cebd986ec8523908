"""Strategies for protocol values, and the same values as kio's entities, to compare with."""

import datetime
from dataclasses import fields, is_dataclass
from importlib import import_module
from io import BytesIO
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import Records

from insync.wire import messages
from insync.wire.apis import Api
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from insync.wire.primitives import Topic
from insync.wire.produce import ProducePartition, ProduceRequest, ProduceResult

# For a search that is made once per version: a third of the profile's examples each.
assert settings.default is not None
FEWER = settings(max_examples=settings.default.max_examples // 3)
FEWEST = settings(max_examples=settings.default.max_examples // 6)  # where an example is large

int8s = st.integers(-(2**7), 2**7 - 1)
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=200)  # long enough for lengths of two varint bytes
names = st.text(min_size=1, max_size=20)
# kio reads the zero UUID as None; a topic never has it.
uuids = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
record_bytes = st.one_of(
    st.binary(max_size=300), st.integers(0, 20_000).map(lambda size: b"r" * size)
)
error_codes = st.sampled_from([code.value for code in ErrorCode])


def topics_of(*, by_id: bool) -> st.SearchStrategy[Topic]:
    return uuids if by_id else names


# kio registers strategies for its own types, but not for this one.
st.register_type_strategy(Records, st.binary(max_size=50))

SAMPLES: dict[str, object] = {
    "int8": 3,
    "int16": -2,
    "int32": 70_000,
    "int64": -(2**40),
    "uint16": 40_000,
    "float64": 0.5,
    "bool": True,
    "string": "text \u00e9",
    "bytes": b"bytes",
    "records": b"records",
    "uuid": UUID(int=2**100 + 1),
    "error_code": ErrorCode.not_leader_or_follower,
    "timedelta_i32": datetime.timedelta(milliseconds=1234),
    "timedelta_i64": datetime.timedelta(milliseconds=2**40),
    "datetime_i64": datetime.datetime(2024, 10, 25, 12, 0, 45, 123_000, datetime.UTC),
}


def sample(entity_type: Any, *, nulls: bool = False) -> Any:
    """An entity with every field set to something (or to null), and two elements in every array."""
    return entity_type(
        **{item.name: _sampled(item.type, item, nulls=nulls) for item in fields(entity_type)}
    )


def _sampled(annotation: Any, item: Any, *, nulls: bool) -> object:
    if get_origin(annotation) is UnionType:
        if nulls:
            return None
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is tuple:
        element = _sampled(get_args(annotation)[0], item, nulls=nulls)
        return (element, element)
    if is_dataclass(annotation):
        return sample(annotation, nulls=nulls)
    return SAMPLES[item.metadata["kafka_type"]]


def kio_bytes(entity: Any) -> bytes:
    """What kio itself writes."""
    with BytesIO() as stream:
        entity_writer(type(entity))(stream, entity)
        return stream.getvalue()


def milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def nested(of: type[Any], name: str) -> Any:
    """A class of the module that holds kio's entity class `of`."""
    return getattr(import_module(of.__module__), name)


# Produce


@st.composite
def produce_requests(draw: st.DrawFn, version: int) -> ProduceRequest:
    topic = topics_of(by_id=version >= 13)
    partition = st.builds(
        ProducePartition, topic=topic, partition=int32s, records=st.none() | record_bytes
    )
    return ProduceRequest(
        transactional_id=draw(st.none() | texts),
        acks=draw(int16s),
        timeout_ms=draw(int32s),
        partitions=draw(st.lists(partition, max_size=5)),
    )


def produce_request_to_kio(version: int, request: ProduceRequest) -> Any:
    of = messages.request_type(Api.PRODUCE, version)
    topic_type, partition_type = nested(of, "TopicProduceData"), nested(of, "PartitionProduceData")
    key = "topic_id" if version >= 13 else "name"
    topics = [
        topic_type(
            **{key: topic},
            partition_data=tuple(
                partition_type(index=part.partition, records=part.records) for part in parts
            ),
        )
        for topic, parts in consecutive(request.partitions)
    ]
    return of(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout=milliseconds(request.timeout_ms),
        topic_data=tuple(topics),
    )


@st.composite
def produce_results(draw: st.DrawFn, version: int) -> list[ProduceResult]:
    """Results with only fields that the version has."""
    result = st.builds(
        ProduceResult,
        topic=topics_of(by_id=version >= 13),
        partition=int32s,
        error=error_codes,
        base_offset=int64s,
        log_append_time_ms=st.just(-1) | st.integers(0, 4_000_000_000_000),
        log_start=int64s if version >= 5 else st.just(-1),
        error_message=st.none() | texts if version >= 8 else st.none(),
        current_leader=leaders if version >= 10 else st.none(),
    )
    return draw(st.lists(result, max_size=5))


# kio leaves out a leader of (-1, -1), the default, which we read as no leader at all.
leaders = st.none() | st.tuples(st.integers(0, 2**31 - 1), int32s)


def produce_results_to_kio(version: int, results: list[ProduceResult], throttle_ms: int) -> Any:
    of = messages.response_type(Api.PRODUCE, version)
    topic_type = nested(of, "TopicProduceResponse")
    key = "topic_id" if version >= 13 else "name"
    topics = [
        topic_type(
            **{key: topic},
            partition_responses=tuple(_result_to_kio(version, of, part) for part in parts),
        )
        for topic, parts in consecutive(results)
    ]
    return of(responses=tuple(topics), throttle_time=milliseconds(throttle_ms))


def _result_to_kio(version: int, of: type[Any], result: ProduceResult) -> Any:
    at_ms = result.log_append_time_ms
    instant = None if at_ms == -1 else datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    values: dict[str, Any] = {
        "index": result.partition,
        "error_code": ErrorCode(result.error),
        "base_offset": result.base_offset,
        "log_append_time": instant,
    }
    if version >= 5:
        values["log_start_offset"] = result.log_start
    if version >= 8:
        values |= {"record_errors": (), "error_message": result.error_message}
    if result.current_leader is not None:
        leader_id, leader_epoch = result.current_leader
        values["current_leader"] = nested(of, "LeaderIdAndEpoch")(
            leader_id=leader_id, leader_epoch=leader_epoch
        )
    return nested(of, "PartitionProduceResponse")(**values)


# Fetch


@st.composite
def fetch_requests(draw: st.DrawFn, version: int) -> FetchRequest:
    """Requests with only fields that the version has."""
    topic = topics_of(by_id=version >= 13)
    absent = st.just(-1)
    partition = st.builds(
        FetchPartition,
        partition=int32s,
        current_leader_epoch=int32s if version >= 9 else absent,
        fetch_offset=int64s,
        last_fetched_epoch=int32s if version >= 12 else absent,
        log_start=int64s if version >= 5 else absent,
        max_bytes=int32s,
    )
    topics = st.builds(FetchTopic, topic=topic, partitions=st.lists(partition, max_size=4))
    forgotten = st.tuples(topic, st.lists(int32s, max_size=4))
    with_session = version >= 7
    return FetchRequest(
        replica_id=draw(int32s),
        replica_epoch=draw(int64s) if version >= 15 else -1,
        max_wait_ms=draw(int32s),
        min_bytes=draw(int32s),
        max_bytes=draw(int32s),
        isolation_level=draw(int8s),
        session_id=draw(int32s) if with_session else 0,
        session_epoch=draw(int32s) if with_session else -1,
        topics=draw(st.lists(topics, max_size=4)),
        forgotten=draw(st.lists(forgotten, max_size=3)) if with_session else [],
        rack_id=draw(texts) if version >= 11 else "",
        cluster_id=draw(st.none() | texts) if version >= 12 else None,
    )


def fetch_request_to_kio(version: int, request: FetchRequest, **partition_tags: Any) -> Any:
    of = messages.request_type(Api.FETCH, version)
    key = "topic_id" if version >= 13 else "topic"
    values: dict[str, Any] = {
        "max_wait": milliseconds(request.max_wait_ms),
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation_level,
        "topics": tuple(
            nested(of, "FetchTopic")(
                **{key: topic},
                partitions=tuple(_partition_to_kio(version, of, p, partition_tags) for p in parts),
            )
            for topic, parts in request.topics
        ),
    }
    if version >= 15:
        values["replica_state"] = nested(of, "ReplicaState")(
            replica_id=request.replica_id, replica_epoch=request.replica_epoch
        )
    else:
        values["replica_id"] = request.replica_id
    if version >= 7:
        values |= {"session_id": request.session_id, "session_epoch": request.session_epoch}
        values["forgotten_topics_data"] = tuple(
            nested(of, "ForgottenTopic")(**{key: topic}, partitions=tuple(numbers))
            for topic, numbers in request.forgotten
        )
    if version >= 11:
        values["rack_id"] = request.rack_id
    if version >= 12:
        values["cluster_id"] = request.cluster_id
    return of(**values)


def _partition_to_kio(
    version: int, of: type[Any], partition: FetchPartition, tags: dict[str, Any]
) -> Any:
    values: dict[str, Any] = {
        "partition": partition.partition,
        "fetch_offset": partition.fetch_offset,
        "partition_max_bytes": partition.max_bytes,
    }
    if version >= 5:
        values["log_start_offset"] = partition.log_start
    if version >= 9:
        values["current_leader_epoch"] = partition.current_leader_epoch
    if version >= 12:
        values["last_fetched_epoch"] = partition.last_fetched_epoch
    return nested(of, "FetchPartition")(**values, **tags)


@st.composite
def fetch_responses(draw: st.DrawFn, version: int) -> FetchResponse:
    """Responses with only fields that the version has."""
    flexible = version >= 12
    pairs = st.none() | st.tuples(st.integers(0, 2**31 - 1), int64s)
    fetched = st.builds(
        FetchedPartition,
        partition=int32s,
        error=error_codes,
        high_watermark=int64s,
        last_stable_offset=int64s,
        log_start=int64s if version >= 5 else st.just(-1),
        diverging=pairs if flexible else st.none(),
        current_leader=leaders if flexible else st.none(),
        aborted=st.none() | st.lists(st.tuples(int64s, int64s), max_size=3),
        preferred_read_replica=int32s if version >= 11 else st.just(-1),
        records=record_bytes,
    )
    topic = st.tuples(topics_of(by_id=version >= 13), st.lists(fetched, max_size=3))
    return FetchResponse(
        throttle_ms=draw(int32s),
        error=draw(error_codes) if version >= 7 else 0,
        session_id=draw(int32s) if version >= 7 else 0,
        topics=draw(st.lists(topic, max_size=3)),
    )


def fetch_response_to_kio(version: int, response: FetchResponse, **tags: Any) -> Any:
    of = messages.response_type(Api.FETCH, version)
    key = "topic_id" if version >= 13 else "topic"
    topics = tuple(
        nested(of, "FetchableTopicResponse")(
            **{key: topic}, partitions=tuple(_fetched_to_kio(version, of, part) for part in parts)
        )
        for topic, parts in response.topics
    )
    values: dict[str, Any] = {
        "throttle_time": milliseconds(response.throttle_ms),
        "responses": topics,
    }
    if version >= 7:
        values |= {"error_code": ErrorCode(response.error), "session_id": response.session_id}
    return of(**values, **tags)


def _fetched_to_kio(version: int, of: type[Any], fetched: FetchedPartition) -> Any:
    aborted_type = nested(of, "AbortedTransaction")
    aborted = None
    if fetched.aborted is not None:
        aborted = tuple(aborted_type(producer_id=p, first_offset=o) for p, o in fetched.aborted)
    values: dict[str, Any] = {
        "partition_index": fetched.partition,
        "error_code": ErrorCode(fetched.error),
        "high_watermark": fetched.high_watermark,
        "last_stable_offset": fetched.last_stable_offset,
        "aborted_transactions": aborted,
        "records": fetched.records,
    }
    if version >= 5:
        values["log_start_offset"] = fetched.log_start
    if version >= 11:
        values["preferred_read_replica"] = fetched.preferred_read_replica
    if fetched.diverging is not None:
        epoch, end_offset = fetched.diverging
        values["diverging_epoch"] = nested(of, "EpochEndOffset")(epoch=epoch, end_offset=end_offset)
    if fetched.current_leader is not None:
        leader_id, leader_epoch = fetched.current_leader
        values["current_leader"] = nested(of, "LeaderIdAndEpoch")(
            leader_id=leader_id, leader_epoch=leader_epoch
        )
    return nested(of, "PartitionData")(**values)


def consecutive(parts: list[Any]) -> list[tuple[Topic, list[Any]]]:
    """Runs of one topic, computed in a simple way."""
    runs: list[tuple[Topic, list[Any]]] = []
    for part in parts:
        if not runs or runs[-1][0] != part.topic:
            runs.append((part.topic, []))
        runs[-1][1].append(part)
    return runs
