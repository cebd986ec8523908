"""The control socket: commands arrive, other lines get one error line, and it stays open."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from insync.testing import commands
from insync.testing.commands import BadCommand, Command, encode, parse
from insync.testing.control import SOCKET_NAME, CommandRefused, ControlSocket, send_command

EVERY_COMMAND: list[Command] = [
    commands.SlowReads(delay_ms=5, topic="orders", partition=3),
    commands.FailReads(topic="orders"),
    commands.FailWrites(error="EIO", after_bytes=7),
    commands.CutBroker(broker=2, port=9092, sends=False),
    commands.CutClients(),
    commands.MendBroker(broker=2),
    commands.ShiftWallClock(by_ms=-5),
    commands.Heal(),
]

HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"heal",
    "no UTF-8": b'{"do": "\xff"}',
    "no object": b'["heal"]',
    "too deep": b"[" * 3_000,
    "no command": b"{}",
    "an unknown command": b'{"do": "explode"}',
    "a command that is no name": b'{"do": ["heal"]}',
    "a field too many": b'{"do": "heal", "broker": 1}',
    "a field too few": b'{"do": "slow-reads"}',
    "the wrong type": b'{"do": "slow-reads", "delay_ms": "5"}',
    "a boolean for a number": b'{"do": "slow-reads", "delay_ms": true}',
    "a fraction": b'{"do": "slow-reads", "delay_ms": 0.5}',
    "not a number": b'{"do": "slow-reads", "delay_ms": NaN}',
    "negative": b'{"do": "slow-reads", "delay_ms": -1}',
    "huge": b'{"do": "shift-wall-clock", "by_ms": 99999999999999999999}',
    "digits without end": b'{"do": "heal", "x": ' + b"9" * 4_000 + b"}",
    "another error": b'{"do": "fail-reads", "error": "EPERM"}',
    "a partition of no topic": b'{"do": "fail-reads", "partition": 1}',
}


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: type(command).__name__)
def test_a_command_survives_the_wire(command: Command) -> None:
    assert parse(encode(command)) == command


def test_every_command_is_tested() -> None:
    assert {type(command) for command in EVERY_COMMAND} == set(commands.NAMES.values())


@pytest.mark.parametrize("what", HOSTILE)
def test_anything_else_is_refused_in_one_line(what: str) -> None:
    with pytest.raises(BadCommand) as refusal:
        parse(HOSTILE[what])
    assert 0 < len(str(refusal.value)) < 300
    assert "\n" not in str(refusal.value)


class Broker:
    """Records commands instead of performing them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.performed: list[Command] = []

    def perform(self, command: Command) -> None:
        if command == commands.CutClients():
            raise CommandRefused("not this one")
        if command == commands.Heal():
            time.sleep(1)
        self.performed.append(command)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / ("deep" * 40)  # longer than the kernel lets a socket's name be
    folder.mkdir()
    broker = Broker(folder)
    with ControlSocket(folder, broker.perform):
        yield broker
    assert not (folder / SOCKET_NAME).exists()


def test_a_command_is_performed_when_send_command_returns(broker: Broker) -> None:
    send_command(broker.folder, commands.MendBroker(broker=2), within_s=5)
    assert broker.performed == [commands.MendBroker(broker=2)]


def test_a_refusal_comes_back(broker: Broker) -> None:
    with pytest.raises(CommandRefused, match="not this one"):
        send_command(broker.folder, commands.CutClients(), within_s=5)


def test_no_response_and_no_broker_are_different_errors(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="no response within"):
        send_command(broker.folder, commands.Heal(), within_s=0.05)
    with pytest.raises(CommandRefused, match="no broker with faults runs"):
        send_command(tmp_path, commands.Heal(), within_s=5)
    with pytest.raises(CommandRefused, match="no broker with faults runs"):
        send_command(tmp_path / "nowhere", commands.Heal(), within_s=5)


def connected(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    monkeypatch.chdir(broker.folder)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(SOCKET_NAME)
    return connection


def test_malformed_lines_are_refused_and_the_next_one_is_performed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(broker, monkeypatch) as connection, connection.makefile("rwb") as lines:
        for line in HOSTILE.values():
            lines.write(line + b"\n")
            lines.flush()
            assert set(json.loads(lines.readline())) == {"error"}
        lines.write(encode(commands.MendBroker(broker=1)))
        lines.flush()
        assert json.loads(lines.readline()) == {"ok": True}
    assert broker.performed == [commands.MendBroker(broker=1)]


def test_a_line_that_is_too_long_ends_its_connection_and_others_are_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        connected(broker, monkeypatch),  # one that says nothing at all
        connected(broker, monkeypatch) as connection,
        connection.makefile("rwb") as lines,
    ):
        lines.write(b"x" * (commands.LINE_BYTES_MAX + 1))
        lines.flush()
        assert "at most" in json.loads(lines.readline())["error"]
        assert lines.readline() == b""
        send_command(broker.folder, commands.MendBroker(broker=1), within_s=5)


def test_a_socket_left_by_a_killed_process_is_replaced(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    (tmp_path / SOCKET_NAME).touch()
    with ControlSocket(tmp_path, broker.perform):
        send_command(tmp_path, commands.MendBroker(broker=1), within_s=5)
    with pytest.raises(CommandRefused):
        send_command(tmp_path, commands.MendBroker(broker=1), within_s=5)
