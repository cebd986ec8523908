"""Every command of `insync pipeline` says how to use it."""

from __future__ import annotations

from typing import Any

import pytest

from insync.cli.main import main
from insync.cli.pipeline import app
from insync.cli.pipeline_options import JobOptions, SparkOptions, WhatIfOptions, expand_options

COMMANDS = [
    command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands
]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_an_example_of_flags_that_exist(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", name, "--help"]) == 0
    usage, _, example = capsys.readouterr().out.partition("Examples:\n    insync pipeline ")
    words = example.split()
    assert words[0] == name
    flags = [word for word in words if word.startswith("--")]
    assert {"--source", "--out"} <= set(flags)
    assert all(f"  {flag} " in usage for flag in flags)


def test_a_group_is_one_flag_per_field() -> None:
    seen = []

    def command(*, job: JobOptions, grid: WhatIfOptions, spark: SparkOptions) -> None:
        seen.append((job, grid, spark))

    expanded = expand_options(command)  # type: ignore[arg-type]
    defaults = {"form": "parquet", "overwrite": False, "as_json": False}
    grid: dict[str, Any] = {
        "policies": "caught-up",
        "lag_time_max_ms": "1,2",
        "lag_max_messages": None,
    }
    grid |= {"min_insync_replicas": None, "fetch_wait_max_ms": None, "half_period_check": True}
    spark = {"master": None, "conf": None, "spark_log": None}
    expanded(source="here", out="there", **defaults, **grid, **spark)
    ((job_options, what_if_options, spark_options),) = seen
    assert (job_options.source, job_options.out) == ("here", "there")
    assert spark_options == SparkOptions()
    assert what_if_options.as_grid() == {
        "policies": ("caught-up",),
        "lag_time_max_ms": (1, 2),
        "half_period_check": (False, True),
    }
