"""Every setting a broker honours, by Kafka's name: type, default, bounds, and what it is for.

One table serves the properties file, `--set`, topic overrides and the admin APIs. A key that is not
in it is refused, with the closest one that is.

A value comes from the first layer that has one: a topic's own, what was set for this broker at run
time, what was set for all brokers at run time, the file, the default. Everybody who reads settings
holds the same `Settings`, so a change is seen by whoever looks next.
"""

from __future__ import annotations

import logging
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
from insync.wire.configs import ConfigSource, ConfigType

logger = logging.getLogger(__name__)

Value = int | bool | str
LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
MIB: Final = 1 << 20


class Scope(Enum):
    """Where a setting may be given."""

    BROKER = "broker"
    TOPIC = "topic"
    BOTH = "both"  # a broker's default that a topic may override, under its own name


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    default: Value | None  # None: it must be given
    doc: str
    scope: Scope = Scope.BROKER
    topic_name: str | None = None  # a topic's name for it, where that differs
    minimum: int = 0
    maximum: int = LONG_MAX
    choices: tuple[str, ...] = ()
    is_dynamic: bool = False  # whoever reads it looks again, so it may be changed at run time
    is_list: bool = False  # of texts, with commas between them
    is_run_time_only: bool = False  # neither in a file nor when a topic is created
    read: Callable[[str], object] | None = None  # what reads a text that has a form of its own

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
        """The value a text stands for; refused with the reason."""
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
        is_absurd = len(digits) > len(str(LONG_MAX))
        if is_absurd or not self.minimum <= int(text) <= self.maximum:
            shown = f"a number of {len(digits)} digits" if is_absurd else text
            raise BadSetting(
                f"{self.name} is {shown}; it must be between {self.minimum} and {self.maximum}"
            )
        return int(text)


def _table(settings: Iterable[Setting]) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


