"""What every command returns: the same result for people and for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from rich.console import RenderableType

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
INTERRUPTED: Final = 130  # as a shell reports a command that SIGINT ended


class WrongUsage(TyperException):
    """Flags that are wrong, alone or together."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`main` prints the view (text as it is), or with --json the data, and exits with the code."""

    data: object
    view: RenderableType
    as_json: bool
    exit_code: int = 0
