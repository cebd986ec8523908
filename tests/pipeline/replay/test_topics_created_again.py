"""Topics that were created again are replayed apart, also where topics have ids in common."""

from __future__ import annotations

import pyarrow as pa

from insync.pipeline.replay.assignments import by_creation


def test_a_topic_created_again_is_apart_when_other_topics_have_its_ids() -> None:
    """As many ids as topics: "a" was created twice, and "b" has one of its ids."""
    assignments = pa.table(
        {
            "topic": ["a", "a", "b"],
            "partition": [0, 0, 0],
            "topic_id": ["0", "1", "0"],
            "at_ms": [5, 100, 7],
        }
    )
    fetches = pa.table({"topic": ["a", "a", "b"], "partition": [0, 0, 0], "at_ms": [50, 150, 150]})
    first, second = by_creation({"assignments": assignments, "fetches": fetches})
    assert first["fetches"]["at_ms"].to_pylist() == [50, 150]
    assert second["fetches"].to_pylist() == [{"topic": "a", "partition": 0, "at_ms": 150}]
