"""Importing kio without Hypothesis, which a broker does not need."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import cast


def import_kio_alone() -> None:
    """kio registers its types with Hypothesis if that is installed: half of a broker's start time.

    It works without. Hypothesis can be imported afterwards.
    """
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = cast("ModuleType", None)
        try:
            import_module("kio.static.primitive")
        finally:
            del sys.modules["hypothesis"]
