"""Reassignments: started, cancelled and listed (KIP-455), by whichever broker is asked.

As with topics the store lets one of two rivals win, so there is nothing to forward: what a move
begins with is the rule's next state, written on condition that the state is still the one it was
computed from. Bringing the move to its end is the controller's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import LEARNT_WITHIN_S, ClusterView, TopicPartition
from insync.broker.settings import Settings
from insync.broker.topics import ATTEMPTS_MAX
from insync.metadata import paths
from insync.metadata.cooling import cooling_for
from insync.metadata.dealt_with import brokers_seen, dealt_with
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.records import encode_state
from insync.metadata.store import STATES_PER_STEP_MAX, Check, MetadataStore, Operation, Write
from insync.rules import reassignment
from insync.rules.partition_state import PartitionState
from insync.rules.refusals import BadPlan, NothingToCancel, WouldLoseData
from insync.rules.values import BrokerId
from insync.telemetry.schemas import REPLICAS_MOVED
from insync.wire.any_version import Values

OnElection = Callable[[TopicPartition, PartitionState, PartitionState, str], None]


class MoveRefused(Exception):
    """What a client is told when a partition cannot be moved, or elect, as asked."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class PartitionSteps:
    """States that this broker changes in the controller's stead, one conditional step for some."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        view: ClusterView,
        settings: Settings,
        on_election: OnElection = lambda *_: None,
    ) -> None:
        self.store = store
        self.view = view
        self.settings = settings
        self._on_election = on_election
        self._as_of = -1  # the revision of what is kept in `_found`
        self._found: tuple[frozenset[BrokerId], frozenset[BrokerId]] = (frozenset(), frozenset())

    def state_of(self, key: TopicPartition) -> PartitionState:
        state = self.view.states.get(key)
        if state is None:
            topic, number = key
            known = self.view.topics.get(topic)
            raise MoveRefused(
                ErrorCode.unknown_topic_or_partition,
                f"there is no topic {topic!r}"
                if known is None
                else f"topic {topic!r} has partitions 0 to {known.partitions - 1}, not {number}",
            )
        return state

    @property
    def dealt_with(self) -> frozenset[BrokerId]:
        """Who may be elected: of one that is back and not dealt with, an ISR means the past."""
        return self._brokers()[0]

    @property
    def known(self) -> frozenset[BrokerId]:
        """Brokers that live, or lived once: a move to one that is down waits for it."""
        return self._brokers()[1]

    def _brokers(self) -> tuple[frozenset[BrokerId], frozenset[BrokerId]]:
        """Found once for all partitions of a request."""
        if self._as_of != self.store.revision:
            self._as_of = self.store.revision
            live, seen = self.view.incarnations, brokers_seen(self.store)
            self._found = dealt_with(live, seen), frozenset(live).union(seen)
        return self._found

    def step(self, changed: Mapping[TopicPartition, PartitionState]) -> list[Operation]:
        """Write these states in place of those that are known, for the topics that are known."""
        topics = sorted({topic for topic, _ in changed})
        step: list[Operation] = [
            Check(paths.topic_id(self.view.topics[topic].topic_id)) for topic in topics
        ]
        leaders = set()
        for key, state in sorted(changed.items()):
            step.append(
                Write(paths.partition_state(*key), encode_state(state), self.view.versions[key])
            )
            if state.leader_epoch != self.view.states[key].leader_epoch:
                leaders.add(state.leader)
        incarnations = self.view.incarnations
        step += [
            Check(paths.broker_incarnation(incarnations[leader]))
            for leader in sorted(incarnations)
            if leader in leaders
        ]
        return step

    async def commit(
        self,
        changed: Mapping[TopicPartition, PartitionState],
        cause: str,
        beside: Sequence[Operation] = (),
    ) -> None:
        before = {key: self.view.states[key] for key in changed}
        await self.store.commit(*self.step(changed), *beside)
        for key, state in changed.items():
            if state.leader_epoch != before[key].leader_epoch:
                self._on_election(key, before[key], state, cause)

    async def change(
        self,
        keys: Iterable[TopicPartition],
        after: Callable[[TopicPartition], PartitionState],
        cause: str,
    ) -> dict[TopicPartition, MoveRefused | None]:
        """Do this to each of them, and say what was refused."""
        asked = Counter(keys)
        results: dict[TopicPartition, MoveRefused | None] = {
            key: MoveRefused(ErrorCode.invalid_request, "named twice in one request")
            for key, count in asked.items()
            if count > 1
        }
        left = [key for key in asked if key not in results]
        while left:
            now, left = left[:STATES_PER_STEP_MAX], left[STATES_PER_STEP_MAX:]
            results |= await self._change_some(now, after, cause)
            await asyncio.sleep(0)  # everybody else has a turn
        return results

    async def _change_some(
        self,
        keys: Sequence[TopicPartition],
        after: Callable[[TopicPartition], PartitionState],
        cause: str,
    ) -> dict[TopicPartition, MoveRefused | None]:
        """In one step, anew when another change came first: the view then includes that one."""
        results: dict[TopicPartition, MoveRefused | None] = {}
        why = "other changes kept coming first"
        for _ in range(ATTEMPTS_MAX):
            changed = {}
            for key in keys:
                try:
                    state = after(key)
                except MoveRefused as refused:
                    results[key] = refused
                else:
                    results[key] = None
                    if state != self.view.states[key]:
                        changed[key] = state
            try:
                if changed:
                    await self.commit(changed, cause)
            except Conflict:
                continue
            except Unavailable as unavailable:
                why = str(unavailable)
                break
            return results
        late = MoveRefused(ErrorCode.request_timed_out, why)
        return {key: results[key] or late for key in keys}


class Reassignments:
    def __init__(self, steps: PartitionSteps) -> None:
        self._steps = steps
        self._view = steps.view

    async def alter(self, request: Any) -> Values:
        allows_factor_change = getattr(request, "allow_replication_factor_change", True)
        targets = {
            (topic.name, each.partition_index): each.replicas
            for topic in request.topics
            for each in topic.partitions
        }

        def after(key: TopicPartition) -> PartitionState:
            target = targets[key]
            if target is None:
                return self.cancelled(key)
            return self.started(key, target, allows_factor_change=allows_factor_change)

        keys = [(t.name, each.partition_index) for t in request.topics for each in t.partitions]
        results = await self._steps.change(keys, after, REPLICAS_MOVED)
        # Clients ask any broker next, and many do not ask twice.
        await asyncio.sleep(LEARNT_WITHIN_S)
        return {
            "allow_replication_factor_change": allows_factor_change,
            "error_message": None,
            "responses": [
                {
                    "name": topic.name,
                    "partitions": [
                        _result("partition_index", number, results[topic.name, number])
                        for number in dict.fromkeys(
                            each.partition_index for each in topic.partitions
                        )
                    ],
                }
                for topic in request.topics
            ],
        }

    def started(
        self, key: TopicPartition, target: Sequence[int], *, allows_factor_change: bool = True
    ) -> PartitionState:
        state = self._steps.state_of(key)
        factor = len(reassignment.origin(state))
        if not allows_factor_change and len(target) != factor:
            raise MoveRefused(
                ErrorCode.invalid_replication_factor,
                f"{len(target)} replicas in place of {factor}, and the request allows no change",
            )
        try:
            return reassignment.start(
                state,
                tuple(BrokerId(broker) for broker in target),
                known=self._steps.known,
                live=self._steps.dealt_with,
                cooling=cooling_for(self._steps.store, key),
            )
        except (BadPlan, WouldLoseData) as refusal:
            raise MoveRefused(ErrorCode.invalid_replica_assignment, str(refusal)) from None

    def cancelled(self, key: TopicPartition) -> PartitionState:
        state = self._steps.state_of(key)
        settings = self._steps.settings.for_stored_topic(self._view.topic_configs.get(key[0], {}))
        try:
            return reassignment.cancel(
                state,
                live=self._steps.dealt_with,
                unclean=settings.flag("unclean.leader.election.enable"),
                cooling=cooling_for(self._steps.store, key),
            )
        except NothingToCancel as refusal:
            raise MoveRefused(ErrorCode.no_reassignment_in_progress, str(refusal)) from None
        except WouldLoseData as refusal:
            raise MoveRefused(ErrorCode.invalid_replica_assignment, str(refusal)) from None

    def list(self, request: Any, _version: int) -> Values:
        """What moves, of all or of what is named; what is named and does not move is left out."""
        if request.topics is None:
            keys: Iterable[TopicPartition] = self._view.states
        else:
            keys = {(t.name, number) for t in request.topics for number in t.partition_indexes}
        moving: dict[str, list[Values]] = {}
        for key in sorted(keys):
            state = self._view.states.get(key)
            if state is not None and state.is_moving:
                moving.setdefault(key[0], []).append(
                    {
                        "partition_index": key[1],
                        "replicas": state.replicas,
                        "adding_replicas": state.adding,
                        "removing_replicas": state.removing,
                    }
                )
        return {
            "error_message": None,
            "topics": [{"name": name, "partitions": parts} for name, parts in moving.items()],
        }


def _result(field: str, number: int, refused: MoveRefused | None) -> Values:
    if refused is None:
        return {field: number, "error_message": None}
    return {field: number, "error_code": refused.code, "error_message": refused.message}
