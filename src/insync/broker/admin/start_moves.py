"""StartMoves: reassignments and their throttle in one step of the store, all or nothing.

The step writes the partition states, the throttled-replica lists, the rates, and the throttle lease
from which the controller restores them. It also writes `/admin/reassign_partitions`, so that of two
concurrent requests the later one sees the earlier; the version of that node numbers the leases.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from kio.schema.errors import ErrorCode

from insync.broker.admin.lease_steps import lease_operations, next_lease_number
from insync.broker.admin.partition_steps import MoveRefused, PartitionSteps
from insync.broker.admin.reassignments import Reassignments
from insync.broker.admin.topics import ATTEMPTS_MAX
from insync.broker.cluster_view import PROPAGATION_MAX_S, TopicPartition
from insync.broker.server.answers import BackgroundAnswers
from insync.broker.server.server import Reply
from insync.metadata.configs import configs_of
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.records import ThrottleHold, decode_lease
from insync.metadata.store import STATES_PER_STEP_MAX, Delete, Entry, Operation
from insync.metadata.throttle_leases import current_lease, hold_of_lease
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
        self._answers = BackgroundAnswers()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = wire.read_request(frame, reply.header.body_at)
        self._answers.begin(reply, self._answer(reply, request))

    async def _answer(self, reply: Reply, request: wire.StartMoves) -> None:
        reply.send([wire.write_response(await self.start(request))])

    async def start(self, request: wire.StartMoves) -> MovesStarted:
        try:
            _check(request)
            for _ in range(ATTEMPTS_MAX):
                changed, results = self._new_states(request)
                refused = next((result for result in results if result.error), None)
                if refused is not None:
                    return MovesStarted(
                        refused.error,
                        f"nothing was changed: {refused.topic}-{refused.partition}: "
                        f"{refused.message}",
                        partitions=results,
                    )
                lease, operations = self._throttle_operations(request, changed)
                try:
                    await self._steps.commit(changed, REPLICAS_MOVED, operations)
                except Conflict:
                    continue
                # A client may ask another broker next, and does not expect the old state.
                await asyncio.sleep(PROPAGATION_MAX_S)
                return MovesStarted(int(ErrorCode.none), lease=lease, partitions=results)
        except MoveRefused as refused:
            return MovesStarted(int(refused.code), refused.message)
        except Unavailable as unavailable:
            return MovesStarted(int(ErrorCode.request_timed_out), str(unavailable))
        return MovesStarted(int(ErrorCode.request_timed_out), "other changes kept coming first")

    def _new_states(
        self, request: wire.StartMoves
    ) -> tuple[dict[TopicPartition, PartitionState], tuple[MoveResult, ...]]:
        """The states that change, and the result of each partition of the request."""
        changed: dict[TopicPartition, PartitionState] = {}
        results = []
        for move in request.partitions:
            key = (move.topic, move.partition)
            try:
                state = (
                    self._reassignments.start(key, move.replicas)
                    if move.replicas
                    else self._reassignments.cancel(key)
                )
            except MoveRefused as refused:
                results.append(MoveResult(*key, int(refused.code), refused.message))
                continue
            results.append(MoveResult(*key))
            if state != self._view.states[key]:
                changed[key] = state
        if not request.is_additional and any(move.replicas for move in request.partitions):
            self._refuse_if_others_move(request, changed)
        return changed, tuple(results)

    def _refuse_if_others_move(
        self, request: wire.StartMoves, changed: dict[TopicPartition, PartitionState]
    ) -> None:
        """Refuse while partitions move, unless the request repeats one whose answer was lost."""
        moving = [key for key, state in self._view.states.items() if state.is_moving]
        requested = {(move.topic, move.partition) for move in request.partitions}
        is_repeated = (
            requested.issuperset(moving) and not changed and self._has_throttle_of(request)
        )
        if moving and not is_repeated:
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                f"{moving[0][0]}-{moving[0][1]} is moving; wait for it, cancel it, or mark these "
                "moves as additional",
            )

    def _has_throttle_of(self, request: wire.StartMoves) -> bool:
        lease, hold = self._current_lease()
        rates = {} if lease is None or hold is not None else decode_lease(lease.value).rates
        requested = {str(request.throttle_bytes_per_s)} - {str(NO_THROTTLE)}
        return requested == {rate.value for rate in rates.values()}

    def _current_lease(self) -> tuple[Entry | None, Entry | None]:
        """The current throttle lease, and the node by which a tool holds it."""
        lease = current_lease(self._store)
        return lease, None if lease is None else hold_of_lease(self._store, lease.path)

    def _throttle_operations(
        self, request: wire.StartMoves, changed: dict[TopicPartition, PartitionState]
    ) -> tuple[str | None, list[Operation]]:
        """The name of the lease that covers these moves, and the operations beside the states."""
        number, count_request = next_lease_number(self._store)
        lease, hold = self._current_lease()
        name = None if lease is None or hold is not None else lease.path.rpartition("/")[2]
        if request.throttle_bytes_per_s == NO_THROTTLE:
            return name, [count_request]
        if request.throttle_bytes_per_s == PRESERVE_THROTTLE:
            if lease is None or hold is not None:
                return None, [count_request]
            return name, [count_request, Delete(lease.path, lease.version)]
        if hold is not None:
            broker = ThrottleHold.decode(hold.value).broker
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                f"broker {broker} is rebuilding its replicas under a throttle; wait until it has "
                "caught up, or move without a throttle",
            )
        operations = self._extend_lease(lease, number, request.throttle_bytes_per_s, changed)
        if not operations:
            return name, [count_request]  # no replica is copied, so there is nothing to throttle
        return name or str(number), [count_request, *operations]

    def _extend_lease(
        self,
        entry: Entry | None,
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
            known=self._steps.known_brokers,
        )
        if not moving:
            return []
        lease = NO_LEASE if entry is None else decode_lease(entry.value)
        configs = configs_of(
            self._store,
            topics=sorted({topic for topic, _ in moving}),
            brokers=sorted(brokers_involved(moving).union(lease.brokers)),
        )
        try:
            extended, change = extend(lease, moving, bytes_per_s=bytes_per_s, configs=configs)
        except BadThrottledReplicas as refusal:
            raise MoveRefused(ErrorCode.invalid_config, str(refusal)) from None
        return lease_operations(self._store, entry, number, extended, change)


def _check(request: wire.StartMoves) -> None:
    """Refuse what is invalid in any cluster."""
    throttle = request.throttle_bytes_per_s
    if throttle == PRESERVE_THROTTLE and any(move.replicas for move in request.partitions):
        raise MoveRefused(
            ErrorCode.invalid_request,
            "a throttle is preserved when moves end, not when they start",
        )
    if not request.partitions and throttle != PRESERVE_THROTTLE:
        raise MoveRefused(ErrorCode.invalid_request, "the request names no partitions")
    if len(request.partitions) > STATES_PER_STEP_MAX:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"{len(request.partitions)} partitions; one request moves at most "
            f"{STATES_PER_STEP_MAX}",
        )
    if throttle < 1 and throttle not in (NO_THROTTLE, PRESERVE_THROTTLE):
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"under a throttle of {throttle} B/s no move would end; use 1 or more, or no throttle",
        )
    times_named = Counter((move.topic, move.partition) for move in request.partitions)
    twice = next((key for key, count in times_named.items() if count > 1), None)
    if twice is not None:
        raise MoveRefused(ErrorCode.invalid_request, f"{twice[0]}-{twice[1]} is named twice")
