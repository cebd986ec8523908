"""How much a test tries: a little in `make check`, all of it in `make test`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def tried(everything: Sequence[T], *, quickly: int = 1) -> Sequence[T]:
    return everything if IS_THOROUGH else everything[:quickly]