SETTINGS: Final = _table(
    (
        Setting(name="node.id", default=1, maximum=INT_MAX, doc="This broker's id."),
        Setting(
            name="listeners",
            default="PLAINTEXT://127.0.0.1:9092",
            doc="The one address this broker serves clients and brokers on.",
        ),
        Setting(name="log.dirs", default="", doc="The folder of this broker's logs."),
        Setting(
            name="metadata.dir",
            default="",
            doc="The folder the brokers of this cluster share: the metadata store and sessions.",
        ),
        Setting(
            name="metadata.synchronous",
            default="NORMAL",
            choices=("NORMAL", "FULL"),
            doc="FULL lets committed metadata survive power loss; NORMAL only process death.",
        ),
        Setting(
            name="metrics.port",
            default=0,
            maximum=65_535,
            doc="Where Prometheus finds /metrics; 0: nowhere. Each broker needs a port of its own.",
        ),
        Setting(
            name="metrics.host",
            default="127.0.0.1",
            doc="The address /metrics is served at: anybody who reaches it may read.",
        ),
        Setting(name="broker.rack", default="", doc="Where this broker stands; told to clients."),
        Setting(
            name="broker.session.timeout.ms",
            default=9_000,
            minimum=100,
            maximum=INT_MAX,
            doc="A broker silent for longer is taken for dead. A killed one is noticed at once.",
        ),
        Setting(
            name="broker.heartbeat.interval.ms",
            default=500,
            minimum=10,
            maximum=INT_MAX,
            doc="How often a broker shows that it is alive.",
        ),
        Setting(
            name="num.partitions",
            default=1,
            minimum=1,
            maximum=10_000,
            is_dynamic=True,
            doc="Partitions of a topic created without saying how many.",
        ),
        Setting(
            name="default.replication.factor",
            default=-1,
            minimum=-1,
            maximum=100,
            is_dynamic=True,
            doc="Replicas of a topic created without saying how many; -1: three, or all brokers.",
        ),
        Setting(
            name="auto.create.topics.enable",
            default=True,
            is_dynamic=True,
            doc="Create a topic when a client asks for it.",
        ),
        Setting(
            name="unclean.leader.election.enable",
            default=False,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="Let a replica that is not in sync lead when no other lives, and lose records.",
        ),
        Setting(
            name="auto.leader.rebalance.enable",
            default=True,
            is_dynamic=True,
            doc="Give leadership back to preferred replicas from time to time.",
        ),
        Setting(
            name="leader.imbalance.check.interval.seconds",
            default=300,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="How often the controller looks whether preferred replicas lead.",
        ),
        Setting(
            name="leader.imbalance.per.broker.percentage",
            default=10,
            maximum=100,
            is_dynamic=True,
            doc="The part of a broker's preferred partitions that others may lead.",
        ),
        Setting(
            name="min.insync.replicas",
            default=1,
            minimum=1,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="Replicas that must be in sync for an acks=all append.",
        ),
        Setting(
            name="replica.lag.time.max.ms",
            default=30_000,
            minimum=1,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="How far, in time, a follower may be behind and still be in sync.",
        ),
        Setting(
            name="replica.in.sync.policy",
            default="caught-up",
            choices=POLICY_NAMES,
            scope=Scope.BOTH,
            is_dynamic=True,
            doc="Which rule says whether a follower is in sync: KAFKA-4485's (caught-up), the ones "
            "before it (messages, lag-begin), lag by the leader's own append times (true-lag), or "
            "KIP-501's (pending-reads).",
        ),
        Setting(
            name="replica.lag.max.messages",
            default=4_000,
            is_dynamic=True,
            doc="Under the policy messages: how many records a follower may lack.",
        ),
        Setting(
            name="follower.fetch.pending.reads.insync.enable",
            default=False,
            is_dynamic=True,
            doc="KIP-501: a follower whose fetch the leader is still reading for does not leave.",
        ),
        Setting(
            name="follower.fetch.process.time.max.ms",
            default=PROCESS_TIME_MAX_MS_DEFAULT,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="KIP-501: a leader that reads longer than this for a follower's fetch resigns; "
            "ignored unless pending reads count.",
        ),
        Setting(
            name="leader.resign.cooldown.ms",
            default=COOLDOWN_MS_DEFAULT,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="How long a broker that resigned a partition is not asked to lead it again while "
            "another in-sync replica lives.",
        ),
        Setting(
            name="replica.fetch.wait.max.ms",
            default=500,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="How long a leader may hold a follower's fetch for which it has nothing yet.",
        ),
        Setting(
            name="replica.fetch.max.bytes",
            default=MIB,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="What a follower asks for per partition and fetch.",
        ),
        Setting(
            name="replica.fetch.response.max.bytes",
            default=10 * MIB,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="What a follower asks for per fetch.",
        ),
        *(
            Setting(
                name=name,
                default=LONG_MAX,
                is_dynamic=True,
                is_run_time_only=True,
                doc=f"KIP-73: bytes a second that this broker may {does} for throttled replicas.",
            )
            for name, does in ((LEADER_RATE, "send"), (FOLLOWER_RATE, "fetch"))
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
                doc=f"KIP-73: replicas, as partition:broker, that are throttled when they {do}; "
                "* is all of them.",
            )
            for name, do in ((LEADER_LIST, "lead"), (FOLLOWER_LIST, "follow"))
        ),
        Setting(
            name="replication.quota.window.num",
            default=SAMPLES_DEFAULT,
            minimum=1,
            maximum=10_000,
            is_dynamic=True,
            doc="Samples over which the rate of throttled replication is told.",
        ),
        Setting(
            name="replication.quota.window.size.seconds",
            default=SAMPLE_MS_DEFAULT // 1_000,
            minimum=1,
            maximum=86_400,
            is_dynamic=True,
            doc="The time span of each of these samples.",
        ),
        Setting(
            name="max.incremental.fetch.session.cache.slots",
            default=1_000,
            maximum=INT_MAX,
            doc="Fetch sessions kept for consumers; one more ends the longest unused.",
        ),
        Setting(
            name="replica.fetch.backoff.ms",
            default=1_000,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="How long a follower waits after a fetch that failed.",
        ),
        Setting(
            name="replica.socket.timeout.ms",
            default=30_000,
            minimum=1,
            maximum=INT_MAX,
            is_dynamic=True,
            doc="How long a follower waits for an answer before it connects anew.",
        ),
        Setting(
            name="message.max.bytes",
            default=MIB + 12,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            topic_name="max.message.bytes",
            is_dynamic=True,
            doc="The largest record batch that is taken.",
        ),
        Setting(
            name="socket.request.max.bytes",
            default=100 * MIB,
            minimum=1,
            maximum=INT_MAX,
            doc="The largest request that is read.",
        ),
        Setting(
            name="max.connections",
            default=INT_MAX,
            minimum=1,
            maximum=INT_MAX,
            doc="Connections at a time; never more than the system's open files leave room for.",
        ),
        Setting(
            name="connections.max.idle.ms",
            default=600_000,
            minimum=100,
            maximum=INT_MAX,
            doc="A connection without a whole request or an answer for as long is closed.",
        ),
        Setting(
            name="log.segment.bytes",
            default=1024 * MIB,
            minimum=1_024,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            topic_name="segment.bytes",
            is_dynamic=True,
            doc="The size at which a log starts a new file.",
        ),
        Setting(
            name="log.roll.ms",
            default=7 * 24 * 3_600_000,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="segment.ms",
            is_dynamic=True,
            doc="The age at which a log starts a new file.",
        ),
        Setting(
            name="log.retention.bytes",
            default=-1,
            minimum=-1,
            scope=Scope.BOTH,
            topic_name="retention.bytes",
            is_dynamic=True,
            doc="The size a partition is kept to; -1: no limit.",
        ),
        Setting(
            name="log.retention.ms",
            default=7 * 24 * 3_600_000,
            minimum=-1,
            scope=Scope.BOTH,
            topic_name="retention.ms",
            is_dynamic=True,
            doc="How long records are kept; -1: no limit.",
        ),
        Setting(
            name="log.flush.interval.messages",
            default=LONG_MAX,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="flush.messages",
            is_dynamic=True,
            doc="Records that may wait for a flush to disk: the append that makes it this many is "
            "acknowledged after the flush, and the broker does nothing else meanwhile.",
        ),
        Setting(
            name="log.flush.interval.ms",
            default=LONG_MAX,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="flush.ms",
            is_dynamic=True,
            doc="How long records may wait for a flush to disk, beside which nothing has to wait; "
            "at most a minute, looked at every 5 s, or as often as the broker's own value says.",
        ),
        Setting(
            name="log.retention.check.interval.ms",
            default=300_000,
            minimum=1,
            doc="How often old files are looked for.",
        ),
        Setting(
            name="telemetry.enable",
            default=True,
            doc="Record what leaders see and decide in the topic __insync_telemetry.",
        ),
        Setting(
            name="telemetry.publish.interval.ms",
            default=2_000,
            minimum=10,
            maximum=INT_MAX,
            doc="How often what was recorded is published.",
        ),
        Setting(
            name="telemetry.topic.partitions",
            default=8,
            minimum=1,
            maximum=1_000,
            doc="Partitions of the telemetry topic, when it is created.",
        ),
        Setting(
            name="telemetry.retention.bytes",
            default=256 * MIB,
            minimum=MIB,
            doc="The size the telemetry topic is kept to, all its partitions together.",
        ),
        Setting(
            name="telemetry.buffer.bytes",
            default=32 * MIB,
            minimum=64 * 1_024,
            maximum=INT_MAX,
            doc="Memory for what is not published yet; what finds no room is dropped and counted.",
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
    if name not in table:
        close = get_close_matches(name, table, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise BadSetting(f"there is no setting {name!r}{hint}")
    return table[name]


def refuse_before_run_time(names: Iterable[str], table: Mapping[str, Setting]) -> None:
    """KIP-73: throttles cannot be set in a file, or when a topic is created."""
    for name in names:
        if name in table and table[name].is_run_time_only:
            raise BadSetting(f"{name} can only be set at run time; use insync configs --alter")


def text_of(value: Value | None) -> str:
    """As it would be written in a file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


Layers = dict[ConfigSource, dict[str, Value]]

# The first that has a value decides; defaults come after all of them.
PRECEDENCE: Final = (
    ConfigSource.TOPIC,
    ConfigSource.DYNAMIC_BROKER,
    ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigSource.STATIC_BROKER,
)


class Settings:
    """A broker's settings: what was given, and the defaults of the rest."""

    def __init__(self, given: Mapping[str, str]) -> None:
        refuse_before_run_time(given, BROKER_SETTINGS)
        self._layers: Layers = {ConfigSource.STATIC_BROKER: _parsed(given, BROKER_SETTINGS)}
        self._merge()

    def __getitem__(self, name: str) -> Value:
        value = self._values.get(name, SETTINGS[name].default)
        assert value is not None, f"{name} has neither value nor default"
        return value

    def is_given(self, name: str) -> bool:
        """Whether somebody said it, anywhere; else it is the default."""
        return name in self._values

    def sources(self, name: str) -> list[tuple[ConfigSource, Value]]:
        """Every value it has somewhere, the one that decides first and the default last."""
        found = [
            (source, self._layers[source][name])
            for source in PRECEDENCE
            if name in self._layers.get(source, ())
        ]
        default = SETTINGS[name].default
        return found if default is None else [*found, (ConfigSource.DEFAULT, default)]

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), f"{name} is no number"
        return value

    def flag(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), f"{name} is no flag"
        return value

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), f"{name} is no text"
        return value

    def for_topic(self, overrides: Mapping[str, str]) -> Settings:
        """The same with a topic's own values in place of the broker's defaults."""
        return self._with({ConfigSource.TOPIC: _parsed(overrides, TOPIC_SETTINGS)})

    def for_stored_topic(self, overrides: Mapping[str, str]) -> Settings:
        """The same for what the store has of a topic, as far as this broker understands it."""
        return self._with({ConfigSource.TOPIC: _understood(overrides, TOPIC_SETTINGS)})

    def at_run_time(self, *, own: Mapping[str, str], everyones: Mapping[str, str]) -> Settings:
        """The same had these been set at run time, for this broker and for all of them."""
        return self._with(
            {
                ConfigSource.DYNAMIC_BROKER: _parsed(own, BROKER_SETTINGS),
                ConfigSource.DYNAMIC_DEFAULT_BROKER: _parsed(everyones, BROKER_SETTINGS),
            }
        )

    def from_file(self) -> Settings:
        """What this broker was started with."""
        return self._with({source: {} for source in PRECEDENCE[:-1]})

    def change(self, *, own: Mapping[str, str], everyones: Mapping[str, str]) -> None:
        """From now on these are what was set at run time.

        They come from the store, where a broker of another version may have written them: what
        this one does not know, or reads only at start, does not count here.
        """
        for source, given in (
            (ConfigSource.DYNAMIC_BROKER, own),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, everyones),
        ):
            understood = _understood(given, BROKER_SETTINGS)
            self._layers[source] = {
                name: value for name, value in understood.items() if SETTINGS[name].is_dynamic
            }
        self._merge()

    def _with(self, layers: Layers) -> Settings:
        other = Settings({})
        other._layers = {**self._layers, **layers}
        other._merge()
        return other

    def _merge(self) -> None:
        self._values: dict[str, Value] = {}
        for source in reversed(PRECEDENCE):
            self._values |= self._layers.get(source, {})


def _parsed(given: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, Value]:
    found = {}
    for name, text in given.items():
        setting = find(name, table)
        found[setting.name] = setting.parse(text)
    return found


def _understood(given: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, text in given.items():
        try:
            found |= _parsed({name: text}, table)
        except BadSetting as refusal:
            logger.warning("a setting in the store is not used: %s", refusal)
    return found


def parse_properties(text: str) -> dict[str, str]:
    """A properties file: `key=value` lines, `#` and `!` comments; the last one of a key wins."""
    given: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise BadSetting(f"line {number}: {line!r} is not of the form key=value")
        given[name.strip()] = value.strip()
    return given
