"""Conditions of a step that it concerns the same topics as when it was computed.

Versions start over with a topic of the same name: a step that was under way while a topic was
deleted and created again would write the state of the first over that of the second.
"""

from __future__ import annotations

from collections.abc import Iterable

from insync.metadata import paths
from insync.metadata.records import TopicRecord
from insync.metadata.store import Check, MetadataStore, Operation


def check_topics(store: MetadataStore, names: Iterable[str]) -> dict[str, Operation]:
    """By topic, the condition that it is still the one that the store has now."""
    checks: dict[str, Operation] = {}
    for name in sorted(set(names)):
        entry = store.get(paths.topic(name))
        if entry is not None:
            checks[name] = Check(paths.topic_id(TopicRecord.decode(entry.value).topic_id))
    return checks
