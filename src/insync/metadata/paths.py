"""Where things are in the tree: Kafka's own paths, and the few that are ours."""

import re
from uuid import UUID

from insync.metadata.errors import BadTopicName

TOPIC_NAME_CHARACTERS_MAX = 249  # Kafka's: with "-<partition>" it still fits a file name
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

BROKER_IDS = "/brokers/ids"
BROKER_INCARNATIONS = "/brokers/incarnations"  # ours: one ephemeral node per registered one
BROKERS_SEEN = "/brokers/seen"  # ours: each broker's incarnation that a controller dealt with last
TOPICS = "/brokers/topics"
TOPIC_IDS = "/brokers/topic_ids"  # ours: one node per topic that exists, by its id
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
BROKER_DEFAULT = "<default>"  # the name Kafka gives the cluster-wide default
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
CLUSTER_SECRET = "/cluster/secret"  # noqa: S105 - a path, not a secret
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
DELETE_TOPICS = "/admin/delete_topics"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
THROTTLE_LEASES = "/admin/throttle_leases"
THROTTLE_HOLDS = "/admin/throttle_holds"  # written anew by whoever renews the lease of that name
RESIGNATIONS = "/resignations"  # ours: leaders that ask to hand over, one node per partition
COOLING = "/cooling"  # ours: brokers that handed over lately, one node per partition and broker
PRODUCER_IDS = "/latest_producer_id_block"
SESSIONS = "/sessions"  # ours: one ephemeral node per session, written by the store alone


def checked_topic_name(name: str) -> str:
    """Return `name`, or say which of Kafka's rules it breaks."""
    if not name:
        raise BadTopicName("a topic name cannot be empty")
    if name in {".", ".."}:
        raise BadTopicName(f"a topic cannot be named {name!r}")
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        raise BadTopicName(
            f"a topic name has at most {TOPIC_NAME_CHARACTERS_MAX} characters, this one {len(name)}"
        )
    if not _TOPIC_NAME.fullmatch(name):
        raise BadTopicName(
            f"topic name {name!r} has a character other than ASCII letters, digits, '.', '_', '-'"
        )
    return name


def broker_id(broker: int) -> str:
    return f"{BROKER_IDS}/{_number(broker)}"


def broker_incarnation(incarnation: int) -> str:
    """A node that no later registration of the same broker has: versions start over with each."""
    return f"{BROKER_INCARNATIONS}/{_number(incarnation)}"


def broker_seen(broker: int) -> str:
    return f"{BROKERS_SEEN}/{_number(broker)}"


def topic(name: str) -> str:
    return f"{TOPICS}/{checked_topic_name(name)}"


def topic_id(identity: UUID) -> str:
    """A node that no later topic of the same name has: versions start over with a new topic."""
    return f"{TOPIC_IDS}/{identity}"


def partitions(name: str) -> str:
    return f"{topic(name)}/partitions"


def partition_state(name: str, partition: int) -> str:
    return f"{partitions(name)}/{_number(partition)}/state"


def partition_of(path: str) -> tuple[str, int] | None:
    """The topic and partition whose state lives at `path`, if it is such a path."""
    match path.split("/"):
        case ["", "brokers", "topics", name, "partitions", number, "state"] if number.isdecimal():
            return name, int(number)
        case _:
            return None


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{checked_topic_name(name)}"


def broker_config(broker: int | None) -> str:
    """Where a broker's dynamic settings are; None asks for the cluster-wide default."""
    return f"{BROKER_CONFIGS}/{BROKER_DEFAULT if broker is None else _number(broker)}"


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{checked_topic_name(name)}"


def throttle_lease(lease: str) -> str:
    assert lease, "a lease needs an id"
    assert "/" not in lease, f"a lease id is one path component, not {lease!r}"
    return f"{THROTTLE_LEASES}/{lease}"


def throttle_hold(lease_path: str) -> str:
    """Where the lease at `lease_path` is renewed, if it is one that a tool holds."""
    return f"{THROTTLE_HOLDS}/{lease_path.removeprefix(THROTTLE_LEASES + '/')}"


def resignation(name: str, partition: int) -> str:
    return f"{RESIGNATIONS}/{checked_topic_name(name)}/{_number(partition)}"


def resignation_of(path: str) -> tuple[str, int]:
    """The topic and partition that a leader asks to hand over at `path`."""
    _, _, name, number = path.split("/")
    return name, int(number)


def cooling_in(name: str, partition: int) -> str:
    """Above the nodes of those who cool for this partition."""
    return f"{COOLING}/{checked_topic_name(name)}/{_number(partition)}"


def cooling(name: str, partition: int, broker: int) -> str:
    return f"{cooling_in(name, partition)}/{_number(broker)}"


def cooling_of(path: str) -> tuple[str, int, int]:
    """The topic, partition and broker that cools at `path`."""
    _, _, name, number, broker = path.split("/")
    return name, int(number), int(broker)


def session(incarnation: int) -> str:
    return f"{SESSIONS}/{_number(incarnation)}"


def session_of(path: str) -> int | None:
    """The incarnation whose session node is at `path`, if it is such a path."""
    head, _, number = path.rpartition("/")
    return int(number) if head == SESSIONS and number.isdecimal() else None


def _number(value: int) -> int:
    assert value >= 0, f"ids and partitions in paths are never negative: {value}"
    return value
