"""What a replay needs of the table `assignments`; a record without it has an empty one.

A topic that was created again under its name has a new id, and its epochs begin again. So its rows
are replayed apart from those of the topic before it.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ASSIGNMENT_COLUMNS: Final = (
    "topic", "partition", "at_ms", "leader_epoch", "version", "topic_id", "replicas", "adding",
)  # fmt: skip
_PARTITION: Final = ("topic", "partition")

Row = dict[str, Any]
Key = tuple[str, int]
Tables = dict[str, pa.Table]


class Assigned(NamedTuple):
    """The replicas of one partition that did not belong to it all the time."""

    removed: frozenset[tuple[int, int]] = frozenset()  # the first epoch without it, and which
    added: frozenset[int] = frozenset()  # by a reassignment, before it is seen otherwise


def assigned(assignments: pa.Table | None) -> dict[Key, Assigned]:
    """Of the partitions whose replicas changed."""
    result = {}
    for key, rows in groupby(_in_order(assignments), key=_key):
        first, *later = rows
        removed = {
            (after["leader_epoch"], broker)
            for before, after in pairwise([first, *later])
            for broker in before["replicas"]
            if after["replicas"] and broker not in after["replicas"]
        }
        seen = set(first["replicas"]) - set(first["adding"])
        added = set(first["adding"]).union(*(row["adding"] for row in later)) - seen
        if removed or added:
            result[key] = Assigned(frozenset(removed), frozenset(added))
    return result


def by_creation(tables: Tables) -> list[Tables]:
    """The tables of topics as they were created first, second and so on; stalls are in each."""
    created_ms = _created_again_ms(tables["assignments"])
    if not created_ms:
        return [tables]
    last = max(map(len, created_ms.values()))
    creation = {
        name: _creation(rows, created_ms)
        for name, rows in tables.items()
        if set(_PARTITION) <= set(rows.column_names)
    }
    return [
        {
            name: rows.filter(pa.array(creation[name] == number)) if name in creation else rows
            for name, rows in tables.items()
        }
        for number in range(last + 1)
    ]


def _created_again_ms(assignments: pa.Table) -> dict[Key, list[int]]:
    """When each topic was created again, partition by partition; most never were."""
    first_ms: dict[Key, dict[str, int]] = {}
    columns = (*_PARTITION, "topic_id", "at_ms")
    names = assignments.select(["topic", "topic_id"]).group_by(["topic", "topic_id"])
    if names.aggregate([]).num_rows == len(assignments["topic"].unique()):
        return {}
    for topic, partition, topic_id, at_ms in zip(
        *(assignments[name].to_pylist() for name in columns), strict=True
    ):
        by_id = first_ms.setdefault((topic, partition), {})
        by_id[topic_id] = min(at_ms, by_id.get(topic_id, at_ms))
    return {key: sorted(by_id.values())[1:] for key, by_id in first_ms.items() if len(by_id) > 1}


def _creation(rows: pa.Table, created_ms: dict[Key, list[int]]) -> np.ndarray[Any, Any]:
    at_ms, topics = rows["at_ms"].to_numpy(), rows["topic"].cast(pa.string())
    creation = np.zeros(rows.num_rows, np.int64)
    for (topic, partition), times_ms in created_ms.items():
        is_own = pc.and_(pc.equal(topics, topic), pc.equal(rows["partition"], partition))
        own = np.flatnonzero(is_own)
        creation[own] = np.searchsorted(times_ms, at_ms[own], side="right")
    return creation


def _in_order(assignments: pa.Table | None) -> list[Row]:
    if assignments is None:
        return []
    order = ("leader_epoch", "version", "at_ms")
    return sorted(
        assignments.select(list(ASSIGNMENT_COLUMNS)).to_pylist(),
        key=lambda row: (*_key(row), *(row[name] for name in order)),
    )


def _key(row: Row) -> Key:
    return row["topic"], row["partition"]
