"""How much a test tries: a little in `make check`, all of it in `make test`, and where that has no
end, more of it in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
IS_THOROUGH = _PROFILE != "quick"


def tried(everything: Sequence[T], *, quickly: int = 1) -> Sequence[T]:
    return everything if IS_THOROUGH else everything[:quickly]


def times(*, quick: int, thorough: int, exhaustive: int) -> int:
    return {"quick": quick, "thorough": thorough}.get(_PROFILE, exhaustive)
