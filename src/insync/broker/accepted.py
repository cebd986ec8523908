"""What an operator accepts at one start of a broker, by flags of the command line.

Not settings: in a properties file they would accept the next loss too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

OLDER_METADATA: Final = "--accept-older-metadata"
NEW_DIRECTORY: Final = "--new-directory"

OLDER_METADATA_HELP: Final = (
    "Accept a metadata store that is older than what the broker had read, at this start. "
    "Logs of topics that it does not know are kept as strays."
)
NEW_DIRECTORY_HELP: Final = (
    "Accept another log.dirs than the metadata store knows for this broker, at this start. "
    "Its replicas count as damaged until they are copied from other brokers."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What the operator accepts at this start."""

    older_metadata: bool = False
    new_directory: bool = False

    def flags(self) -> list[str]:
        """The flags that a broker's process is started with to accept it."""
        flags = {OLDER_METADATA: self.older_metadata, NEW_DIRECTORY: self.new_directory}
        return [flag for flag, is_set in flags.items() if is_set]


NOTHING: Final = Accepted()


def accepted_by(flags: Collection[str]) -> Accepted | None:
    """The inverse of `Accepted.flags`; None if there are other words among them."""
    if not set(flags) <= {OLDER_METADATA, NEW_DIRECTORY}:
        return None
    return Accepted(older_metadata=OLDER_METADATA in flags, new_directory=NEW_DIRECTORY in flags)
