"""`insync reassign` and `insync throttle` before they connect, and what they print."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path

import pytest
from rich.console import Console

from insync.cli import main as cli
from insync.cli import move_view, quantities, reassign_lines
from insync.cli.reassign import gives_up_after_ms
from insync.client.admin import Move
from insync.moves.progress import BrokerProgress, MoveProgress
from insync.moves.throttle import ALL_BROKERS, ThrottleRemoval
from insync.rules.refusals import BadSetting
from insync.rules.values import BrokerId, PartitionId

NO_BROKER = "127.0.0.1:1"  # no process listens there: a connection is refused
PLAN = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(PLAN)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    command, *rest = arguments
    code = cli.main([command, "--bootstrap-server", NO_BROKER, *rest])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "exactly one of --generate, --plan, --execute"),
        (["--list", "--sweep"], "exactly one of"),
        (["--generate"], "--generate needs --topics-to-move-json-file"),
        (["--execute"], "--execute needs --reassignment-json-file"),
        (["--verify"], "--verify needs --reassignment-json-file"),
        (["--cancel"], "--cancel needs --reassignment-json-file"),
        (["--list", "--force"], "--force does not go with --list"),
        (["--list", "--throttle", "1"], "--throttle does not go with --list"),
        (["--verify", "--reassignment-json-file", "F", "--timeout", "1"], "--timeout does not go"),
        (["--cancel", "--reassignment-json-file", "F", "--additional"], "--additional does not"),
        (["--execute", "--reassignment-json-file", "F", "--finish-in", "1m"], "--finish-in does"),
        (["--watch", "--force"], "--force does not go with --watch"),
        (["--plan", "F", "--max-impact", "30%"], "--max-impact is a fraction of the network"),
    ],
)
def test_invalid_flag_combinations_are_usage_errors(
    capsys: pytest.CaptureFixture[str], plan: str, flags: list[str], message: str
) -> None:
    arguments = [plan if each == "F" else each for each in flags]
    code, out, err = run(capsys, "reassign", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--throttle", "0"], "--throttle: '0' must be at least 1 B/s"),
        (["--throttle", "-5"], "--throttle: '-5' is no rate; write bytes per second above 0"),
        (["--throttle", "fast"], "--throttle: 'fast' is no rate"),
        (["--throttle", ""], "--throttle: '' is no rate"),
        (["--throttle", "10XB"], "--throttle: '10XB' is no rate"),
        (["--throttle", "9" * 40], "is no rate"),
        (["--throttle", "9999999999999GB"], "at most 9223372036854775807"),
        (["--replication-quota", "zero"], "'zero' is no rate"),
        (["--timeout", "0"], "--timeout: '0' is no time"),
        (["--timeout", "soon"], "--timeout: 'soon' is no time"),
        (["--network", "wide"], "--network: 'wide' is no network; write it as 1Gbit"),
        (["--replica-alter-log-dirs-throttle", "5"], "not between directories of one"),
    ],
)
def test_malformed_quantities(
    capsys: pytest.CaptureFixture[str], plan: str, flags: list[str], message: str
) -> None:
    code, out, err = run(capsys, "reassign", "--execute", "--reassignment-json-file", plan, *flags)
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_error_of_a_malformed_plan_names_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(PLAN.replace("1,", "7,", 1))
    code, out, err = run(capsys, "reassign", "--execute", "--reassignment-json-file", str(path))
    assert (code, out) == (1, "")
    assert f"{path}: version 7 is not known" in err
    code, _, err = run(capsys, "reassign", "--plan", str(tmp_path / "none"))
    assert code == 1
    assert "No such file" in err


@pytest.mark.parametrize(
    ("brokers", "message"),
    [
        ("1,x", "'x' is no broker id"),
        ("", "'' is no broker id"),
        ("1,1", "broker 1 is listed more than once"),
        ("99999999999", "is no broker id"),
        ("-1", "'-1' is no broker id"),
    ],
)
def test_a_malformed_broker_list(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, brokers: str, message: str
) -> None:
    topics = tmp_path / "topics.json"
    topics.write_text('{"version":1,"topics":[{"topic":"t"}]}')
    flags = ["--topics-to-move-json-file", str(topics), f"--broker-list={brokers}"]
    code, _, err = run(capsys, "reassign", "--generate", *flags)
    assert code == 1
    assert message in err


def test_kafkas_value_for_no_throttle_is_accepted(
    capsys: pytest.CaptureFixture[str], plan: str
) -> None:
    flags = ["--throttle", "-1", "--replica-alter-log-dirs-throttle", "-1"]
    code, _, err = run(capsys, "reassign", "--execute", "--reassignment-json-file", plan, *flags)
    assert code == 1
    assert "cannot reach 127.0.0.1:1" in err


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--broker", "4", "--throttle", "5"], 2, "give --bootstrap"),
        (["--broker", "4", "--bootstrap"], 2, "--throttle"),
        (["--broker", "-4", "--bootstrap", "--throttle", "5"], 2, "--broker"),
        (["--broker", "4", "--bootstrap", "--throttle", "0"], 1, "must be at least 1 B/s"),
        (["--broker", "4", "--bootstrap", "--throttle", "5"], 1, "cannot reach"),
        (["--broker", "4", "--bootstrap", "--throttle", "5", "--timeout", "1s"], 1, "is no time"),
    ],
)
def test_flags_of_the_throttle_command(
    capsys: pytest.CaptureFixture[str], flags: list[str], code: int, message: str
) -> None:
    got, out, err = run(capsys, "throttle", *flags)
    assert (got, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    ("timeout_ms", "is_on_terminal", "given_up_after_ms"),
    [(None, True, None), (None, False, 30_000), (5_000, True, 5_000), (90_000, False, 90_000)],
)
def test_the_limit_on_waiting_for_a_broker_that_is_down(
    timeout_ms: int | None, given_up_after_ms: int | None, *, is_on_terminal: bool
) -> None:
    assert gives_up_after_ms(timeout_ms, 30, is_on_terminal=is_on_terminal) == given_up_after_ms


def test_quantities_as_people_write_them() -> None:
    assert quantities.rate("10000", flag="f") == 10_000
    assert quantities.rate("10MB", flag="f") == quantities.rate("10 mb/s", flag="f") == 10_000_000
    assert quantities.rate("1.5MiB", flag="f") == 3 * 2**19
    assert quantities.network("1Gbit", flag="f") == 125_000_000
    assert quantities.network("10 Gbit/s", flag="f") == 1_250_000_000
    assert quantities.network("100Mbps", flag="f") == 12_500_000
    assert quantities.network("125MB", flag="f") == 125_000_000
    assert quantities.seconds("30m", flag="f") == 1_800
    assert quantities.seconds("1h30m", flag="f") == 5_400
    assert quantities.fraction("30%", flag="f") == Fraction(3, 10)
    for text in ("0s", "", "5", "m", "1h 30m", "1x"):
        with pytest.raises(BadSetting, match="is no span of time"):
            quantities.seconds(text, flag="f")
    for text in ("0%", "101%", "30", "%"):
        with pytest.raises(BadSetting, match="is no fraction of the network"):
            quantities.fraction(text, flag="f")


# The words.

PROGRESS = MoveProgress(
    at_ms=0,
    brokers=(
        BrokerProgress(
            broker=BrokerId(3),
            copies=2,
            moving=1,
            done_bytes=75_000_000,
            left_bytes=25_000_000,
            rate_bytes_per_s=10_000_000,
            inbound_bytes_per_s=0,
            limit_bytes_per_s=10_000_000,
            left_ms=2_500,
        ),
    ),
    silent={BrokerId(1): "is down"},
    stuck="SumReplicaLag not falling",
)


def test_progress_in_one_line_and_on_a_screen() -> None:
    assert move_view.line(PROGRESS) == (
        "75% 75 MB done, 25 MB left at 10 MB/s, ends in 2.5 s (1 of 2 replicas move)"
    )
    out = io.StringIO()
    Console(file=out, width=140, color_system=None).print(move_view.view(PROGRESS))
    text = out.getvalue()
    assert "75%" in text
    assert "10 MB/s" in text
    assert "total" in text
    assert "broker 1: is down" in text
    assert "STUCK: SumReplicaLag not falling" in text
    assert json.loads(json.dumps(move_view.data(PROGRESS)))["brokers"][0]["left_ms"] == 2_500
    assert move_view.percent(0, 0) == 100


def test_kafkas_line_of_a_move() -> None:
    """The example of kafka-facts: as Apache Kafka's tool prints it."""

    def ids(*numbers: int) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(each) for each in numbers)

    move = Move(replicas=ids(0, 1, 2, 3), adding=ids(3), removing=ids(2))
    assert reassign_lines.under_way({("t", PartitionId(0)): move}) == (
        "Current partition reassignments:\nt-0: replicas: 0,1,2,3. adding: 3. removing: 2.\n"
    )
    ended = ThrottleRemoval(brokers=(ALL_BROKERS, *ids(1)), topics=("t",))
    assert reassign_lines.cleared(ended).splitlines() == [
        "Clearing broker-level throttles on broker 1",
        "Clearing the default throttle of all brokers",
        "Clearing topic-level throttles on topic t",
    ]
