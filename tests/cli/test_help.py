"""Every `--help`: an example that parses, defaults that are shown, summaries that are whole."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from insync.cli import main as cli
from insync.cli.help import EXAMPLES

INSYNC = Path(sys.executable).with_name("insync")
EVERY = get_command(cli._app([]))


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*words, name))


COMMANDS = dict(walk(EVERY))
LEAVES = {words: command for words, command in COMMANDS.items() if not hasattr(command, "commands")}


def help_of(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> str:
    assert cli.main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_has_an_example(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    text = help_of(capsys, words)
    examples = text.partition("\n  Examples:\n")[2].splitlines()
    assert examples
    assert all(example.startswith("    ") for example in examples)
    assert examples[0].split()[: len(words) + 1] == ["insync", *words]


def test_every_example_is_of_an_existing_command() -> None:
    assert set(EXAMPLES) == {" ".join(("insync", *words)) for words in COMMANDS}


@pytest.mark.parametrize(
    "example",
    [
        line
        for text in EXAMPLES.values()
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip()
    ],
    ids=lambda example: " ".join(example.split()),
)
def test_the_examples_have_flags_that_exist(example: str) -> None:
    program, *arguments = shlex.split(example)
    assert program == "insync"
    words = max(
        (words for words in LEAVES if tuple(arguments[: len(words)]) == words),
        key=len,
    )
    command = LEAVES[words]
    command.make_context("insync", arguments[len(words) :])


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_defaults_are_shown(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    text = " ".join(help_of(capsys, words).split())
    for parameter in LEAVES[words].params:
        has_default = parameter.default not in (None, False, ()) or parameter.show_default not in (
            True,
            False,
        )
        if has_default and not getattr(parameter, "is_flag", False):
            flag = re.escape(max((*parameter.opts, parameter.metavar or ""), key=len))
            assert re.search(rf"{flag}\b[^\[]*\[[^\]]*default: ", text), parameter.name


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_summary_is_cut(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    text = help_of(capsys, words)
    for name, below in getattr(COMMANDS[words], "commands", {}).items():
        summary = " ".join((below.help or "").split("\n\n")[0].split())
        assert f"{name} {summary}" in " ".join(text.replace("-\n", "-").split()).replace("- ", "-")


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_option_has_a_help_text(words: tuple[str, ...]) -> None:
    for parameter in LEAVES[words].params:
        assert parameter.help, parameter.name
        if words[0] != "pipeline":
            assert "usual" not in parameter.help


@pytest.mark.parametrize(
    "words", [words for words in LEAVES if "broker" not in words], ids=" ".join
)
def test_brokers_have_one_short_flag_and_a_variable(words: tuple[str, ...]) -> None:
    for parameter in LEAVES[words].params:
        if "--bootstrap-server" in parameter.opts:
            assert "-b" in parameter.opts
            assert parameter.envvar == "INSYNC_BOOTSTRAP"


def test_the_variable_stands_for_the_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["topics", "--list"]) == 2
    monkeypatch.setenv("INSYNC_BOOTSTRAP", "nowhere")
    assert cli.main(["topics", "--list"]) == 2
    assert "'nowhere' is not HOST:PORT" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("insync clu", ["cluster"]),
        ("insync cluster st", ["start", "status", "stop"]),
        ("insync topics --und", ["--under-replicated-partitions", "--under-min-isr-partitions"]),
        ("insync explain kip-73", ["kip-73-amendment", "kip-73-window"]),
    ],
)
def test_shells_complete(line: str, completions: list[str]) -> None:
    environment = {
        "_INSYNC_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = subprocess.run([INSYNC], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == completions
