"""Leaders that ask to resign, and the cool-downs of brokers that did (`rules.resignation`).

A leader's request is a node of the store, so it outlives any controller. The step that deletes it
grants or refuses it. To grant it, the step writes the new state and the broker's cool-down.
The controller measures how long that lasts (`expiry_timers.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from insync.metadata import paths
from insync.metadata.cooldowns import brokers_in_cooldown
from insync.metadata.offline_replicas import ElectableBrokers
from insync.metadata.records import Resignation, TopicRecord, decode_state
from insync.metadata.store import Create, Delete, MetadataStore, Operation
from insync.rules.partition_state import PartitionState
from insync.rules.resignation import resign
from insync.rules.values import BrokerId


@dataclass
class ResignationDecisions:
    """What to write for all leaders that ask to resign."""

    changed: dict[str, tuple[PartitionState, int]] = field(default_factory=dict)
    operations_by_state: dict[str, list[Operation]] = field(
        default_factory=dict
    )  # by the state's path
    refused: list[Operation] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def decide_resignations(store: MetadataStore, *, live: ElectableBrokers) -> ResignationDecisions:
    decisions = ResignationDecisions()
    taken_over: Counter[BrokerId] = Counter()
    for entry in store.under(paths.RESIGNATIONS):
        key = paths.resignation_of(entry.path)
        resignation = Resignation.decode(entry.value)
        delete_request = Delete(entry.path, entry.version)
        path = paths.partition_state(*key)
        state = _state_of(store, key, resignation)
        after = None
        if state is not None:
            after = resign(
                state,
                live=live(key),
                cooling=brokers_in_cooldown(store, key),
                silent=resignation.silent,
                taken_over=taken_over,
            )
        if after is None:
            decisions.refused.append(delete_request)
            why_not = (
                f"its leader epoch {resignation.leader_epoch} is over"
                if state is None
                else "no other in-sync replica is live and outside its cool-down, or it is in its"
                " own cool-down (leader.resign.cooldown.ms)"
            )
            decisions.lines.append(
                f"{key[0]}-{key[1]}: broker {resignation.leader} may not resign: {why_not}"
            )
            continue
        assert after.leader is not None, "another replica leads now"
        taken_over[after.leader] += 1
        current = store.get(path)
        assert current is not None, "it was decoded just now"
        cooling = Create(paths.cooling(*key, resignation.leader), b"")
        decisions.changed[path] = (after, current.version)
        decisions.operations_by_state[path] = [delete_request, cooling]
        decisions.lines.append(
            f"{key[0]}-{key[1]}: broker {resignation.leader} resigned ({resignation.why}),"
            f" broker {after.leader} is elected"
        )
    return decisions


def _state_of(
    store: MetadataStore, key: tuple[str, int], resignation: Resignation
) -> PartitionState | None:
    """The state, in the term of the resignation; None if the term or the topic is over."""
    topic, entry = store.get(paths.topic(key[0])), store.get(paths.partition_state(*key))
    if (
        topic is None
        or entry is None
        or TopicRecord.decode(topic.value).topic_id != resignation.topic_id
    ):
        return None
    state = decode_state(entry.value)
    is_same_term = (state.leader, state.leader_epoch) == (
        resignation.leader,
        resignation.leader_epoch,
    )
    return state if is_same_term else None
