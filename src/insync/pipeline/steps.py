"""The pipeline's tables, one row each: what it reads and the function that makes it.

A function is named, not imported, until somebody asks for its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from pyspark.sql import DataFrame

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str  # of the folder under --out
    makes: str  # MODULE:FUNCTION, called with the tables it reads and its options
    reads: tuple[str, ...]
    needs: tuple[str, ...]  # those of them that must have rows
    shows: tuple[str, ...]  # columns of the summary on the terminal

    def build(self, tables: Mapping[str, DataFrame], options: Options) -> DataFrame:
        module, function = self.makes.split(":")
        make = getattr(import_module(module), function)
        frame = make(*(tables[name] for name in self.reads), **options)
        assert isinstance(frame, DataFrame), f"{self.makes} makes a table"
        return frame


STEPS: Final[dict[str, Step]] = {}
