"""The columns that a telemetry table must have.

Columns that earlier versions did not have are null where they are missing; every other missing
column is refused.
"""

from __future__ import annotations

from collections.abc import Collection

from insync.rules.refusals import Refusal


class BadTables(Refusal):
    """Telemetry tables that cannot be replayed."""


def check_columns(
    where: str, names: Collection[str], needed: Collection[str], *, optional: Collection[str] = ()
) -> None:
    missing = [name for name in needed if name not in names and name not in optional]
    if missing:
        raise BadTables(f"{where} has no column {', '.join(missing)}")
