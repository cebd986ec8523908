"""`insync strays`: logs in a broker's folder that the metadata store does not assign to it.

It works on the folder, of a broker that is stopped or runs: no broker has a stray open.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.storage.disk import RealDisk
from insync.storage.errors import DiskError, WrongDirectory
from insync.storage.owner import META
from insync.storage.strays import Stray, delete_stray, find_strays


def register(on: typer.Typer) -> None:
    on.command("strays")(strays)


def strays(
    log_dir: Annotated[
        Path, typer.Option("--log-dir", metavar="DIR", help="The broker's log.dirs.")
    ],
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="NAME", help="Delete this stray; may be repeated."),
    ] = None,
    *,
    delete_all: Annotated[bool, typer.Option("--delete-all", help="Delete every stray.")] = False,
    as_json: JsonFlag = False,
) -> Answer:
    """List logs that were set aside because their partition was not this broker's, or delete them.

    They are deleted after log.stray.retention.ms, and used again if the metadata store assigns
    their topic id to the broker when it starts.
    """
    if delete and delete_all:
        raise WrongUsage("--delete does not go with --delete-all")
    disk, path = RealDisk(), str(log_dir)
    strays = _find(disk, path)
    names = [stray.name for stray in strays] if delete_all else delete or []
    for name in names:
        delete_stray(disk, path, name)
    if delete or delete_all:
        lines = [f"deleted {name}\n" for name in names] or [f"no stray logs in {log_dir}\n"]
        return Answer(data={"deleted": names}, view="".join(lines), as_json=as_json)
    return Answer(data=[_data(stray) for stray in strays], view=_view(strays), as_json=as_json)


def _find(disk: RealDisk, path: str) -> list[Stray]:
    try:
        is_log_dir = META in disk.list(path)
    except DiskError:
        is_log_dir = False
    if not is_log_dir:
        raise WrongDirectory(f"{path} is not the folder of a broker's logs; it has no {META}")
    return find_strays(disk, path)


def _data(stray: Stray) -> dict[str, Any]:
    return {
        "name": stray.name,
        "topic": stray.topic,
        "partition": stray.partition,
        "topic_id": None if stray.topic_id is None else str(stray.topic_id),
        "size_bytes": stray.size_bytes,
        "set_aside_at": _time(stray),
    }


def _time(stray: Stray) -> str:
    moment = datetime.fromtimestamp(stray.set_aside_ms / 1_000, UTC)
    return moment.isoformat(timespec="seconds")


def _view(strays: list[Stray]) -> Any:
    if not strays:
        return "no stray logs\n"
    from rich.table import Table  # noqa: PLC0415 - most often there is none to show

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "topic id", "bytes", "set aside at"):
        table.add_column(column)
    for stray in strays:
        topic_id = "unknown" if stray.topic_id is None else str(stray.topic_id)
        table.add_row(stray.name, topic_id, str(stray.size_bytes), _time(stray))
    return table
