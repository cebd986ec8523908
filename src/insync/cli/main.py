"""Entry point: exit code 0 done, 1 refused or failed, 2 wrong usage.

Whatever goes wrong is one clear line on stderr, never a traceback for something a user can mend.
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

from insync import __version__
from insync.cli.answer import Answer
from insync.rules.refusals import Refusal

WIDTH_WITHOUT_TERMINAL = 160

# Each is a module of this package that registers itself.
COMMANDS = (
    "explain",
    "demo",
    "broker",
    "cluster",
    "topics",
    "configs",
    "reassign",
    "replicas",
    "telemetry",
    "throttle",
    "pipeline",
)


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Imports only the command asked for: three brokers that start must not wait for a demo's."""
    app = typer.Typer(
        name="insync",
        help="Who is in sync, why, and how fast replicas may move.",
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    is_known = bool(arguments) and arguments[0] in COMMANDS
    for name in arguments[:1] if is_known else COMMANDS:
        import_module(f"insync.cli.{name}").register(app)
    return app


def _print_version(asked: bool) -> None:  # noqa: FBT001 - the shape typer calls back with
    if asked:
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
    """Who is in sync, why, and how fast replicas may move."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    if not __debug__:
        return _fail("refuses to run under python -O: its assertions are part of it", code=1)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        answer = _app(given)(args=given, prog_name="insync", standalone_mode=False)
        return _render(answer) if isinstance(answer, Answer) else int(answer or 0)
    except TyperException as wrong_usage:
        return _fail(wrong_usage.format_message(), code=wrong_usage.exit_code)
    except Refusal as refusal:
        return _fail(str(refusal), code=1)
    except BrokenPipeError:
        # The reader (head, less) has gone; so has the point of printing. Python would complain
        # once more on flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _render(answer: Answer) -> int:
    if answer.as_json:
        sys.stdout.write(json.dumps(answer.data, indent=2, ensure_ascii=False) + "\n")
    elif isinstance(answer.view, str):
        sys.stdout.write(answer.view)  # lines that scripts may cut by their tabs: never wrapped
    else:
        from rich.console import Console  # noqa: PLC0415 - most commands have nothing to show

        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDTH_WITHOUT_TERMINAL)
        console.print(answer.view)
    sys.stdout.flush()
    return answer.exit_code


def _fail(message: str, *, code: int) -> int:
    one_line = " ".join(message.split())
    sys.stderr.write(f"insync: {one_line}\n")
    return code
