"""The pipeline as a library: a table's name is its function, whatever was imported before."""

from __future__ import annotations

import importlib

import pytest

from insync import pipeline

TABLES = (
    "episodes", "health", "lag", "problems", "recommendation", "record", "throttle", "what_if",
)  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_a_function(name: str) -> None:
    importlib.import_module(f"insync.pipeline.tables.{name}")
    assert callable(getattr(pipeline, name))


def test_every_listed_name_is_callable() -> None:
    assert set(TABLES) < set(pipeline.__all__)
    for name in pipeline.__all__:
        assert callable(getattr(pipeline, name))


def test_an_unknown_table_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lags'"):
        pipeline.lags  # noqa: B018
