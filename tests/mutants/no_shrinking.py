"""A pytest plugin: a failed property is enough, and no simpler example is searched for."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)  # after tests/conftest.py has chosen its profile
def pytest_configure() -> None:
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("measured", settings(), phases=phases)
    settings.load_profile("measured")
