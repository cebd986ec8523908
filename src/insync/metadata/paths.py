"""Paths of the tree: Kafka's, and a few of Insync's own."""

import re
from uuid import UUID

from insync.metadata.errors import BadTopicName

TOPIC_NAME_CHARACTERS_MAX = 249  # Kafka's: with "-<partition>" it still fits a file name
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

BROKER_IDS = "/brokers/ids"
BROKER_INCARNATIONS = "/brokers/incarnations"  # Insync's: one ephemeral node per registration
BROKERS_SEEN = "/brokers/seen"  # Insync's: the incarnation that a controller handled last
BROKER_DIRECTORIES = "/brokers/directories"  # Insync's: the data directory of each broker
TOPICS = "/brokers/topics"
TOPIC_IDS = "/brokers/topic_ids"  # Insync's: one node per topic, by its id
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
THROTTLE_HOLDS = (
    "/admin/throttle_holds"  # a tool that holds a lease writes the node of its name again
)
RESIGNATIONS = "/resignations"  # Insync's: leaders that ask to resign, one node per partition
COOLING = "/cooling"  # Insync's: cool-downs, one node per partition and broker
FAILED_REPLICAS = "/failed_replicas"  # Insync's: logs that failed; ephemeral, see below
DAMAGED_REPLICAS = "/damaged_replicas"  # Insync's: logs that lost records; ephemeral
PRODUCER_IDS = "/latest_producer_id_block"
SESSIONS = "/sessions"  # Insync's: one ephemeral node per session, written by the store alone


def checked_topic_name(name: str) -> str:
    """Return `name`; raise if it breaks one of Kafka's rules, and say which."""
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


def broker_directory(broker: int) -> str:
    """Which data directory the broker's replicas are in. It outlives every session."""
    return f"{BROKER_DIRECTORIES}/{_number(broker)}"


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
    """The topic and partition whose state is at `path`, if it is such a path."""
    match path.split("/"):
        case ["", "brokers", "topics", name, "partitions", number, "state"] if number.isdecimal():
            return name, int(number)
        case _:
            return None


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{checked_topic_name(name)}"


def broker_config(broker: int | None) -> str:
    """The path of a broker's dynamic settings; None: of the cluster-wide defaults."""
    return f"{BROKER_CONFIGS}/{BROKER_DEFAULT if broker is None else _number(broker)}"


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{checked_topic_name(name)}"


def throttle_lease(lease: str) -> str:
    assert lease, "a lease needs an id"
    assert "/" not in lease, f"a lease id is one path component, not {lease!r}"
    return f"{THROTTLE_LEASES}/{lease}"


def throttle_hold(lease_path: str) -> str:
    """The path of the hold that renews the lease at `lease_path`, if a tool holds it."""
    return f"{THROTTLE_HOLDS}/{lease_path.removeprefix(THROTTLE_LEASES + '/')}"


def resignation(name: str, partition: int) -> str:
    return f"{RESIGNATIONS}/{checked_topic_name(name)}/{_number(partition)}"


def resignation_of(path: str) -> tuple[str, int]:
    """The topic and partition of the resignation at `path`."""
    _, _, name, number = path.split("/")
    return name, int(number)


def cooling_in(name: str, partition: int) -> str:
    """The parent of the cool-downs of this partition."""
    return f"{COOLING}/{checked_topic_name(name)}/{_number(partition)}"


def cooling(name: str, partition: int, broker: int) -> str:
    return f"{cooling_in(name, partition)}/{_number(broker)}"


def cooling_of(path: str) -> tuple[str, int, int]:
    """The topic, partition and broker of the cool-down at `path`."""
    _, _, name, number, broker = path.split("/")
    return name, int(number), int(broker)


def offline_in(root: str, name: str, partition: int) -> str:
    """The parent of the reports under `root` about replicas of this partition."""
    return f"{root}/{checked_topic_name(name)}/{_number(partition)}"


def failed_replica(name: str, partition: int, incarnation: int) -> str:
    """The report of a broker, in this incarnation, that its log of the partition failed."""
    return f"{offline_in(FAILED_REPLICAS, name, partition)}/{_number(incarnation)}"


def damaged_replica(name: str, partition: int, incarnation: int) -> str:
    """The report of a broker, in this incarnation, that its log of the partition lost records."""
    return f"{offline_in(DAMAGED_REPLICAS, name, partition)}/{_number(incarnation)}"


def offline_of(path: str) -> tuple[str, int, int]:
    """The topic, partition and incarnation of the report at `path`."""
    _, _, name, number, incarnation = path.split("/")
    return name, int(number), int(incarnation)


def session(incarnation: int) -> str:
    return f"{SESSIONS}/{_number(incarnation)}"


def session_of(path: str) -> int | None:
    """The incarnation whose session node is at `path`, if it is such a path."""
    head, _, number = path.rpartition("/")
    return int(number) if head == SESSIONS and number.isdecimal() else None


def _number(value: int) -> int:
    assert value >= 0, f"ids and partitions in paths are never negative: {value}"
    return value
