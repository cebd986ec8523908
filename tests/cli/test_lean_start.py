"""What starts often imports little: three brokers at once on two cores feel every module."""

from __future__ import annotations

import subprocess
import sys

import pytest

BROKER = """
import insync.node.process
"""
CLUSTER = """
import insync.cli.main

insync.cli.main.main(["cluster", "stop", "--data-dir", "nowhere"])
"""
CHECK = """
import sys

for unwanted in {unwanted}:
    assert unwanted not in sys.modules, f"imports {{unwanted}}"
import hypothesis.strategies  # it can still be imported
"""

UNWANTED_IN_BROKERS = [
    "cramjam",
    "hypothesis",
    "nanoarrow",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "typer",
]


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (BROKER, UNWANTED_IN_BROKERS),
        (CLUSTER, ["hypothesis", "insync.node", "insync.scenarios", "asyncio", "rich"]),
    ],
)
def test_unneeded_modules_are_not_imported(program: str, unwanted: list[str]) -> None:
    code = program + CHECK.format(unwanted=unwanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
