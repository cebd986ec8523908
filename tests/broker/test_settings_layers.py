"""Settings in layers: which value counts, where it comes from, and what is refused together."""

from __future__ import annotations

import pytest

from insync.broker.replication.in_sync import Rules, concerns_rule, rule_of
from insync.broker.settings import SETTINGS, Settings, text_of
from insync.rules.policy import CaughtUp
from insync.rules.refusals import BadSetting
from insync.wire.configs import ConfigSource, ConfigType

LAG, WAIT = "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"
TOPIC, OWN, EVERYONES, FILE, DEFAULT = (
    ConfigSource.TOPIC,
    ConfigSource.DYNAMIC_BROKER,
    ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigSource.STATIC_BROKER,
    ConfigSource.DEFAULT,
)


@pytest.mark.parametrize("topic", [None, "11000"])
@pytest.mark.parametrize("own", [None, "12000"])
@pytest.mark.parametrize("everyones", [None, "13000"])
@pytest.mark.parametrize("file", [None, "14000"])
def test_the_first_layer_with_a_value_wins(
    topic: str | None, own: str | None, everyones: str | None, file: str | None
) -> None:
    """Kafka's order: a topic's own, this broker's, all brokers', the file, the default."""

    def layer(value: str | None) -> dict[str, str]:
        return {} if value is None else {LAG: value}

    settings = Settings(layer(file))
    settings.change(own=layer(own), everyones=layer(everyones))
    settings = settings.for_topic(layer(topic))
    expected = [
        (source, int(value))
        for source, value in ((TOPIC, topic), (OWN, own), (EVERYONES, everyones), (FILE, file))
        if value is not None
    ] + [(DEFAULT, 30_000)]
    assert settings.sources(LAG) == expected
    assert settings.integer(LAG) == expected[0][1]
    assert settings.is_given(LAG) == (len(expected) > 1)
    assert settings.from_file().sources(LAG) == [entry for entry in expected if entry[0] >= FILE]


def test_a_change_applies_to_the_next_read() -> None:
    settings = Settings({})
    settings.change(own={}, everyones={WAIT: "100"})
    assert settings.integer(WAIT) == 100
    settings.change(own={}, everyones={})
    assert settings.integer(WAIT) == 500


def test_a_candidate_changes_nothing() -> None:
    settings = Settings({LAG: "10000"})
    assert settings.at_run_time(own={LAG: "5000"}, everyones={LAG: "6000"}).integer(LAG) == 5_000
    assert settings.integer(LAG) == 10_000


def test_values_stored_by_another_version_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings({"node.id": "3"})
    settings.change(own={"zebra": "1", LAG: "soon", "node.id": "7"}, everyones={WAIT: "70"})
    assert settings.integer(LAG) == 30_000
    assert settings.integer("node.id") == 3, "read at start only"
    assert settings.integer(WAIT) == 70
    assert "no setting 'zebra'" in caplog.text
    topic = settings.for_stored_topic({"zebra": "1", "retention.ms": "5"})
    assert topic.integer("log.retention.ms") == 5


def test_settings_that_can_change_at_run_time() -> None:
    """The documents require these to be dynamic; a name that is not in the table is skipped."""
    for name in (
        *("replica.in.sync.policy", LAG, "replica.lag.max.messages", WAIT),
        *("follower.fetch.pending.reads.insync.enable", "follower.fetch.process.time.max.ms"),
        *("replica.fetch.response.max.bytes", "replica.fetch.max.bytes", "min.insync.replicas"),
        *("message.max.bytes", "unclean.leader.election.enable", "log.retention.ms"),
        *("log.retention.bytes", "log.segment.bytes", "leader.imbalance.check.interval.seconds"),
        *("leader.imbalance.per.broker.percentage", "leader.resign.cooldown.ms"),
    ):
        assert name not in SETTINGS or SETTINGS[name].is_dynamic, name
    for name in ("node.id", "listeners", "log.dirs", "metadata.dir", "broker.session.timeout.ms"):
        assert not SETTINGS[name].is_dynamic, name
    for setting in SETTINGS.values():
        assert setting.is_dynamic or setting.scope.value == "broker", "topics change at any time"


def test_setting_types_and_their_text() -> None:
    assert SETTINGS["auto.create.topics.enable"].kind is ConfigType.BOOLEAN
    assert SETTINGS["min.insync.replicas"].kind is ConfigType.INT
    assert SETTINGS["log.retention.ms"].kind is ConfigType.LONG
    assert SETTINGS["broker.rack"].kind is ConfigType.STRING
    assert [text_of(value) for value in (True, False, 7, "A")] == ["true", "false", "7", "A"]


def test_settings_make_the_in_sync_rule() -> None:
    settings = Settings({LAG: "9000"})
    assert rule_of(settings).policy == CaughtUp(lag_time_max_ms=9_000)
    assert rule_of(settings.for_topic({LAG: "800"})).policy == CaughtUp(lag_time_max_ms=800)
    with pytest.raises(BadSetting, match=r"below replica\.lag\.time\.max\.ms \(400\)"):
        rule_of(settings.for_topic({LAG: "400"}))
    assert concerns_rule({LAG: "1"})
    assert not concerns_rule({"retention.ms": "1", "zebra": "1"})


def test_stored_settings_that_contradict_fall_back_to_valid_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Checked where it was set, but this broker's file says something else."""
    broker = Settings({WAIT: "2000"})
    rules = Rules()

    def limit_ms() -> int:
        topic = broker.for_topic({LAG: "1000"})
        return rules.of_topic("t", topic, broker).policy.lag_time_max_ms

    assert limit_ms() == 30_000
    broker.change(own={}, everyones={LAG: "5000"})
    assert limit_ms() == 5_000
    broker.change(own={}, everyones={LAG: "1500"})
    assert limit_ms() == 30_000
    assert "t: its own settings are ignored" in caplog.text
    assert "settings changed at run time are ignored" in caplog.text
