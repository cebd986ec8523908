"""Leaders that ask to hand over, and brokers that did so lately (`rules.resignation`).

A leader's wish is a node of the store, so it outlives any controller; it is granted or refused in
the step that takes it away. Granting it writes the new state and, beside it, who is cooling.
How long that lasts is counted by whoever is controller (`countdown.py`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from insync.metadata import paths
from insync.metadata.cooling import cooling_for
from insync.metadata.records import Resignation, TopicRecord, decode_state
from insync.metadata.store import Create, Delete, MetadataStore, Operation
from insync.rules.partition_state import PartitionState
from insync.rules.resignation import resign
from insync.rules.values import BrokerId


@dataclass
class HandOvers:
    """What to do about all who ask."""

    changed: dict[str, tuple[PartitionState, int]] = field(default_factory=dict)
    beside: dict[str, list[Operation]] = field(default_factory=dict)  # by the state's path
    refused: list[Operation] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def hand_overs(store: MetadataStore, *, live: AbstractSet[BrokerId]) -> HandOvers:
    found = HandOvers()
    for entry in store.under(paths.RESIGNATIONS):
        key = paths.resignation_of(entry.path)
        asked = Resignation.decode(entry.value)
        taken_away = Delete(entry.path, entry.version)
        path = paths.partition_state(*key)
        state = _state_of(store, key, asked)
        after = None
        if state is not None:
            after = resign(state, live=live, cooling=cooling_for(store, key))
        if after is None:
            found.refused.append(taken_away)
            found.lines.append(f"{key[0]}-{key[1]}: {asked.leader} does not hand over")
            continue
        current = store.get(path)
        assert current is not None, "it was decoded just now"
        cooling = Create(paths.cooling(*key, asked.leader), b"")
        found.changed[path] = (after, current.version)
        found.beside[path] = [taken_away, cooling]
        found.lines.append(
            f"{key[0]}-{key[1]}: {asked.leader} resigns ({asked.why}), {after.leader} leads"
        )
    return found


def _state_of(
    store: MetadataStore, key: tuple[str, int], asked: Resignation
) -> PartitionState | None:
    """The state that the wish is about; None if that term, or that topic, is over."""
    topic, entry = store.get(paths.topic(key[0])), store.get(paths.partition_state(*key))
    if topic is None or entry is None or TopicRecord.decode(topic.value).topic_id != asked.topic_id:
        return None
    state = decode_state(entry.value)
    is_same_term = (state.leader, state.leader_epoch) == (asked.leader, asked.leader_epoch)
    return state if is_same_term else None
