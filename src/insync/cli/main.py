"""Entry point: exit code 0 done, 1 refused or failed, 2 wrong usage, 130 Ctrl-C.

An error that the user can correct is one clear line on stderr, never a traceback.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from insync import __version__
from insync.cli.answer import INTERRUPTED, Answer
from insync.cli.help import complete_help
from insync.rules.refusals import Refusal

# Each is a module of this package that registers itself.
COMMANDS = (
    "explain",
    "demo",
    "broker",
    "cluster",
    "strays",
    "topics",
    "configs",
    "reassign",
    "replicas",
    "telemetry",
    "throttle",
    "pipeline",
)


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Imports only the command on the command line: brokers start sooner without a demo's."""
    app = typer.Typer(
        name="insync",
        help="Which replicas are in sync, why, and how fast replicas may move.",
        invoke_without_command=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    is_known = bool(arguments) and arguments[0] in COMMANDS
    for name in arguments[:1] if is_known else COMMANDS:
        import_module(f"insync.cli.{name}").register(app)
    return app


def _print_version(is_given: bool) -> None:  # noqa: FBT001 - the shape typer calls back with
    if is_given:
        typer.echo(f"insync {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback does it all
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Which replicas are in sync, why, and how fast replicas may move."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    if not __debug__:
        return _fail("refuses to run under python -O: its assertions are part of it", code=1)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        command = get_command(_app(words))
        complete_help(command)
        answer = command(args=words, prog_name="insync", standalone_mode=False)
        return render(answer) if isinstance(answer, Answer) else int(answer or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except TyperException as wrong_usage:
        return _fail(wrong_usage.format_message(), code=wrong_usage.exit_code)
    except Refusal as refusal:
        return _fail(str(refusal), code=1)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe. Python would report it again when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def render(answer: Answer) -> int:
    if answer.as_json:
        sys.stdout.write(json.dumps(answer.data, indent=2, ensure_ascii=False) + "\n")
    elif isinstance(answer.view, str):
        sys.stdout.write(answer.view)  # lines that scripts may cut by their tabs: never wrapped
    else:
        from insync.cli.console import make_console  # noqa: PLC0415 - brings rich

        make_console().print(answer.view, crop=False)  # a long path is printed whole
    sys.stdout.flush()
    return answer.exit_code


def _fail(message: str, *, code: int) -> int:
    one_line = " ".join(message.split())
    sys.stderr.write(f"insync: {one_line}\n")
    return code
