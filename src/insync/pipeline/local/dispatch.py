"""What the tables are written with: Spark's functions and windows, or those of the local engine.

PySpark's functions make columns of Spark, and have no other place to learn of which engine a
column is to be. So the session of the local engine says so while it lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import Window as W  # noqa: N817 - it is in every line
    from pyspark.sql import functions as F  # noqa: N812 - its common name
else:

    class _Functions:
        def __getattr__(self, name: str) -> Any:
            if _is_local.get():
                from insync.pipeline.local import functions  # noqa: PLC0415 - only if it is used
            else:
                from pyspark.sql import functions  # noqa: PLC0415
            return getattr(functions, name)

    class _Windows:
        def __getattr__(self, name: str) -> Any:
            if _is_local.get():
                from insync.pipeline.local.columns import Window  # noqa: PLC0415

                return getattr(Window(), name)
            from pyspark.sql import Window  # noqa: PLC0415

            return getattr(Window, name)

    F = _Functions()
    W = _Windows()

__all__ = ["F", "W", "local_functions", "union_all"]

_is_local: Final[ContextVar[bool]] = ContextVar("is_local", default=False)


@contextmanager
def local_functions() -> Iterator[None]:
    """In this block, columns are those of the local engine."""
    token = _is_local.set(True)
    try:
        yield
    finally:
        _is_local.reset(token)


def union_all(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)
