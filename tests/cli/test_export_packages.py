"""`insync telemetry export` needs pyarrow and nothing of Spark."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHOUT_PYARROW = """
import sys
from insync.cli.main import main

sys.modules["pyarrow"] = None  # its import fails from now on
sys.exit(main(["telemetry", "export", "--bootstrap-server", "127.0.0.1:1", "--out", "nowhere"]))
"""


def test_without_pyarrow_the_error_names_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        'insync: this needs pyarrow: install it with pip install "insync[parquet]"\n'
    )


def test_the_extra_parquet_is_pyarrow_alone() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert [requirement.split(">")[0] for requirement in extras["parquet"]] == ["pyarrow"]
    assert "insync[parquet]" in extras["spark"]
