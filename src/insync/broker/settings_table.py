"""Every setting of brokers and topics, with Kafka's names: type, default, bounds and description.

One table serves the properties file, `--set`, topic overrides and the admin APIs. A name that is
not in the table is refused, with the closest name that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Final

from insync.rules import throttled_replicas
from insync.rules.quota_window import SAMPLE_MS_DEFAULT, SAMPLES_DEFAULT
from insync.rules.refusals import BadSetting
from insync.rules.resignation import COOLDOWN_MS_DEFAULT
from insync.rules.settings import POLICY_NAMES, PROCESS_TIME_MAX_MS_DEFAULT
from insync.rules.throttled_replicas import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
)
from insync.wire.configs import ConfigType
from insync.wire.frames import BATCH_BYTES_MAX

Value = int | bool | str
LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
MIB: Final = 1 << 20


class Scope(Enum):
    """For what a setting may be set."""

    BROKER = "broker"
    TOPIC = "topic"
    BOTH = "both"  # for brokers, as the default of topics, and for topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    default: Value | None  # None: it has no default and must be set
    doc: str
    scope: Scope = Scope.BROKER
    topic_name: str | None = None  # the name for topics, where it differs
    minimum: int = 0
    maximum: int = LONG_MAX
    choices: tuple[str, ...] = ()
    is_dynamic: bool = False  # it can be changed at run time, because it is read on every use
    is_list: bool = False  # of texts that are separated by commas
    is_run_time_only: bool = False  # refused in a properties file and when a topic is created
    read: Callable[[str], object] | None = None  # parses texts with a syntax of their own

    @property
    def kind(self) -> ConfigType:
        match self.default:
            case bool():
                return ConfigType.BOOLEAN
            case int():
                return ConfigType.INT if self.maximum <= INT_MAX else ConfigType.LONG
            case _:
                return ConfigType.LIST if self.is_list else ConfigType.STRING

    def parse(self, text: str) -> Value:
        """The value that a text stands for. Raises BadSetting with the reason."""
        text = text.strip()
        match self.default:
            case bool():
                return self._parse_bool(text)
            case int():
                return self._parse_int(text)
            case _:
                if self.choices and text not in self.choices:
                    raise BadSetting(f"{self.name} is {text!r}; use {' or '.join(self.choices)}")
                return text if self.read is None else str(self.read(text))

    def _parse_bool(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise BadSetting(f"{self.name} is {text!r}; use true or false")
        return text.lower() == "true"

    def _parse_int(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise BadSetting(f"{self.name} is {text!r}; write a whole number")
        has_too_many_digits = len(digits) > len(str(LONG_MAX))
        if has_too_many_digits or not self.minimum <= int(text) <= self.maximum:
            shown = f"a number of {len(digits)} digits" if has_too_many_digits else text
            raise BadSetting(
                f"{self.name} is {shown}; it must be between {self.minimum} and {self.maximum}"
            )
        return int(text)


def _table(settings: Iterable[Setting]) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


SETTINGS: Final = _table(
    (
        Setting(
            name="node.id",
            default=1,
            maximum=INT_MAX,
            doc="Id of this broker, unique in the cluster.",
        ),
        Setting(
            name="listeners",
            default="PLAINTEXT://127.0.0.1:9092",
            doc="Address on which this broker serves clients and brokers, as "
            "PLAINTEXT://HOST:PORT.",
        ),
        Setting(
            name="log.dirs",
            default="",
            doc="Folder of this broker's logs; one folder only. Required.",
        ),
        Setting(
            name="metadata.dir",
            default="",
            doc="Folder of the metadata store, which all brokers of the cluster share. Required.",
        ),
        Setting(
            name="metadata.synchronous",
            default="NORMAL",
            choices=("NORMAL", "FULL"),
            doc="FULL: committed metadata survives a power failure. NORMAL: it survives the "
            "death of processes only.",
        ),
        Setting(
            name="metrics.port",
            default=0,
            maximum=65_535,
            doc="Port that serves /metrics to Prometheus; 0 disables it. Each broker on a host "
            "needs its own port.",
        ),
        Setting(
            name="metrics.host",
            default="127.0.0.1",
            doc="Address that serves /metrics. Any client that can connect to it can read the "
            "metrics.",
        ),
        Setting(
            name="broker.rack",
            default="",
            doc="Rack of this broker. New replicas are spread over racks, and clients see the "
            "rack.",
        ),
        Setting(
            name="broker.session.timeout.ms",
            default=9_000,
            minimum=100,
            maximum=INT_MAX,
            doc="Time without a heartbeat after which a broker counts as dead. The death of a "
            "process is noticed at once.",
        ),
        Setting(
            name="broker.heartbeat.interval.ms",
            default=500,
            minimum=10,
            maximum=INT_MAX,
            doc="Time between two heartbeats of a broker.",
        ),
        Setting(
            name="num.partitions",
            default=1,
            minimum=1,
            maximum=10_000,
            is_dynamic=True,
            doc="Number of partitions of a topic that is created without a number.",
        ),
        Setting(
            name="default.replication.factor",
            default=-1,
            minimum=-1,
            maximum=100,
            is_dynamic=True,
            doc="Replication factor of a topic that is created without one; -1 means 3, or the "
            "number of brokers if that is less.",
        ),
        Setting(
            name="auto.create.topics.enable",
            default=True,
            is_dynamic=True,
            doc="Create a topic when a client asks for the metadata of one that does not exist.",
        ),
        Setting(
            name="unclean.leader.election.enable",
            default=False,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="Elect a replica that is not in sync if no in-sync replica is live. Committed "
            "records can be lost.",
        ),
        Setting(
            name="auto.leader.rebalance.enable",
            default=True,
            is_dynamic=True,
            doc="Elect preferred leaders again periodically.",
        ),
        Setting(
            name="leader.imbalance.check.interval.seconds",
            default=300,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="Time between two checks by the controller whether preferred leaders should be "
            "elected.",
        ),
        Setting(
            name="leader.imbalance.per.broker.percentage",
            default=10,
            maximum=100,
            is_dynamic=True,
            doc="Percentage of a broker's preferred partitions that other brokers may lead "
            "before the controller elects preferred leaders.",
        ),
        Setting(
            name="min.insync.replicas",
            default=1,
            minimum=1,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="Number of in-sync replicas below which a produce request with acks=all is "
            "refused.",
        ),
        Setting(
            name="replica.lag.time.max.ms",
            default=30_000,
            minimum=1,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="Time that a follower may be behind its leader before it leaves the ISR.",
        ),
        Setting(
            name="replica.in.sync.policy",
            default="caught-up",
            choices=POLICY_NAMES,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="Rule that says whether a follower is in sync: caught-up (KAFKA-4485), messages "
            "or lag-begin (the rules before it), true-lag (by the leader's append times), or "
            "pending-reads (KIP-501).",
        ),
        Setting(
            name="replica.lag.max.messages",
            default=4_000,
            is_dynamic=True,
            doc="Number of records that a follower may be behind; with "
            "replica.in.sync.policy=messages only.",
        ),
        Setting(
            name="follower.fetch.pending.reads.insync.enable",
            default=False,
            is_dynamic=True,
            doc="KIP-501: keep a follower in the ISR while its leader is still reading the "
            "records for its fetch.",
        ),
        Setting(
            name="follower.fetch.process.time.max.ms",
            default=PROCESS_TIME_MAX_MS_DEFAULT,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="KIP-501: a leader that reads longer than this for a follower's fetch resigns. "
            "Ignored unless pending reads count.",
        ),
        Setting(
            name="follower.fetch.process.time.include.stalls",
            default=False,
            is_dynamic=True,
            doc="Count stalls of the leader itself (CPU problems, a paused process) towards the "
            "process time of fetches that it was reading for. By default only the time counts in "
            "which the leader ran. Ignored unless pending reads count.",
        ),
        Setting(
            name="leader.resign.cooldown.ms",
            default=COOLDOWN_MS_DEFAULT,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="Time for which a broker that resigned a partition is not elected for it, while "
            "another in-sync replica is live.",
        ),
        Setting(
            name="replica.fetch.wait.max.ms",
            default=500,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="Time that a leader may wait for new records before it answers a follower's fetch.",
        ),
        Setting(
            name="replica.fetch.max.bytes",
            default=MIB,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="Bytes that a follower fetches at most per partition and request.",
        ),
        Setting(
            name="replica.fetch.response.max.bytes",
            default=10 * MIB,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="Bytes that a follower fetches at most per request.",
        ),
        *(
            Setting(
                name=name,
                default=LONG_MAX,
                is_dynamic=True,
                is_run_time_only=True,
                doc=f"KIP-73: bytes per second that this broker may {verb} for throttled replicas.",
            )
            for name, verb in ((LEADER_RATE, "send"), (FOLLOWER_RATE, "fetch"))
        ),
        *(
            Setting(
                name=name,
                default="",
                scope=Scope.TOPIC,
                is_dynamic=True,
                is_list=True,
                is_run_time_only=True,
                read=throttled_replicas.parse,
                doc=f"KIP-73: list of replicas that are throttled as {role}s, each as "
                "PARTITION:BROKER; * means all.",
            )
            for name, role in ((LEADER_LIST, "leader"), (FOLLOWER_LIST, "follower"))
        ),
        Setting(
            name="replication.quota.window.num",
            default=SAMPLES_DEFAULT,
            minimum=1,
            maximum=10_000,
            is_dynamic=True,
            doc="Number of samples over which the rate of throttled replication is measured.",
        ),
        Setting(
            name="replication.quota.window.size.seconds",
            default=SAMPLE_MS_DEFAULT // 1_000,
            minimum=1,
            maximum=86_400,
            is_dynamic=True,
            doc="Time span of each sample of the rate of throttled replication.",
        ),
        Setting(
            name="max.incremental.fetch.session.cache.slots",
            default=1_000,
            maximum=INT_MAX,
            doc="Number of fetch sessions that the broker keeps for consumers. A new one "
            "replaces the one unused for longest.",
        ),
        Setting(
            name="replica.fetch.backoff.ms",
            default=1_000,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="Time that a follower waits after a failed fetch.",
        ),
        Setting(
            name="replica.socket.timeout.ms",
            default=30_000,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="Time that a follower waits for the answer to a fetch before it connects again.",
        ),
        Setting(
            name="message.max.bytes",
            default=MIB + 12,
            maximum=BATCH_BYTES_MAX,
            scope=Scope.BOTH,
            topic_name="max.message.bytes",
            is_dynamic=True,
            doc="Size of the largest record batch that a broker accepts. The bound is what one "
            "answer to a follower can carry.",
        ),
        Setting(
            name="socket.request.max.bytes",
            default=100 * MIB,
            minimum=1,
            maximum=INT_MAX,
            doc="Size of the largest request that a broker accepts.",
        ),
        Setting(
            name="max.connections",
            default=INT_MAX,
            minimum=1,
            maximum=INT_MAX,
            doc="Number of open connections at most. The limit of the operating system on open "
            "files applies too.",
        ),
        Setting(
            name="connections.max.idle.ms",
            default=600_000,
            minimum=100,
            maximum=INT_MAX,
            doc="Time without a request or an answer after which a connection is closed.",
        ),
        Setting(
            name="log.segment.bytes",
            default=1024 * MIB,
            minimum=1_024,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            topic_name="segment.bytes",
            is_dynamic=True,
            doc="Size at which a log starts a new segment file.",
        ),
        Setting(
            name="log.roll.ms",
            default=7 * 24 * 3_600_000,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="segment.ms",
            is_dynamic=True,
            doc="Age at which a log starts a new segment file.",
        ),
        Setting(
            name="log.retention.bytes",
            default=-1,
            minimum=-1,
            scope=Scope.BOTH,
            topic_name="retention.bytes",
            is_dynamic=True,
            doc="Size of a partition above which its oldest segments are deleted; -1 means no "
            "limit.",
        ),
        Setting(
            name="log.retention.ms",
            default=7 * 24 * 3_600_000,
            minimum=-1,
            scope=Scope.BOTH,
            topic_name="retention.ms",
            is_dynamic=True,
            doc="Age at which records are deleted; -1 means no limit.",
        ),
        Setting(
            name="log.flush.interval.messages",
            default=LONG_MAX,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="flush.messages",
            is_dynamic=True,
            doc="Number of unflushed records at which an append flushes the log. The append is "
            "visible and acknowledged after the flush, and the broker does nothing else "
            "meanwhile.",
        ),
        Setting(
            name="log.flush.interval.ms",
            default=LONG_MAX,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="flush.ms",
            is_dynamic=True,
            doc="Time after which appended records are flushed to disk, in the background; more "
            "than a minute counts as a minute. Checked every 5 s, or as often as the broker's "
            "own value says.",
        ),
        Setting(
            name="log.retention.check.interval.ms",
            default=300_000,
            minimum=1,
            doc="Time between two checks for segments to delete.",
        ),
        Setting(
            name="log.scrub.interval.ms",
            default=7 * 24 * 60 * 60 * 1_000,
            minimum=-1,
            is_dynamic=True,
            doc="Time in which the broker reads all its logs once, in the background and with at "
            "most 10 MiB/s, to find batches that the disk damaged; 0 or -1: never. A damaged "
            "follower leaves the ISR and fetches again what is damaged.",
        ),
        Setting(
            name="log.stray.retention.ms",
            default=7 * 24 * 60 * 60 * 1_000,
            minimum=-1,
            is_dynamic=True,
            doc="Time after which a stray log is deleted: one that was set aside at a start, "
            "because the metadata store did not assign it to this broker. -1 means never. "
            "insync strays lists and deletes them.",
        ),
        Setting(
            name="telemetry.enable",
            default=True,
            doc="Record what leaders observe and decide, in the topic __insync_telemetry.",
        ),
        Setting(
            name="telemetry.publish.interval.ms",
            default=2_000,
            minimum=10,
            maximum=INT_MAX,
            doc="Longest time between two publications of recorded telemetry. 1 000 rows are "
            "published without waiting for it.",
        ),
        Setting(
            name="telemetry.topic.partitions",
            default=8,
            minimum=1,
            maximum=1_000,
            doc="Number of partitions with which the telemetry topic is created.",
        ),
        Setting(
            name="telemetry.retention.bytes",
            default=256 * MIB,
            minimum=MIB,
            doc="Size of the telemetry topic, all partitions together, above which its oldest "
            "segments are deleted.",
        ),
        Setting(
            name="telemetry.buffer.bytes",
            default=32 * MIB,
            minimum=64 * 1_024,
            maximum=INT_MAX,
            doc="Memory for telemetry that is not published yet. Rows that do not fit are "
            "dropped and counted.",
        ),
    )
)

BROKER_SETTINGS: Final = {
    name: setting for name, setting in SETTINGS.items() if setting.scope is not Scope.TOPIC
}
TOPIC_SETTINGS: Final = {
    setting.topic_name or setting.name: setting
    for setting in SETTINGS.values()
    if setting.scope is not Scope.BROKER
}


def find(name: str, table: Mapping[str, Setting] = SETTINGS) -> Setting:
    """The setting of this name. Raises BadSetting with the closest name."""
    if name not in table:
        close = get_close_matches(name, table, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise BadSetting(f"there is no setting {name!r}{hint}")
    return table[name]


def refuse_before_run_time(names: Iterable[str], table: Mapping[str, Setting]) -> None:
    """KIP-73: refuse throttles in a properties file and when a topic is created."""
    for name in names:
        if name in table and table[name].is_run_time_only:
            raise BadSetting(f"{name} can only be set at run time; use insync configs --alter")


def text_of(value: Value | None) -> str:
    """The value as it is written in a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)
