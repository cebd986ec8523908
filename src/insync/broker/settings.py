"""Every setting a broker honours, by Kafka's name: type, default, bounds, and what it is for.

One table serves the properties file, `--set`, topic overrides and, later, the admin APIs. A key
that is not in it is refused, with the closest one that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Final

from insync.rules.refusals import BadSetting
from insync.rules.resignation import COOLDOWN_MS_DEFAULT
from insync.rules.settings import POLICY_NAMES, PROCESS_TIME_MAX_MS_DEFAULT

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
                return text

    def _parse_bool(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise BadSetting(f"{self.name} is {text!r}; use true or false")
        return text.lower() == "true"

    def _parse_int(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < len(str(LONG_MAX)) + 1):
            raise BadSetting(f"{self.name} is {text!r}; write a whole number")
        value = int(text)
        if not self.minimum <= value <= self.maximum:
            raise BadSetting(
                f"{self.name} is {value}; it must be between {self.minimum} and {self.maximum}"
            )
        return value


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
            doc="Partitions of a topic created without saying how many.",
        ),
        Setting(
            name="default.replication.factor",
            default=-1,
            minimum=-1,
            maximum=100,
            doc="Replicas of a topic created without saying how many; -1: three, or all brokers.",
        ),
        Setting(
            name="auto.create.topics.enable",
            default=True,
            doc="Create a topic when a client asks for it.",
        ),
        Setting(
            name="unclean.leader.election.enable",
            default=False,
            scope=Scope.BOTH,
            doc="Let a replica that is not in sync lead when no other lives, and lose records.",
        ),
        Setting(
            name="auto.leader.rebalance.enable",
            default=True,
            doc="Give leadership back to preferred replicas from time to time.",
        ),
        Setting(
            name="leader.imbalance.check.interval.seconds",
            default=300,
            minimum=1,
            maximum=INT_MAX,
            doc="How often the controller looks whether preferred replicas lead.",
        ),
        Setting(
            name="leader.imbalance.per.broker.percentage",
            default=10,
            maximum=100,
            doc="The part of a broker's preferred partitions that others may lead.",
        ),
        Setting(
            name="min.insync.replicas",
            default=1,
            minimum=1,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            doc="Replicas that must be in sync for an acks=all append.",
        ),
        Setting(
            name="replica.lag.time.max.ms",
            default=30_000,
            minimum=1,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            doc="How far, in time, a follower may be behind and still be in sync.",
        ),
        Setting(
            name="replica.in.sync.policy",
            default="caught-up",
            choices=POLICY_NAMES,
            scope=Scope.BOTH,
            doc="Which rule says whether a follower is in sync: KAFKA-4485's (caught-up), the ones "
            "before it (messages, lag-begin), lag by the leader's own append times (true-lag), or "
            "KIP-501's (pending-reads).",
        ),
        Setting(
            name="replica.lag.max.messages",
            default=4_000,
            doc="Under the policy messages: how many records a follower may lack.",
        ),
        Setting(
            name="follower.fetch.pending.reads.insync.enable",
            default=False,
            doc="KIP-501: a follower whose fetch the leader is still reading for does not leave.",
        ),
        Setting(
            name="follower.fetch.process.time.max.ms",
            default=PROCESS_TIME_MAX_MS_DEFAULT,
            minimum=1,
            maximum=INT_MAX,
            doc="KIP-501: a leader that reads longer than this for a follower's fetch resigns; "
            "ignored unless pending reads count.",
        ),
        Setting(
            name="leader.resign.cooldown.ms",
            default=COOLDOWN_MS_DEFAULT,
            maximum=INT_MAX,
            doc="How long a broker that resigned a partition is not asked to lead it again while "
            "another in-sync replica lives.",
        ),
        Setting(
            name="replica.fetch.wait.max.ms",
            default=500,
            maximum=INT_MAX,
            doc="How long a leader may hold a follower's fetch for which it has nothing yet.",
        ),
        Setting(
            name="replica.fetch.max.bytes",
            default=MIB,
            minimum=1,
            maximum=INT_MAX,
            doc="What a follower asks for per partition and fetch.",
        ),
        Setting(
            name="replica.fetch.response.max.bytes",
            default=10 * MIB,
            minimum=1,
            maximum=INT_MAX,
            doc="What a follower asks for per fetch.",
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
            doc="How long a follower waits after a fetch that failed.",
        ),
        Setting(
            name="replica.socket.timeout.ms",
            default=30_000,
            minimum=1,
            maximum=INT_MAX,
            doc="How long a follower waits for an answer before it connects anew.",
        ),
        Setting(
            name="message.max.bytes",
            default=MIB + 12,
            maximum=INT_MAX,
            scope=Scope.BOTH,
            topic_name="max.message.bytes",
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
            doc="The size at which a log starts a new file.",
        ),
        Setting(
            name="log.roll.ms",
            default=7 * 24 * 3_600_000,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="segment.ms",
            doc="The age at which a log starts a new file.",
        ),
        Setting(
            name="log.retention.bytes",
            default=-1,
            minimum=-1,
            scope=Scope.BOTH,
            topic_name="retention.bytes",
            doc="The size a partition is kept to; -1: no limit.",
        ),
        Setting(
            name="log.retention.ms",
            default=7 * 24 * 3_600_000,
            minimum=-1,
            scope=Scope.BOTH,
            topic_name="retention.ms",
            doc="How long records are kept; -1: no limit.",
        ),
        Setting(
            name="log.flush.interval.messages",
            default=LONG_MAX,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="flush.messages",
            doc="Records that may wait for a flush to disk: the append that makes it this many is "
            "acknowledged after the flush, and the broker does nothing else meanwhile.",
        ),
        Setting(
            name="log.flush.interval.ms",
            default=LONG_MAX,
            minimum=1,
            scope=Scope.BOTH,
            topic_name="flush.ms",
            doc="How long records may wait for a flush to disk, beside which nothing has to wait; "
            "at most a minute, looked at every 5 s, or as often as the broker's own value says.",
        ),
        Setting(
            name="log.retention.check.interval.ms",
            default=300_000,
            minimum=1,
            doc="How often old files are looked for.",
        ),
    )
)

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


class Settings:
    """A broker's settings: what was given, and the defaults of the rest."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given: dict[str, Value] = {name: find(name).parse(given[name]) for name in given}

    def __getitem__(self, name: str) -> Value:
        setting = SETTINGS[name]
        value = self.given.get(name, setting.default)
        assert value is not None, f"{name} has neither value nor default"
        return value

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
        given = {find(name, TOPIC_SETTINGS).name: text for name, text in overrides.items()}
        merged = Settings(given)
        merged.given = {**self.given, **merged.given}
        return merged


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
