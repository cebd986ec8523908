"""The walk through a real record: its cells run in order, and draw the charts of its folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

WALK = Path(__file__).parents[2] / "examples" / "walk"
MARK = re.compile(r"^# %%.*$", re.MULTILINE)
CHARTS = ("incidents.svg", "lag.svg", "throttle.svg")
RECORD_BYTES_MAX = 150_000


# Every table once takes about a minute of a core, most of it for episodes and health.
@pytest.mark.spark
@pytest.mark.long
def test_the_walk_explains_its_record(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["walk.py", str(tmp_path)])
    monkeypatch.syspath_prepend(str(WALK))
    tasks = spark.conf.get("spark.sql.shuffle.partitions")
    notebook: dict[str, Any] = {"__file__": str(WALK / "walk.py")}
    for cell in MARK.split((WALK / "walk.py").read_text()):
        exec(compile(cell, "walk.py", "exec"), notebook)  # noqa: S102 - as a notebook does
    said = notebook["said"]
    _tells_what_was_done_to_the_brokers(said)
    assert any(line.startswith("No advice: ") and "24 h" in line for line in said)
    assert any("of 1 hour of the day" in line for line in said), "a plan of a minute says so"
    for name in CHARTS:
        drawn = (tmp_path / name).read_text()
        assert ElementTree.fromstring(drawn).tag.endswith("svg")  # noqa: S314 - our own
        assert drawn == (WALK / name).read_text(), f"draw {name} again: python {WALK}/walk.py"
    assert spark.conf.get("spark.sql.shuffle.partitions") == tasks
    assert spark.range(3).count() == 3  # the session is ours, and goes on


def _tells_what_was_done_to_the_brokers(said: list[str]) -> None:
    """record.py stopped broker 3 for 6 s, slowed the disk of broker 1 down, killed broker 2, and
    moved 3.2 MB at 400 kB/s."""
    text = "\n".join(said)
    incidents = [line for line in said if " in: broker" in line]
    assert [line.partition(" in: ")[2][:8] for line in incidents[:3]] == [
        "broker 3", "broker 1", "broker 2",
    ]  # fmt: skip
    assert "was frozen; it was out for 3.1 s, and the limit was 3 s." in text
    assert "with a limit of 400 kB/s" in text
    evictions = {
        (policy, limit): int(count)
        for policy, limit, count in re.findall(r"(\S+) at (\S+ s): (\d+) evictions", text)
    }
    # Three partitions that broker 3 follows, two of broker 1 with two followers each. With
    # pending reads, which last 5 s, those of broker 1 are in sync.
    assert evictions["caught-up", "3 s"] >= 7
    assert evictions["pending-reads", "3 s"] <= evictions["caught-up", "3 s"] - 4
    assert evictions["caught-up", "10 s"] <= 1


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_needs_nothing_beside_it(name: str) -> None:
    text = (WALK / name).read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")  # noqa: S314 - our own
    assert text.count("http") == 1, "the name of its format"
    assert f"({name})" in (WALK / "README.md").read_text()


def test_the_record_is_small_and_names_no_folder_of_its_host() -> None:
    files = sorted((WALK / "telemetry").glob("*/*.parquet"))
    assert sum(path.stat().st_size for path in files) <= RECORD_BYTES_MAX
    assert not any(b"/tmp/" in path.read_bytes() for path in files)
