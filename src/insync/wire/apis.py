"""The APIs that Insync supports, and in which versions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class Api(IntEnum):
    """Kafka's API keys that Insync uses, and four of its own."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TOPIC_PARTITIONS = 75
    BROKER_HELLO = 32000  # between brokers only; far above any key of Kafka's
    DESCRIBE_REPLICAS = 32001  # for tools; only Insync's brokers offer it
    START_MOVES = 32002  # for tools: reassignments with a throttle that ends with them
    HOLD_THROTTLE = 32003  # for tools: a throttle that lasts while it is renewed


# Insync's own APIs, whose messages kio does not have.
INSYNC_APIS: Final = frozenset(
    {Api.BROKER_HELLO, Api.DESCRIBE_REPLICAS, Api.START_MOVES, Api.HOLD_THROTTLE}
)


def _through(first: int, last: int) -> range:
    return range(first, last + 1)


# Produce is advertised from 0 because some builds of librdkafka drop compression otherwise
# (KAFKA-18659); a request below 3 ends its connection, as with Apache Kafka 4.
SUPPORTED: Final[Mapping[Api, range]] = MappingProxyType(
    {
        Api.PRODUCE: _through(0, 13),
        Api.FETCH: _through(4, 18),
        Api.LIST_OFFSETS: _through(1, 11),
        Api.METADATA: _through(0, 13),
        Api.API_VERSIONS: _through(0, 4),
        Api.CREATE_TOPICS: _through(2, 7),
        Api.DELETE_TOPICS: _through(1, 6),
        Api.INIT_PRODUCER_ID: _through(0, 5),
        Api.OFFSET_FOR_LEADER_EPOCH: _through(2, 4),
        Api.DESCRIBE_CONFIGS: _through(1, 4),
        Api.ALTER_CONFIGS: _through(0, 2),
        Api.DESCRIBE_LOG_DIRS: _through(1, 5),
        Api.CREATE_PARTITIONS: _through(0, 3),
        Api.ELECT_LEADERS: _through(0, 2),
        Api.INCREMENTAL_ALTER_CONFIGS: _through(0, 1),
        Api.ALTER_PARTITION_REASSIGNMENTS: _through(0, 1),
        Api.LIST_PARTITION_REASSIGNMENTS: _through(0, 0),
        Api.DESCRIBE_CLUSTER: _through(0, 2),
        Api.DESCRIBE_TOPIC_PARTITIONS: _through(0, 0),
        Api.BROKER_HELLO: _through(0, 0),
        Api.DESCRIBE_REPLICAS: _through(0, 2),
        Api.START_MOVES: _through(0, 0),
        Api.HOLD_THROTTLE: _through(0, 0),
    }
)

# What Insync's clients send to other brokers, and its own brokers do not support.
CLIENT_ONLY: Final[Mapping[Api, range]] = MappingProxyType(
    {
        Api.SASL_HANDSHAKE: _through(1, 1),
        Api.SASL_AUTHENTICATE: _through(0, 2),
    }
)

PRODUCE_VERSIONS: Final = _through(3, 13)
FETCH_VERSIONS: Final = SUPPORTED[Api.FETCH]

_NEVER: Final = 32767
_FLEXIBLE_FROM: Final[dict[int, int]] = {
    Api.PRODUCE: 9,
    Api.FETCH: 12,
    Api.LIST_OFFSETS: 6,
    Api.METADATA: 9,
    Api.SASL_HANDSHAKE: _NEVER,
    Api.API_VERSIONS: 3,
    Api.CREATE_TOPICS: 5,
    Api.DELETE_TOPICS: 4,
    Api.INIT_PRODUCER_ID: 2,
    Api.OFFSET_FOR_LEADER_EPOCH: 4,
    Api.DESCRIBE_CONFIGS: 4,
    Api.ALTER_CONFIGS: 2,
    Api.DESCRIBE_LOG_DIRS: 2,
    Api.SASL_AUTHENTICATE: 2,
    Api.CREATE_PARTITIONS: 2,
    Api.ELECT_LEADERS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 1,
    Api.ALTER_PARTITION_REASSIGNMENTS: 0,
    Api.LIST_PARTITION_REASSIGNMENTS: 0,
    Api.DESCRIBE_CLUSTER: 0,
    Api.DESCRIBE_TOPIC_PARTITIONS: 0,
    Api.BROKER_HELLO: _NEVER,
    Api.DESCRIBE_REPLICAS: _NEVER,
    Api.START_MOVES: _NEVER,
    Api.HOLD_THROTTLE: _NEVER,
}


def api_name(api_key: int) -> str:
    """For lines of the log; also of a key that is not supported."""
    return Api(api_key).name if api_key in SUPPORTED else f"API key {api_key}"


def is_supported(api_key: int, version: int) -> bool:
    """Whether a request of this key and version is advertised; any integers are allowed."""
    return api_key in _KEYS and version in SUPPORTED[Api(api_key)]


def is_flexible(api_key: int, version: int) -> bool:
    """Whether lengths are varints and tags follow every structure (KIP-482); unknown keys: no."""
    return version >= _FLEXIBLE_FROM.get(api_key, _NEVER)


_KEYS: Final = frozenset(int(api) for api in SUPPORTED)
