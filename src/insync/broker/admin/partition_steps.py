"""Changes of partition states that a client requests: reassignments and elections.

Any broker makes them: the store lets one of two rival changes win, so there is nothing to forward
to the controller. A new state is written on condition that the stored state is still the one that
it was computed from.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from kio.schema.errors import ErrorCode

from insync.broker.admin.topics import ATTEMPTS_MAX
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.metadata import paths
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.handled_incarnations import electable_brokers, handled_incarnations
from insync.metadata.offline_replicas import offline_in
from insync.metadata.records import encode_state
from insync.metadata.store import STATES_PER_STEP_MAX, Check, MetadataStore, Operation, Write
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId
from insync.wire.any_version import Values

OnElection = Callable[[TopicPartition, PartitionState, PartitionState, str], None]


Beside = Callable[[TopicPartition, PartitionState], Sequence[Operation]]


class MoveRefused(Exception):
    """The error that answers a request to move a partition or to elect its leader."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class PartitionSteps:
    def __init__(self, *, store: MetadataStore, view: ClusterView, on_election: OnElection) -> None:
        self.store = store
        self.view = view
        self._on_election = on_election
        self._brokers_at_revision = -1
        self._brokers: tuple[frozenset[BrokerId], frozenset[BrokerId]] = (frozenset(), frozenset())

    def state_of(self, key: TopicPartition) -> PartitionState:
        state = self.view.states.get(key)
        if state is None:
            name, number = key
            topic = self.view.topics.get(name)
            raise MoveRefused(
                ErrorCode.unknown_topic_or_partition,
                f"there is no topic {name!r}"
                if topic is None
                else f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {number}",
            )
        return state

    def electable_brokers(self, key: TopicPartition) -> frozenset[BrokerId]:
        """Live brokers whose current incarnation the controller has handled, and that can lead.

        A broker that restarted and was not handled yet may lack the end of its log, so its place in
        an ISR is out of date. One whose replica failed or is damaged does not lead.
        """
        offline = offline_in(self.store, key, self.view.incarnations)
        return self._find_brokers()[0] - offline.brokers

    @property
    def known_brokers(self) -> frozenset[BrokerId]:
        """Brokers that are live or once were. A move to one that is down waits for it."""
        return self._find_brokers()[1]

    def _find_brokers(self) -> tuple[frozenset[BrokerId], frozenset[BrokerId]]:
        """Computed once per revision of the store, for all partitions of a request."""
        if self._brokers_at_revision != self.store.revision:
            self._brokers_at_revision = self.store.revision
            live, handled = self.view.incarnations, handled_incarnations(self.store)
            self._brokers = electable_brokers(live, handled), frozenset(live).union(handled)
        return self._brokers

    def _operations(self, changed: Mapping[TopicPartition, PartitionState]) -> list[Operation]:
        """Write these states, on condition that topics, old states and new leaders are current."""
        topics = sorted({topic for topic, _ in changed})
        operations: list[Operation] = [
            Check(paths.topic_id(self.view.topics[topic].topic_id)) for topic in topics
        ]
        leaders = set()
        for key, state in sorted(changed.items()):
            operations.append(
                Write(paths.partition_state(*key), encode_state(state), self.view.versions[key])
            )
            if state.leader_epoch != self.view.states[key].leader_epoch:
                leaders.add(state.leader)
        incarnations = self.view.incarnations
        operations += [
            Check(paths.broker_incarnation(incarnations[leader]))
            for leader in sorted(incarnations)
            if leader in leaders
        ]
        return operations

    async def commit(
        self,
        changed: Mapping[TopicPartition, PartitionState],
        cause: str,
        more_operations: Sequence[Operation] = (),
    ) -> None:
        before = {key: self.view.states[key] for key in changed}
        await self.store.commit(*self._operations(changed), *more_operations)
        for key, state in changed.items():
            if state.leader_epoch != before[key].leader_epoch:
                self._on_election(key, before[key], state, cause)

    async def change(
        self,
        keys: Iterable[TopicPartition],
        new_state: Callable[[TopicPartition], PartitionState],
        cause: str,
        beside: Beside | None = None,
    ) -> dict[TopicPartition, MoveRefused | None]:
        """Change the state of each partition. Returns the refusal of each that was refused.

        The operations `beside` a new state are in its step.
        """
        times_named = Counter(keys)
        results: dict[TopicPartition, MoveRefused | None] = {
            key: MoveRefused(ErrorCode.invalid_request, "named twice in one request")
            for key, count in times_named.items()
            if count > 1
        }
        remaining = [key for key in times_named if key not in results]
        while remaining:
            chunk, remaining = remaining[:STATES_PER_STEP_MAX], remaining[STATES_PER_STEP_MAX:]
            results |= await self._change_chunk(chunk, new_state, cause, beside)
            await asyncio.sleep(0)  # let other tasks run between steps
        return results

    async def _change_chunk(
        self,
        keys: Sequence[TopicPartition],
        new_state: Callable[[TopicPartition], PartitionState],
        cause: str,
        beside: Beside | None,
    ) -> dict[TopicPartition, MoveRefused | None]:
        """In one step. If another change came first, repeat: the view then includes that one."""
        results: dict[TopicPartition, MoveRefused | None] = {}
        reason = "other changes kept coming first"
        for _ in range(ATTEMPTS_MAX):
            changed = {}
            for key in keys:
                try:
                    state = new_state(key)
                except MoveRefused as refused:
                    results[key] = refused
                else:
                    results[key] = None
                    if state != self.view.states[key]:
                        changed[key] = state
            try:
                if changed:
                    more = [
                        operation
                        for key, state in changed.items()
                        if beside is not None
                        for operation in beside(key, state)
                    ]
                    await self.commit(changed, cause, more)
            except Conflict:
                continue
            except Unavailable as unavailable:
                reason = str(unavailable)
                break
            return results
        timed_out = MoveRefused(ErrorCode.request_timed_out, reason)
        return {key: results[key] or timed_out for key in keys}


def partition_result(field: str, number: int, refused: MoveRefused | None) -> Values:
    """The result of one partition, as the answers to reassignments and elections have it."""
    if refused is None:
        return {field: number, "error_code": ErrorCode.none, "error_message": None}
    return {field: number, "error_code": refused.code, "error_message": refused.message}
