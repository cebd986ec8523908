"""Apache Kafka's configs tool on our brokers, and ours on Apache Kafka's: the same lines."""

from __future__ import annotations

import re

import pytest

from insync.cli import main as cli
from insync.testing.cluster import Cluster
from peers.apache_kafka import ApacheKafka, java_tool
from support.cluster.clients import create_topic, eventually
from support.interop.kafka_clients import java, run

pytestmark = pytest.mark.interop

LAG, WAIT = "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"


def kafka_configs(bootstrap: str, *arguments: str) -> str:
    tool = java_tool("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, *arguments)
    return run(tool, within_s=120)


def insync_configs(capsys: pytest.CaptureFixture[str], bootstrap: str, *arguments: str) -> str:
    assert cli.main(["configs", "--bootstrap-server", bootstrap, *arguments]) == 0
    return capsys.readouterr().out


def test_kafka_configs_on_our_brokers(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A topic, one broker, all brokers: changed and shown, by the lines that our command prints."""
    create_topic(cluster, "configured", partitions=1)

    def kafkas(*arguments: str) -> str:
        return kafka_configs(cluster.bootstrap, *arguments)

    topic = "--entity-type", "topics", "--entity-name", "configured"
    changed = f"retention.ms=77,{LAG}=9000,min.insync.replicas=3"
    output = kafkas("--alter", *topic, "--add-config", changed)
    assert output == "Completed updating config for topic configured.\n"
    output = kafkas("--alter", "--broker", "2", "--add-config", f"{WAIT}=200")
    assert output == "Completed updating config for broker 2.\n"
    default = "--entity-type", "brokers", "--entity-default"
    output = kafkas("--alter", *default, "--add-config", f"{WAIT}=300")
    assert output == "Completed updating default config for brokers in the cluster.\n"
    shown = kafkas("--describe", "--entity-type", "brokers")
    assert shown == (
        "Dynamic configs for broker 1 are:\n"
        "Dynamic configs for broker 2 are:\n"
        f"  {WAIT}=200 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{WAIT}=200, "
        f"DYNAMIC_DEFAULT_BROKER_CONFIG:{WAIT}=300, DEFAULT_CONFIG:{WAIT}=500}}\n"
        "Dynamic configs for broker 3 are:\n"
        "Default configs for brokers in the cluster are:\n"
        f"  {WAIT}=300 sensitive=false synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:{WAIT}=300, "
        f"DEFAULT_CONFIG:{WAIT}=500}}\n"
    )
    for flags in (topic, ("--broker", "2", "--all"), ("--topic", "configured", "--all"), default):
        shown = kafkas("--describe", *flags)
        assert shown == insync_configs(capsys, cluster.bootstrap, "--describe", *flags)
    described = java(
        "TopicCommand",
        *("--bootstrap-server", cluster.bootstrap, "--describe", "--topic", "configured"),
    )
    assert "min.insync.replicas=3" in described
    kafkas("--alter", *topic, "--delete-config", f"retention.ms,{LAG}")
    kafkas("--alter", "--broker", "2", "--delete-config", WAIT)
    kafkas("--alter", *default, "--delete-config", WAIT)
    assert kafkas("--describe", "--broker", "2") == "Dynamic configs for broker 2 are:\n"
    assert re.findall(r"^  (\S+)=3 ", kafkas("--describe", *topic), re.MULTILINE) == [
        "min.insync.replicas"
    ]


def test_rules_and_throttles_by_kafka_configs(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, "ruled", partitions=1)
    topic = "--entity-type", "topics", "--entity-name", "ruled"
    default = "--entity-type", "brokers", "--entity-default"
    of_topic = {
        "replica.in.sync.policy": "true-lag",
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "*",
    }
    of_brokers = {
        "follower.fetch.pending.reads.insync.enable": "true",
        "follower.fetch.process.time.max.ms": "700",
        "replica.fetch.response.max.bytes": "5000000",
        "leader.replication.throttled.rate": "1000000",
        "follower.replication.throttled.rate": "2000000",
        "replication.quota.window.num": "5",
        "replication.quota.window.size.seconds": "2",
    }
    for entity, settings in ((topic, of_topic), (default, of_brokers)):
        changes = ",".join(f"{name}=[{value}]" for name, value in settings.items())
        kafka_configs(cluster.bootstrap, "--alter", *entity, "--add-config", changes)
        shown = insync_configs(capsys, cluster.bootstrap, "--describe", *entity)
        for name, value in settings.items():
            assert f"  {name}={value} " in shown
        insync_configs(
            capsys, cluster.bootstrap, "--alter", *entity, "--delete-config", ",".join(settings)
        )
        shown = kafka_configs(cluster.bootstrap, "--describe", *entity)
        assert not [name for name in settings if name in shown]


def test_kafka_configs_gets_refusals_with_messages(cluster: Cluster, topic: str) -> None:
    for arguments, reason in (
        (["--topic", topic, "--add-config", "zebra=1"], "there is no setting 'zebra'"),
        (["--topic", topic, "--add-config", f"{LAG}=500"], "below replica.lag.time.max.ms"),
        (["--broker", "1", "--add-config", f"{WAIT}=30000"], "below replica.lag.time.max.ms"),
        (["--broker-defaults", "--add-config", "node.id=7"], "read at start only"),
        (["--topic", "missing", "--add-config", "retention.ms=7"], "there is no topic 'missing'"),
    ):
        with pytest.raises(AssertionError, match=re.escape(reason)):
            kafka_configs(cluster.bootstrap, "--alter", *arguments)


def test_our_command_on_apache_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    with ApacheKafka(nodes=1) as kafka:

        def ours(*arguments: str) -> str:
            return insync_configs(capsys, kafka.bootstrap, *arguments)

        create = "--create", "--topic", "t", "--partitions", "1"
        assert cli.main(["topics", "--bootstrap-server", kafka.bootstrap, *create]) == 0
        capsys.readouterr()
        error = ours("--alter", "--topic", "t", "--add-config", "retention.ms=77,flush.ms=5")
        assert error == "Completed updating config for topic t.\n"

        def is_described(setting: str, *flags: str) -> None:
            """A broker learns of a change some time after the controller has taken it."""
            eventually(lambda: setting in ours("--describe", *flags), within_s=30, what=setting)

        is_described("flush.ms=5", "--topic", "t")
        ours("--alter", "--topic", "t", "--delete-config", "flush.ms")
        ours("--alter", "--broker", "1", "--add-config", "log.cleaner.threads=2")
        error = ours("--alter", "--broker-defaults", "--add-config", "message.max.bytes=1000000")
        assert error == "Completed updating default config for brokers in the cluster.\n"
        is_described("message.max.bytes=1000000", "--broker-defaults")
        for flags in (
            ["--topic", "t"],
            ["--topic", "t", "--all"],
            ["--entity-type", "brokers"],
            ["--broker", "1", "--all"],
            ["--broker-defaults"],
        ):
            shown = ours("--describe", *flags)
            assert shown == kafka_configs(kafka.bootstrap, "--describe", *flags)
        assert "retention.ms=77" in ours("--describe", "--topic", "t")
        refused = ["configs", "--bootstrap-server", kafka.bootstrap, "--alter"]
        for arguments, reason in (
            (["--topic", "t", "--add-config", "zebra=1"], "Unknown topic config name: zebra"),
            (["--topic", "u", "--add-config", "retention.ms=1"], "UNKNOWN_TOPIC_OR_PARTITION"),
            (
                ["--broker", "9", "--add-config", "a=1"],
                "there is no live broker 9; live brokers: 1",
            ),
        ):
            assert cli.main([*refused, *arguments]) == 1
            error = capsys.readouterr().err
            assert reason in error
            assert error.count("\n") == 1
