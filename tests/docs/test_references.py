"""docs/settings.md and docs/metrics.md are what the code says."""

from __future__ import annotations

import pytest

from tools.reference import DOCS, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_is_current(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run `make docs`"
