"""StartMoves: moves and their throttle in one step of the store, all of it or nothing.

The step writes the states, the throttled-replica lists, the rates, and the lease by which the
controller undoes them. It also writes `/admin/reassign_partitions`, so that of two such requests
at once the later one sees the earlier; its version numbers the leases.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from kio.schema.errors import ErrorCode

from insync.broker.answers import Answering
from insync.broker.cluster_view import LEARNT_WITHIN_S, TopicPartition
from insync.broker.lease_steps import lease_step, numbered
from insync.broker.reassignments import MoveRefused, PartitionSteps, Reassignments
from insync.broker.server import Reply
from insync.broker.topics import ATTEMPTS_MAX
from insync.metadata.configs import configs_of
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.records import ThrottleHold, decode_lease
from insync.metadata.store import STATES_PER_STEP_MAX, Delete, Entry, Operation
from insync.metadata.throttle_leases import hold_on, the_lease
from insync.rules.move_plan import Assignment, brokers_involved, moves
from insync.rules.partition_state import PartitionState
from insync.rules.refusals import BadThrottledReplicas
from insync.rules.throttle_lease import NO_LEASE, extend
from insync.rules.values import PartitionId
from insync.telemetry.schemas import REPLICAS_MOVED
from insync.wire import moves as wire
from insync.wire.moves import NO_THROTTLE, PRESERVE_THROTTLE, MoveResult, MovesStarted


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
        except Unavailable as unavailable:
            return MovesStarted(int(ErrorCode.request_timed_out), str(unavailable))
        return MovesStarted(int(ErrorCode.request_timed_out), "other changes kept coming first")

    def _states(
        self, request: wire.StartMoves
    ) -> tuple[dict[TopicPartition, PartitionState], tuple[MoveResult, ...]]:
        """The states that change, and what there is to say about each partition asked for."""
        changed: dict[TopicPartition, PartitionState] = {}
        results = []
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
        if not request.is_additional and any(move.replicas for move in request.partitions):
            self._refuse_beside_others(request, changed)
        return changed, tuple(results)

    def _refuse_beside_others(
        self, request: wire.StartMoves, changed: dict[TopicPartition, PartitionState]
    ) -> None:
        """Unless they are just what is asked for: an answer was lost, and it is asked again."""
        moving = [key for key, state in self._view.states.items() if state.is_moving]
        asked = {(move.topic, move.partition) for move in request.partitions}
        is_repeated = asked.issuperset(moving) and not changed and self._has_throttle_of(request)
        if moving and not is_repeated:
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                f"{moving[0][0]}-{moving[0][1]} is moving; wait for it, cancel it, or say that "
                "these moves are additional",
            )

    def _has_throttle_of(self, request: wire.StartMoves) -> bool:
        known, hold = self._known_lease()
        rates = {} if known is None or hold is not None else decode_lease(known.value).rates
        given = {str(request.throttle_bytes_per_s)} - {str(NO_THROTTLE)}
        return given == {rate.value for rate in rates.values()}

    def _known_lease(self) -> tuple[Entry | None, Entry | None]:
        """The one there is, and the node by which a tool holds it."""
        known = the_lease(self._store)
        return known, None if known is None else hold_on(self._store, known.path)

    def _beside(
        self, request: wire.StartMoves, changed: dict[TopicPartition, PartitionState]
    ) -> tuple[str | None, list[Operation]]:
        """The name of the lease that covers these moves, and what is written with the states."""
        number, asked = numbered(self._store)
        known, hold = self._known_lease()
        name = None if known is None or hold is not None else known.path.rpartition("/")[2]
        if request.throttle_bytes_per_s == NO_THROTTLE:
            return name, [asked]
        if request.throttle_bytes_per_s == PRESERVE_THROTTLE:
            if known is None or hold is not None:
                return None, [asked]
            return name, [asked, Delete(known.path, known.version)]
        if hold is not None:
            broker = ThrottleHold.decode(hold.value).broker
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                f"broker {broker} fills itself anew under a throttle; wait until it has caught up, "
                "or move without a throttle",
            )
        leased = self._lease_step(known, number, request.throttle_bytes_per_s, changed)
        if not leased:
            return name, [asked]  # nothing is copied: there is nothing to throttle
        return name or str(number), [asked, *leased]

    def _lease_step(
        self,
        known: Entry | None,
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
        lease = NO_LEASE if known is None else decode_lease(known.value)
        configs = configs_of(
            self._store,
            topics=sorted({topic for topic, _ in moving}),
            brokers=sorted(brokers_involved(moving).union(lease.brokers)),
        )
        try:
            extended, change = extend(lease, moving, bytes_per_s=bytes_per_s, configs=configs)
        except BadThrottledReplicas as refusal:
            raise MoveRefused(ErrorCode.invalid_config, str(refusal)) from None
        return lease_step(self._store, known, number, extended, change)


def _check(request: wire.StartMoves) -> None:
    """Refuse what no cluster could do."""
    throttle = request.throttle_bytes_per_s
    if throttle == PRESERVE_THROTTLE and any(move.replicas for move in request.partitions):
        raise MoveRefused(
            ErrorCode.invalid_request, "a throttle is preserved when moves end, not when they start"
        )
    if not request.partitions and throttle != PRESERVE_THROTTLE:
        raise MoveRefused(ErrorCode.invalid_request, "no partitions are named")
    if len(request.partitions) > STATES_PER_STEP_MAX:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"{len(request.partitions)} partitions; at most {STATES_PER_STEP_MAX} are moved in one "
            "request",
        )
    if throttle < 1 and throttle not in (NO_THROTTLE, PRESERVE_THROTTLE):
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"a throttle of {throttle} B/s would never let a move end; give 1 or more, or none",
        )
    asked = Counter((move.topic, move.partition) for move in request.partitions)
    twice = next((key for key, count in asked.items() if count > 1), None)
    if twice is not None:
        raise MoveRefused(ErrorCode.invalid_request, f"{twice[0]}-{twice[1]} is named twice")
