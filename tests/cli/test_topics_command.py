"""`insync topics` before it connects: which flags go together, and the lines it prints."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from insync.cli import main as cli
from insync.cli import topic_lines
from insync.client.admin import ConfigValue, Move, Partition, Topic
from insync.rules.values import BrokerId
from insync.wire.configs import ConfigSource

NO_BROKER = "127.0.0.1:1"  # no process listens there: a connection is refused


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["topics", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "exactly one of"),
        (["--list", "--describe"], "exactly one of"),
        (["--create"], "--create needs --topic"),
        (["--delete"], "--delete needs --topic"),
        (["--alter", "--topic", "t"], "--alter needs --partitions"),
        (["--delete", "--topic", "t", "--partitions", "3"], "--partitions does not go with"),
        (["--alter", "--topic", "t", "--partitions", "3", "--config", "a=b"], "--config does not"),
        (["--list", "--topic-id", "x"], "--topic-id does not go with --list"),
        (["--list", "--if-exists"], "--if-exists does not go with --list"),
        (["--describe", "--if-exists"], "--if-exists needs --topic or --topic-id"),
        (["--describe", "--topic", "t", "--topic-id", "x"], "--topic does not go with --topic-id"),
        (
            ["--describe", "--under-replicated-partitions", "--unavailable-partitions"],
            "--under-replicated-partitions does not go with --unavailable-partitions",
        ),
        (["--list", "--under-min-isr-partitions"], "--under-min-isr-partitions does not go"),
        (
            ["--create", "--topic", "t", "--replica-assignment", "1", "--partitions", "1"],
            "--replica-assignment does not go with --partitions",
        ),
        (["--create", "--topic", "t", "--partitions", "0"], "--partitions is 0"),
        (["--create", "--topic", "t", "--replication-factor", "32768"], "between 1 and 32767"),
        (["--create", "--topic", "t", "--replica-assignment", "1:x"], "'x' is no broker id"),
        (["--create", "--topic", "t", "--replica-assignment", "1:2,"], "'' is no broker id"),
        (["--create", "--topic", "t", "--replica-assignment", "1:1"], "names a broker twice"),
        (["--create", "--topic", "t", "--replica-assignment", "1:2,1"], "partition 1 has 1"),
        (["--create", "--topic", "t", "--config", "a"], "not of the form KEY=VALUE"),
        (["--describe", "--topic", "("], "no regular expression"),
        (["--create", "--topic", "t", "--partitions", "x"], "'--partitions'"),
    ],
)
def test_invalid_flag_combinations_are_usage_errors(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    code, out, err = run(capsys, "--bootstrap-server", NO_BROKER, *flags)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("address", ["nonsense", "a:0", ""])
def test_a_malformed_address(capsys: pytest.CaptureFixture[str], address: str) -> None:
    code, _, err = run(capsys, "--bootstrap-server", address, "--list")
    assert code == 2
    assert "HOST:PORT" in err


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("security.protocol=SSH\n", "security.protocol is 'SSH'; it is one of PLAINTEXT, SSL"),
        ("security.protocol=SASL_SSL\n", "sasl.mechanism is GSSAPI, Kafka's default"),
        ("request.timeout.ms=soon\n", "request.timeout.ms is 'soon'"),
        ("default.api.timeout.ms=0\n", "default.api.timeout.ms is '0'"),
        ("nonsense\n", "not of the form key=value"),
    ],
)
def test_unusable_client_properties_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, properties: str, message: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(properties)
    code, out, err = run(
        capsys, "--bootstrap-server", NO_BROKER, "--list", "--command-config", str(file)
    )
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_unreachable_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--bootstrap-server", NO_BROKER, "--list")
    assert (code, out) == (1, "")
    assert err == f"insync: cannot reach {NO_BROKER}: Connection refused\n"


@pytest.mark.parametrize("properties", ["", "security.protocol=SSL"])
def test_an_impossible_host_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, properties: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(properties)
    config = "--command-config", str(file)
    code, out, err = run(capsys, "--bootstrap-server", "a..b:9092", "--list", *config)
    assert (code, out) == (1, "")
    assert err == "insync: cannot reach a..b:9092: no host can have this name\n"


def brokers(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def test_the_lines_are_those_of_kafka_topics() -> None:
    """As kafka-topics 4.3.1 printed them, moves and an unled partition added by its own texts."""
    topic = Topic(
        name="plain",
        topic_id=UUID(bytes=bytes.fromhex("b31bc99b6d084b95953ed1a9e47cd806")),
        is_internal=False,
        partitions=(
            Partition(
                number=0,
                leader=BrokerId(1),
                replicas=brokers(1, 2),
                isr=brokers(1),
                elr=(),
                last_known_elr=brokers(2),
            ),
            Partition(
                number=1,
                leader=None,
                replicas=brokers(1, 2),
                isr=brokers(2),
                move=Move(replicas=brokers(1, 2), adding=brokers(1), removing=()),
            ),
        ),
    )
    settings = {
        name: ConfigValue(name=name, value=value, source=source, is_read_only=False)
        for name, value, source in [
            ("min.insync.replicas", "1", ConfigSource.DYNAMIC_DEFAULT_BROKER),
            ("retention.ms", "5000", ConfigSource.TOPIC),
            ("segment.ms", "7", ConfigSource.DEFAULT),
        ]
    }
    row = topic_lines.topic_row(topic, settings)
    row["partitions"] = [topic_lines.partition_row(part) for part in topic.partitions]
    lines = topic_lines.text([row], with_topics=True)
    assert lines == (
        "Topic: plain\tTopicId: sxvJm20IS5WVPtGp5HzYBg\tPartitionCount: 2\tReplicationFactor: 2\t"
        "Configs: min.insync.replicas=1,retention.ms=5000\n"
        "\tTopic: plain\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1\tElr: \tLastKnownElr: 2\n"
        "\tTopic: plain\tPartition: 1\tLeader: none\tReplicas: 1,2\tIsr: 2\tAdding Replicas: 1\t"
        "Removing Replicas: \tElr: N/A\tLastKnownElr: N/A\n"
    )
    assert topic_lines.text([row], with_topics=False) == lines.split("\n", 1)[1]
