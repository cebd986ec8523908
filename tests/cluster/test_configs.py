"""Settings changed on real brokers, by `insync configs` and by librdkafka's admin client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from insync.cli import main as cli
from insync.testing.cluster import Cluster
from support.cluster.clients import (
    QUIET,
    IntegerProducer,
    admin,
    await_in_sync,
    create_topic,
    eventually,
    leader_of,
    partitions_of,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.insync_cluster(settings={"broker.session.timeout.ms": "60000"}, scope="module"),
]

LAG, WAIT = "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"
POLICY, PROCESS_TIME = "replica.in.sync.policy", "follower.fetch.process.time.max.ms"
Run = Callable[..., str]


@pytest.fixture
def configs(capsys: pytest.CaptureFixture[str], cluster: Cluster) -> Run:
    """`insync configs` on this cluster: its output, or its error line."""

    def run(*flags: str, expect: int = 0) -> str:
        code = cli.main(["configs", "--bootstrap-server", cluster.bootstrap, *flags])
        captured = capsys.readouterr()
        assert code == expect, captured.err
        if code == 0:
            assert captured.err == ""
            return captured.out
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        return captured.err

    return run


def test_the_command_describes_and_alters(cluster: Cluster, configs: Run, tmp_path: Path) -> None:
    create_topic(cluster, "shown", partitions=1, config={"segment.bytes": "4096"})
    topic = "--entity-type", "topics", "--entity-name", "shown"
    assert configs("--alter", *topic, "--add-config", "retention.ms=77,min.insync.replicas=2") == (
        "Completed updating config for topic shown.\n"
    )
    assert configs("--describe", "--topic", "shown") == (
        "Dynamic configs for topic shown are:\n"
        "  min.insync.replicas=2 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:"
        "min.insync.replicas=2, DEFAULT_CONFIG:min.insync.replicas=1}\n"
        "  retention.ms=77 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=77, "
        "DEFAULT_CONFIG:log.retention.ms=604800000}\n"
        "  segment.bytes=4096 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=4096, "
        "DEFAULT_CONFIG:log.segment.bytes=1073741824}\n"
    )
    file = tmp_path / "more.properties"
    file.write_text("retention.ms=78\nflush.ms = 900\n")
    configs("--alter", *topic, "--add-config-file", str(file), "--delete-config", "segment.bytes")
    (described_topic,) = json.loads(configs("--describe", "--topic", "shown", "--json"))
    assert {each["name"]: each["value"] for each in described_topic["configs"]} == {
        "flush.ms": "900",
        "min.insync.replicas": "2",
        "retention.ms": "78",
    }
    assert configs("--describe", "--topic", "shown", "--all").startswith("All configs for topic")
    assert configs("--alter", "--broker-defaults", "--add-config", f"{WAIT}=300") == (
        "Completed updating default config for brokers in the cluster.\n"
    )
    assert configs("--alter", "--broker", "2", "--add-config", f"{WAIT}=200") == (
        "Completed updating config for broker 2.\n"
    )
    output = configs("--describe", "--entity-type", "brokers")
    assert output == (
        "Dynamic configs for broker 1 are:\n"
        "Dynamic configs for broker 2 are:\n"
        f"  {WAIT}=200 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{WAIT}=200, "
        f"DYNAMIC_DEFAULT_BROKER_CONFIG:{WAIT}=300, DEFAULT_CONFIG:{WAIT}=500}}\n"
        "Dynamic configs for broker 3 are:\n"
        "Default configs for brokers in the cluster are:\n"
        f"  {WAIT}=300 sensitive=false synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:{WAIT}=300, "
        f"DEFAULT_CONFIG:{WAIT}=500}}\n"
    )
    configs("--alter", "--broker", "2", "--delete-config", WAIT)
    configs("--alter", "--broker-defaults", "--delete-config", WAIT)
    assert configs("--describe", "--broker", "2") == "Dynamic configs for broker 2 are:\n"


@pytest.mark.parametrize(
    ("flags", "expected_message"),
    [
        (["--topic", "made", "--add-config", "zebra=1"], "there is no setting 'zebra'"),
        (["--topic", "made", "--add-config", "retention.m=1"], "did you mean retention.ms?"),
        (["--topic", "made", "--add-config", "retention.ms=-2"], "between -1 and"),
        (["--topic", "made", "--add-config", f"{LAG}=500"], "below replica.lag.time.max.ms (500)"),
        (["--topic", "missing", "--add-config", "retention.ms=1"], "no topic 'missing'"),
        (["--topic", "missing", "--add-config", f"{POLICY}=true-lag"], "no topic 'missing'"),
        (["--topic", "missing", "--add-config", f"{LAG}=900"], "no topic 'missing'"),
        (["--topic", "made", "--add-config", f"{POLICY}=sometimes"], "use messages or lag-begin"),
        (["--topic", "made", "--add-config", f"{POLICY}="], "use messages or lag-begin"),
        (["--broker", "1", "--add-config", f"{POLICY}=Caught-Up"], "use messages or lag-begin"),
        (["--broker-defaults", "--add-config", f"{POLICY}=no"], "use messages or lag-begin"),
        (["--topic", "made", "--add-config", f"{LAG}=-1"], f"{LAG} is -1; it must be between 1"),
        (["--broker", "2", "--add-config", f"{LAG}=-30000"], "it must be between 1 and"),
        (["--broker", "2", "--add-config", f"{WAIT}=-1"], "it must be between 0 and"),
        (["--broker-defaults", "--add-config", f"{PROCESS_TIME}=0"], "it must be between 1 and"),
        (["--topic", "made", "--add-config", f"{LAG}=2147483648"], "between 1 and 2147483647"),
        (["--topic", "made", "--add-config", f"{LAG}={'9' * 400}"], "is a number of 400 digits"),
        (["--broker", "2", "--add-config", f"{LAG}=1e9"], "write a whole number"),
        (["--broker", "2", "--add-config", f"{LAG}=soon"], "write a whole number"),
        (["--topic", "made", "--add-config", "min.insync.replicas=0"], "between 1 and"),
        (["--topic", "made", "--delete-config", "retention.ms"], "Invalid config(s): retention.ms"),
        (["--broker", "1", "--add-config", "node.id=7"], "node.id is read at start only"),
        (["--broker", "1", "--add-config", f"{WAIT}=30000"], "idle followers would leave"),
        (["--broker-defaults", "--add-config", f"{LAG}=0"], "between 1 and"),
        (["--broker", "9", "--add-config", f"{LAG}=9000"], "there is no live broker 9"),
    ],
)
def test_an_invalid_setting_is_one_line_and_changes_nothing(
    cluster: Cluster, configs: Run, flags: list[str], expected_message: str
) -> None:
    if "made" not in admin(cluster).list_topics(timeout=10).topics:
        create_topic(cluster, "made", partitions=1)
    assert expected_message in configs("--alter", *flags, expect=1)
    assert configs("--describe", "--topic", "made").count("\n") == 1
    assert configs("--describe", "--broker-defaults").count("\n") == 1
    assert "missing" not in admin(cluster).list_topics(timeout=10).topics


def test_the_command_lines_that_kip_73_prints(cluster: Cluster, configs: Run) -> None:
    create_topic(cluster, "throttled", partitions=2)
    leaders, followers = (f"{role}.replication.throttled" for role in ("leader", "follower"))
    topic = "--entity-type", "topic", "--entity-name", "throttled"
    for role in (leaders, followers):
        configs("--alter", "--add-config", f"{role}.replicas=0-1, 1-2", *topic)
    shown = configs("--describe", "--topic", "throttled")
    assert f"{leaders}.replicas=0:1,1:2 " in shown
    assert f"{followers}.replicas=0:1,1:2 " in shown
    said = configs("--alter", "--add-config", f"{leaders}.replicas=*", "--entity-type", "topic")
    assert "Completed updating config for topic throttled.\n" in said
    assert f"{leaders}.replicas=* " in configs("--describe", "--topic", "throttled")
    configs("--alter", "--add-config", f"{leaders}.rate=10000", "--entity-type", "broker")
    assert f"{leaders}.rate=10000 " in configs("--describe", "--broker-defaults")
    configs("--alter", "--broker-defaults", "--delete-config", f"{leaders}.rate")
    assert "is leader.replication.throttled.rate" in configs(
        *("--alter", "--add-config", f"{leaders}.replicas=10000"),
        *("--entity-type", "broker", "--entity-name", "1"),
        expect=2,
    )


def test_an_ignored_setting_gets_a_warning(configs: Run) -> None:
    name = "follower.fetch.process.time.max.ms"
    output = configs("--alter", "--broker", "1", "--add-config", f"{name}=700")
    warning, done = output.splitlines()
    assert warning.startswith(f"WARNING: {name} is ignored: it applies only with")
    assert done == "Completed updating config for broker 1."
    flag = "follower.fetch.pending.reads.insync.enable"
    configs("--alter", "--broker", "1", "--add-config", f"{flag}=true")
    expected_message = configs(
        *("--alter", "--broker", "1", "--add-config", "replica.in.sync.policy=lag-begin"), expect=1
    )
    assert "has no meaning with replica.in.sync.policy=lag-begin" in expected_message
    configs("--alter", "--broker", "1", "--delete-config", f"{name},{flag}")


def entry(name: str, value: str | None, how: AlterConfigOpType) -> Any:
    return ConfigEntry(name, value, incremental_operation=how)


def test_librdkafkas_admin_client(cluster: Cluster) -> None:
    create_topic(cluster, "by-librdkafka", partitions=1)
    client = admin(cluster)

    def altered(kind: ResourceType, name: str, *entries: Any, dry: bool = False) -> None:
        resource = ConfigResource(kind, name, incremental_configs=list(entries))
        described_configs = client.incremental_alter_configs(
            [resource], validate_only=dry, request_timeout=10
        )
        described_configs[resource].result(10)

    def described(kind: ResourceType, name: str) -> Any:
        resource = ConfigResource(kind, name)
        return client.describe_configs([resource], request_timeout=10)[resource].result(10)

    topic = ResourceType.TOPIC, "by-librdkafka"
    altered(*topic, entry("retention.ms", "77", AlterConfigOpType.SET), dry=True)
    assert described(*topic)["retention.ms"].value == "604800000"
    altered(*topic, entry("retention.ms", "77", AlterConfigOpType.SET))
    described_configs = described(*topic)["retention.ms"]
    assert (described_configs.value, described_configs.source) == (
        "77",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert not described_configs.is_default
    assert set(described_configs.synonyms) == {"retention.ms", "log.retention.ms"}
    altered(*topic, entry("retention.ms", None, AlterConfigOpType.DELETE))
    described_configs = described(*topic)["retention.ms"]
    assert (described_configs.value, described_configs.source) == (
        "604800000",
        ConfigSource.DEFAULT_CONFIG.value,
    )
    with pytest.raises(KafkaException, match="is no list"):
        altered(*topic, entry("retention.ms", "5", AlterConfigOpType.APPEND))
    for number in cluster.brokers:
        broker = ResourceType.BROKER, str(number)
        altered(*broker, entry(WAIT, f"{200 + number}", AlterConfigOpType.SET))
        described_configs = described(*broker)
        assert described_configs[WAIT].value == f"{200 + number}"
        assert described_configs[WAIT].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        assert described_configs["listeners"].is_read_only
        altered(*broker, entry(WAIT, None, AlterConfigOpType.DELETE))


def test_a_lower_lag_limit_evicts_a_stopped_follower_and_topics_shows_it(
    cluster: Cluster, configs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing restarts; with 30 s for a limit it would stay that long."""
    create_topic(cluster, "lag", partitions=1)
    await_in_sync(cluster, "lag")
    leader = leader_of(cluster, "lag")
    stopped = next(number for number in cluster.brokers if number != leader)
    cluster.pause(stopped)
    try:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **QUIET})
        producer.produce("lag", b"behind", partition=0)
        assert producer.flush(10) == 0
        assert len(partitions_of(cluster, "lag")[0].isrs) == 3
        flags = "--alter", "--topic", "lag"
        configs(*flags, "--add-config", f"{LAG}=1000,min.insync.replicas=3")
        eventually(
            lambda: stopped not in partitions_of(cluster, "lag")[0].isrs,
            within_s=5,
            what="the stopped follower leaves",
        )
        bootstrap = f"127.0.0.1:{cluster.brokers[leader].port}"
        shown = ["topics", "--bootstrap-server", bootstrap, "--describe", "--json"]
        assert cli.main([*shown, "--under-min-isr-partitions"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["topic"] == "lag"
        assert row["configs"] == {LAG: "1000", "min.insync.replicas": "3"}
        configs(*flags, "--add-config", "min.insync.replicas=2")
        assert cli.main([*shown, "--at-min-isr-partitions", "--topic", "lag"]) == 0
        assert len(json.loads(capsys.readouterr().out)) == 1
        acknowledged = IntegerProducer(cluster, "lag", partitions=1)
        acknowledged.send(10)
        acknowledged.flush()
        assert acknowledged.acknowledged_count == 10, "two are enough now"
    finally:
        cluster.resume(stopped)
    await_in_sync(cluster, "lag")


def test_a_new_max_message_bytes_applies_at_once(cluster: Cluster, configs: Run) -> None:
    create_topic(cluster, "small", partitions=1)

    def outcome() -> str:
        results: list[str] = []
        settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET}
        producer = Producer(settings)
        producer.produce("small", bytes(5_000), on_delivery=lambda e, _: results.append(str(e)))
        assert producer.flush(20) == 0
        return results[0]

    assert outcome() == "None"
    configs("--alter", "--topic", "small", "--add-config", "max.message.bytes=1000")
    assert "MSG_SIZE_TOO_LARGE" in outcome()
    configs("--alter", "--topic", "small", "--delete-config", "max.message.bytes")
    assert outcome() == "None"
