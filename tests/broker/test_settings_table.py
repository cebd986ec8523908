"""The table of settings: which values it accepts, which it refuses, and its messages."""

import pytest

from insync.broker.settings import SETTINGS, TOPIC_SETTINGS, Settings, parse_properties
from insync.rules.refusals import BadSetting
from insync.wire.frames import BATCH_BYTES_MAX, REPLICATION_FRAME_BYTES_MAX


def test_every_default_is_valid_for_its_setting() -> None:
    for setting in SETTINGS.values():
        assert setting.default is not None
        text = str(setting.default).lower() if setting.default in (True, False) else None
        assert setting.parse(text or str(setting.default)) == setting.default
        assert setting.doc.endswith(".")


def test_the_designs_defaults() -> None:
    settings = Settings({})
    assert settings.integer("replica.lag.time.max.ms") == 30_000
    assert settings.integer("broker.session.timeout.ms") == 9_000
    assert settings.integer("broker.heartbeat.interval.ms") == 500
    assert settings.integer("replica.fetch.wait.max.ms") == 500
    assert settings.integer("replica.fetch.response.max.bytes") == 10 << 20
    assert settings.flag("auto.create.topics.enable")
    assert not settings.flag("unclean.leader.election.enable")
    assert settings.integer("telemetry.topic.partitions") == 8
    assert settings.integer("telemetry.retention.bytes") == 256 << 20


def test_a_topic_overrides_by_its_own_name() -> None:
    broker = Settings({"log.segment.bytes": "2048", "min.insync.replicas": "2"})
    topic = broker.for_topic({"segment.bytes": "4096"})
    assert topic.integer("log.segment.bytes") == 4_096
    assert topic.integer("min.insync.replicas") == 2
    assert broker.integer("log.segment.bytes") == 2_048
    assert "node.id" not in TOPIC_SETTINGS


@pytest.mark.parametrize(
    ("settings", "expected_message"),
    [
        ({"num.partitions": "0"}, "between 1 and"),
        ({"num.partitions": "٣"}, "whole number"),
        ({"num.partitions": "9" * 400}, "a number of 400 digits; it must be between 1"),
        ({"num.partitions": ""}, "whole number"),
        ({"auto.create.topics.enable": "yes"}, "use true or false"),
        ({"metadata.synchronous": "SOMETIMES"}, "use NORMAL or FULL"),
        ({"replica.lag.time.max": "1"}, "did you mean replica.lag.time.max.ms"),
        ({"zebra": "1"}, "there is no setting 'zebra'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, str], expected_message: str) -> None:
    with pytest.raises(BadSetting, match=expected_message):
        Settings(settings)


def test_a_topic_cannot_set_a_broker_setting() -> None:
    with pytest.raises(BadSetting, match=r"there is no setting 'node\.id'"):
        Settings({}).for_topic({"node.id": "7"})


def test_properties_files() -> None:
    assert parse_properties("# c\n! d\n\n a = b=c \na=d\n") == {"a": "d"}
    with pytest.raises(BadSetting, match="line 2: 'nonsense'"):
        parse_properties("a=b\nnonsense\n")


def test_no_topic_may_allow_a_batch_that_a_follower_could_not_receive() -> None:
    """Apache Kafka takes 2147483647 here; such a batch would stop its followers."""
    most = str(BATCH_BYTES_MAX)
    assert Settings({}).for_topic({"max.message.bytes": most}).integer("message.max.bytes")
    for text in (str(BATCH_BYTES_MAX + 1), "2147483647"):
        with pytest.raises(BadSetting, match=f"between 0 and {most}"):
            Settings({}).for_topic({"max.message.bytes": text})
    assert BATCH_BYTES_MAX < REPLICATION_FRAME_BYTES_MAX
