"""Importing kio without what a broker has no use for."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import cast


def import_kio_alone() -> None:
    """kio registers its types with Hypothesis where that is installed: half of a broker's start.

    It takes no for an answer. Nobody is kept from importing Hypothesis afterwards.
    """
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = cast("ModuleType", None)
        try:
            import_module("kio.static.primitive")
        finally:
            del sys.modules["hypothesis"]
