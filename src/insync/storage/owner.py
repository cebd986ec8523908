"""Whose a data directory is: `meta.properties`, in Kafka's format, with KIP-858's `directory.id`.

The id is the directory's own. It says which directory a broker's registration stands for: a broker
that comes with another directory comes without the logs it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol
from uuid import UUID

from insync.storage.disk import Disk
from insync.storage.errors import DirectoryNotWritable, DiskError, WrongDirectory
from insync.wire.uuid_text import read_uuid, write_uuid

META: Final = "meta.properties"
DIRECTORY_ID: Final = "directory.id"


class Admit(Protocol):
    def __call__(self, directory_id: UUID | None, /, *, is_new: bool) -> None:
        """Raise a refusal if the broker may not use the directory with this id.

        Without an id it is new, or of an Insync that gave directories none. Nothing was written.
        """


def admit_every_directory(_directory_id: UUID | None, *, is_new: bool) -> None:
    del is_new


def claim(
    disk: Disk,
    path: str,
    *,
    cluster_id: str,
    broker_id: int,
    new_id: Callable[[], UUID],
    admit: Admit,
) -> UUID:
    """Check that the directory is this broker's, or make it so if it is new. Returns its id."""
    expected = {"version": "1", "cluster.id": cluster_id, "node.id": str(broker_id)}
    try:
        disk.make_dirs(path)
        is_new = META not in disk.list(path)
        text = "" if is_new else disk.read_all(f"{path}/{META}").decode(errors="replace")
    except DiskError as error:
        raise DirectoryNotWritable(f"cannot write to the data directory: {error}") from error
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    for name, value in {} if is_new else expected.items():
        if properties.get(name) != value:
            raise WrongDirectory(
                f"{path}/{META} says {name}={properties.get(name)!r}, this broker is {value!r}; "
                "give the broker its own log.dirs"
            )
    directory_id = _read_id(path, properties)
    admit(directory_id, is_new=is_new)
    if directory_id is None:
        directory_id = new_id()
        _write(disk, path, {**expected, DIRECTORY_ID: write_uuid(directory_id)})
    return directory_id


def _read_id(path: str, properties: Mapping[str, str]) -> UUID | None:
    word = properties.get(DIRECTORY_ID)
    if word is None:
        return None
    try:
        return read_uuid(word)
    except ValueError:
        raise WrongDirectory(
            f"{path}/{META} says {DIRECTORY_ID}={word!r}, which is no id; restore the file"
        ) from None


def _write(disk: Disk, path: str, properties: Mapping[str, str]) -> None:
    lines = (f"{name}={value}\n" for name, value in properties.items())
    try:
        disk.write_atomic(f"{path}/{META}", "".join(lines).encode())
        disk.open(f"{path}/{META}").flush()  # without it no broker could use the directory
    except DiskError as error:
        raise DirectoryNotWritable(f"cannot write to the data directory: {error}") from error
