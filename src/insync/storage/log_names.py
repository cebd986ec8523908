"""Names in a data directory: of logs, of deleted logs and of strays."""

from __future__ import annotations

import re
from typing import Final

from insync.storage.errors import BadLogName

DELETED: Final = ".delete"
STRAY: Final = "-stray"

NAME_KEPT_CHARACTERS: Final = 200
"""Of a log's name when it is moved aside: with number and suffix it stays a legal file name."""

LOG_NAME: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})")
DELETED_NAME: Final = re.compile(rf".*\.(\d+){re.escape(DELETED)}")
STRAY_NAME: Final = re.compile(rf"{LOG_NAME.pattern}\.(0|[1-9]\d{{0,14}}){STRAY}")


def log_name(topic: str, partition: int) -> str:
    """The directory of one log, or `BadLogName`: a topic name never leads out of `log.dirs`."""
    name = f"{topic}-{partition}"
    match = LOG_NAME.fullmatch(name)
    if match is None or match[1] != topic or topic in (".", ".."):
        raise BadLogName(
            f"{topic!r} partition {partition} cannot be a directory; "
            "topic names are 1 to 249 of a-z A-Z 0-9 . _ -"
        )
    return name
