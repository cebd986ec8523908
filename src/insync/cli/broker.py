"""`insync broker`: one broker in this process, from a properties file with Kafka's names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from insync.broker.settings import Settings, parse_properties
from insync.node import process
from insync.rules.refusals import BadSetting

FILE_BYTES_MAX = 1 << 20


def broker(
    config: Annotated[Path, typer.Option("--config", help="A properties file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")
    ] = None,
) -> None:
    """Run one broker in the foreground until SIGTERM or Ctrl-C."""
    given = {**read_properties(config), **parse_sets(set_ or [])}

    def ready() -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    process.run(Settings(given), on_ready=ready)


def read_properties(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise BadSetting(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        return parse_properties(content.decode("utf-8"))
    except OSError as error:
        raise BadSetting(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path} is not UTF-8 text") from None
    except BadSetting as refusal:
        raise BadSetting(f"{path}: {refusal}") from None


def parse_sets(pairs: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise BadSetting(f"--set {pair!r} is not of the form KEY=VALUE")
        given[name.strip()] = value.strip()
    return given
