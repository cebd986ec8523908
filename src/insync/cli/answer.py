"""What every command returns: the same answer for people and for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import RenderableType

JsonFlag = Annotated[bool, typer.Option("--json", help="Answer in JSON, for scripts.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`main` prints the view, or with --json the data, and exits with the code."""

    data: object
    view: RenderableType
    as_json: bool
    exit_code: int = 0
