"""StartMoves: moves and their throttle in one step of the store, all of it or nothing.

The step writes the states, the throttled-replica lists, the rates, and the lease by which the
controller undoes them. It also writes `/admin/reassign_partitions`, so that of two such requests
at once the later one sees the earlier; its version numbers the leases.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Final

from kio.schema.errors import ErrorCode

from insync.broker.answers import Answering
from insync.broker.cluster_view import LEARNT_WITHIN_S, TopicPartition
from insync.broker.reassignments import MoveRefused, PartitionSteps, Reassignments
from insync.broker.server import Reply
from insync.broker.topics import ATTEMPTS_MAX
from insync.metadata import paths
from insync.metadata.configs import configs_of, configs_step
from insync.metadata.errors import Conflict
from insync.metadata.records import decode_lease, encode_lease
from insync.metadata.store import (
    STATES_PER_STEP_MAX,
    VALUE_BYTES_MAX,
    Create,
    Entry,
    Operation,
    Write,
)
from insync.rules.move_plan import Assignment, brokers_involved, moves
from insync.rules.partition_state import PartitionState
from insync.rules.refusals import BadThrottledReplicas
from insync.rules.throttle_lease import NO_LEASE, extend
from insync.rules.values import PartitionId
from insync.telemetry.schemas import REPLICAS_MOVED
from insync.wire import moves as wire
from insync.wire.moves import NO_THROTTLE, MoveResult, MovesStarted

LEASED_TOPICS_MAX: Final = 4_000  # each is up to four operations of the one step


class StartMoves:
    def __init__(self, steps: PartitionSteps, reassignments: Reassignments) -> None:
        self._steps = steps
        self._store = steps.store
        self._view = steps.view
        self._reassignments = reassignments
        self._answering = Answering()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = wire.read_request(frame, reply.header.body_at)
        self._answering.begin(reply, self._answer(reply, request))

    async def _answer(self, reply: Reply, request: wire.StartMoves) -> None:
        reply.send([wire.write_response(await self.start(request))])

    async def start(self, request: wire.StartMoves) -> MovesStarted:
        try:
            _check(request)
            for _ in range(ATTEMPTS_MAX):
                changed, results = self._states(request)
                refused = next((each for each in results if each.error), None)
                if refused is not None:
                    return MovesStarted(
                        refused.error,
                        f"nothing was changed: {refused.topic}-{refused.partition}: "
                        f"{refused.message}",
                        partitions=results,
                    )
                lease, beside = self._beside(request, changed)
                try:
                    await self._steps.commit(changed, REPLICAS_MOVED, beside)
                except Conflict:
                    continue
                # Clients ask any broker next, and many do not ask twice.
                await asyncio.sleep(LEARNT_WITHIN_S)
                return MovesStarted(int(ErrorCode.none), lease=lease, partitions=results)
        except MoveRefused as refused:
            return MovesStarted(int(refused.code), refused.message)
        return MovesStarted(int(ErrorCode.request_timed_out), "other changes kept coming first")

    def _states(
        self, request: wire.StartMoves
    ) -> tuple[dict[TopicPartition, PartitionState], tuple[MoveResult, ...]]:
        """The states that change, and what there is to say about each partition asked for."""
        if not request.is_additional and any(move.replicas for move in request.partitions):
            self._refuse_beside_others()
        changed, results = {}, []
        for move in request.partitions:
            key = (move.topic, move.partition)
            try:
                state = (
                    self._reassignments.started(key, move.replicas)
                    if move.replicas
                    else self._reassignments.cancelled(key)
                )
            except MoveRefused as refused:
                results.append(MoveResult(*key, int(refused.code), refused.message))
                continue
            results.append(MoveResult(*key))
            if state != self._view.states[key]:
                changed[key] = state
        return changed, tuple(results)

    def _refuse_beside_others(self) -> None:
        moving = next((key for key, state in self._view.states.items() if state.is_moving), None)
        if moving is not None:
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                f"{moving[0]}-{moving[1]} is moving; wait for it, cancel it, or say that these "
                "moves are additional",
            )

    def _beside(
        self, request: wire.StartMoves, changed: dict[TopicPartition, PartitionState]
    ) -> tuple[str | None, list[Operation]]:
        """The name of the lease that covers these moves, and what is written with the states."""
        counter = self._store.get(paths.REASSIGN_PARTITIONS)
        number = 0 if counter is None else counter.version + 1
        asked = json.dumps({"version": 1, "requests": number + 1}).encode()
        step: list[Operation] = [
            Create(paths.REASSIGN_PARTITIONS, asked)
            if counter is None
            else Write(counter.path, asked, counter.version)
        ]
        held = next(iter(self._store.under(paths.THROTTLE_LEASES)), None)
        name = None if held is None else held.path.rpartition("/")[2]
        if request.throttle_bytes_per_s == NO_THROTTLE:
            return name, step
        leased = self._lease_step(held, number, request.throttle_bytes_per_s, changed)
        if not leased:
            return name, step  # nothing is copied: there is nothing to throttle
        return name or str(number), [*step, *leased]

    def _lease_step(
        self,
        held: Entry | None,
        number: int,
        bytes_per_s: int,
        changed: dict[TopicPartition, PartitionState],
    ) -> list[Operation]:
        moving = moves(
            {
                (topic, PartitionId(partition)): Assignment(
                    replicas=state.replicas, adding=state.adding, removing=state.removing
                )
                for (topic, partition), state in {**self._view.states, **changed}.items()
                if state.is_moving
            },
            {},
            known=self._steps.known,
        )
        if not moving:
            return []
        lease = NO_LEASE if held is None else decode_lease(held.value)
        topics = sorted({topic for topic, _ in moving})
        configs = configs_of(
            self._store,
            topics=topics,
            brokers=sorted(brokers_involved(moving).union(lease.brokers)),
        )
        try:
            extended, change = extend(lease, moving, bytes_per_s=bytes_per_s, configs=configs)
        except BadThrottledReplicas as refusal:
            raise MoveRefused(ErrorCode.invalid_config, str(refusal)) from None
        value = encode_lease(extended)
        step = configs_step(self._store, change)
        written = [each.value for each in step if isinstance(each, Create | Write)]
        too_long = any(len(each) > VALUE_BYTES_MAX for each in (value, *written))
        if too_long or len(extended.topics) > LEASED_TOPICS_MAX:
            raise MoveRefused(
                ErrorCode.invalid_request,
                f"{len(extended.partitions)} partitions are too many under one throttle; "
                "move some of them later",
            )
        leased: Operation = (
            Create(paths.throttle_lease(str(number)), value)
            if held is None
            else Write(held.path, value, held.version)
        )
        return [leased, *step]


def _check(request: wire.StartMoves) -> None:
    """Refuse what no cluster could do."""
    if not request.partitions:
        raise MoveRefused(ErrorCode.invalid_request, "no partitions are named")
    if len(request.partitions) > STATES_PER_STEP_MAX:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"{len(request.partitions)} partitions; at most {STATES_PER_STEP_MAX} are moved in one "
            "request",
        )
    throttle = request.throttle_bytes_per_s
    if throttle < 1 and throttle != NO_THROTTLE:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"a throttle of {throttle} B/s would never let a move end; give 1 or more, or none",
        )
    asked = Counter((move.topic, move.partition) for move in request.partitions)
    twice = next((key for key, count in asked.items() if count > 1), None)
    if twice is not None:
        raise MoveRefused(ErrorCode.invalid_request, f"{twice[0]}-{twice[1]} is named twice")
