"""`insync configs` before it connects: which flags go together, and the lines it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.cli import configs
from insync.cli import main as cli
from insync.client.admin import ConfigValue, Synonym
from insync.wire.configs import ConfigSource

NO_BROKER = "127.0.0.1:1"  # no process listens there: a connection is refused
TOPIC = "--alter", "--topic", "t"
LEADERS, FOLLOWERS = configs.RATE_OF_LIST


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["configs", "--bootstrap-server", NO_BROKER, *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "exactly one of --alter, --describe"),
        (["--alter", "--describe", "--topic", "t"], "exactly one of --alter, --describe"),
        (["--describe"], "exactly one of --entity-type"),
        (["--describe", "--topic", "t", "--broker", "1"], "exactly one of --entity-type"),
        (["--describe", "--topic", "t", "--entity-name", "t"], "go with --entity-type"),
        (["--describe", "--entity-type", "top"], "'top' is not known; use topics or brokers"),
        (["--describe", "--entity-type", "users"], "'users' are not configured with insync"),
        (["--describe", "--entity-type", "topics", "--entity-default"], "no default of their own"),
        (
            ["--describe", "--entity-type", "brokers", "--entity-default", "--entity-name", "1"],
            "--entity-name does not go with --entity-default",
        ),
        (["--describe", "--broker", "one"], "'one' is no broker id"),
        (["--describe", "--broker", "-1"], "'-1' is no broker id"),
        (["--describe", "--broker", "2147483648"], "is no broker id"),
        (["--describe", "--topic", ""], "a name is empty"),
        (["--describe", "--topic", "t", "--add-config", "a=b"], "use --alter"),
        (["--alter", "--topic", "t", "--all", "--add-config", "a=b"], "--all does not go"),
        (["--alter", "--entity-type", "topics", "--add-config", "a=b"], "needs --entity-name"),
        ([*TOPIC], "needs --add-config"),
        ([*TOPIC, "--add-config", " "], "needs --add-config"),
        ([*TOPIC, "--add-config", "a=b", "--add-config-file", "f"], "does not go with"),
        ([*TOPIC, "--add-config", "a"], "'a' is not of the form KEY=VALUE"),
        ([*TOPIC, "--add-config", "a=[b,c"], "'c' is not of the form KEY=VALUE"),
        ([*TOPIC, "--add-config", "=b"], "not of the form KEY=VALUE"),
        ([*TOPIC, "--add-config", "a=b", "--delete-config", "a"], "both set and deleted"),
        # As KIP-73 prints it for brokers.
        (
            ["--alter", "--broker", "1", "--add-config", f"{LEADERS}=10000"],
            "the rate in B/s is leader.replication.throttled.rate",
        ),
        (
            ["--alter", "--broker", "1", "--add-config", f"{FOLLOWERS}=10000"],
            "the rate in B/s is follower.replication.throttled.rate",
        ),
        ([*TOPIC, "--add-config", f"{LEADERS}=10000"], "the rate in B/s is leader.replication"),
    ],
)
def test_invalid_flag_combinations_are_usage_errors(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    code, out, err = run(capsys, *flags)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_missing_or_malformed_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    code, _, err = run(capsys, *TOPIC, "--add-config-file", str(missing))
    assert (code, err) == (1, f"insync: cannot read {missing}: No such file or directory\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    code, _, err = run(capsys, *TOPIC, "--add-config-file", str(binary))
    assert (code, err) == (1, f"insync: {binary} is not UTF-8 text\n")


def test_unreachable_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *TOPIC, "--add-config", "retention.ms=1")
    assert (code, out) == (1, "")
    assert err == f"insync: cannot reach {NO_BROKER}: Connection refused\n"


def test_brackets_keep_commas_together() -> None:
    settings = configs._parse_pairs("a=1, b=[2,3],c=[],d==e")
    assert settings == {"a": "1", "b": "2,3", "c": "", "d": "=e"}
    assert configs._parse_names(" a, b,,a ") == ["a", "b"]


@pytest.mark.parametrize("list_name", [LEADERS, FOLLOWERS])
def test_throttled_replicas_as_kip_73_writes_them(list_name: str) -> None:
    expected = {list_name: "0:1,1:2"}
    for written in ("0-1, 1-2", "0:1,1:2", "[0-1, 1-2]", " 0 - 1 , 1-2 "):
        assert configs._parse_pairs(f"{list_name}={written}") == expected
    assert configs._parse_pairs(f"{list_name}=0-1, 1-2,a=3") == {**expected, "a": "3"}
    assert configs._parse_pairs(f"{list_name}=*") == {list_name: "*"}


@pytest.mark.parametrize(
    "flags",
    [
        ["--add-config", f"{LEADERS}=0-1, 1-2", "--entity-type", "topic", "--entity-name", "t"],
        ["--add-config", f"{FOLLOWERS}=0-1, 1-2", "--entity-type", "topic", "--entity-name", "t"],
        ["--add-config", f"{LEADERS}=*", "--entity-type", "topic"],
        ["--add-config", "leader.replication.throttled.rate=10000", "--entity-type", "broker"],
    ],
)
def test_the_command_lines_of_kip_73_reach_the_cluster(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    code, _, err = run(capsys, "--alter", *flags)
    assert (code, err) == (1, f"insync: cannot reach {NO_BROKER}: Connection refused\n")


def test_lines_are_those_of_kafka_configs() -> None:
    """As kafka-configs 4.3.1 printed it."""
    config = ConfigValue(
        name="retention.ms",
        value="77",
        source=ConfigSource.TOPIC,
        is_read_only=False,
        synonyms=(
            Synonym(name="retention.ms", value="77", source=ConfigSource.TOPIC),
            Synonym(name="log.retention.ms", value=None, source=ConfigSource.DEFAULT),
        ),
    )
    assert configs._line(config) == (
        "  retention.ms=77 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=77, "
        "DEFAULT_CONFIG:log.retention.ms=null}"
    )
