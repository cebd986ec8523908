"""HoldThrottle: a throttle for a broker that fills itself anew, as long as a tool renews it.

Taking it writes the lists, the rates, the lease, and a small node that each renewal writes anew.
The controller ends the lease when that node has not changed for too long. A renewal touches
nothing else: a rate that somebody changed by hand meanwhile is theirs.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode

from insync.broker.answers import Answering
from insync.broker.cluster_view import LEARNT_WITHIN_S
from insync.broker.lease_steps import lease_step, numbered
from insync.broker.reassignments import MoveRefused, PartitionSteps
from insync.broker.server import Reply
from insync.broker.topics import ATTEMPTS_MAX
from insync.metadata import paths
from insync.metadata.configs import configs_of
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.records import ThrottleHold, decode_lease
from insync.metadata.store import Create, Entry, Operation, Write
from insync.metadata.throttle_leases import end_step, hold_on, the_lease
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import BadThrottledReplicas
from insync.rules.throttle_lease import HOLD_MS, begin
from insync.rules.throttle_settings import is_filled_anew, of_bootstrap
from insync.rules.values import BrokerId, PartitionId
from insync.wire import holds as wire
from insync.wire.holds import NO_THROTTLE, ThrottleHeld

HOLDER_CHARACTERS_MAX: Final = 64


class HoldThrottle:
    def __init__(self, steps: PartitionSteps) -> None:
        self._view = steps.view
        self._store = steps.store
        self._answering = Answering()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = wire.read_request(frame, reply.header.body_at)
        self._answering.begin(reply, self._answer(reply, request))

    async def _answer(self, reply: Reply, request: wire.HoldThrottle) -> None:
        reply.send([wire.write_response(await self.hold(request))])

    async def hold(self, request: wire.HoldThrottle) -> ThrottleHeld:
        try:
            _check(request)
            for _ in range(ATTEMPTS_MAX):
                step = self._step(request)
                try:
                    if step:
                        await self._store.commit(*step)
                except Conflict:
                    continue
                if len(step) > 1:  # more than a renewal: tools ask any broker next what is set
                    await asyncio.sleep(LEARNT_WITHIN_S)
                lease = the_lease(self._store)
                is_held = lease is not None and hold_on(self._store, lease.path) is not None
                return ThrottleHeld(int(ErrorCode.none), lasts_ms=HOLD_MS if is_held else 0)
        except MoveRefused as refused:
            return ThrottleHeld(int(refused.code), refused.message)
        except Unavailable as unavailable:
            return ThrottleHeld(int(ErrorCode.request_timed_out), str(unavailable))
        return ThrottleHeld(int(ErrorCode.request_timed_out), "other changes kept coming first")

    def _step(self, request: wire.HoldThrottle) -> list[Operation]:
        lets_go = request.throttle_bytes_per_s == NO_THROTTLE
        lease = the_lease(self._store)
        hold = None if lease is None else hold_on(self._store, lease.path)
        if lease is not None and hold is not None and _holder(hold) == request.holder:
            if lets_go:
                return end_step(self._store, lease.path, lease.version, decode_lease(lease.value))
            return [Write(hold.path, hold.value, hold.version)]
        if lets_go:
            return []  # it has ended already
        if hold is not None:
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                f"broker {ThrottleHold.decode(hold.value).broker} is held back by another tool; "
                f"wait until it is done (a dead one's ends soon after {HOLD_MS // 1_000} s)",
            )
        if lease is not None:
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                "moves are under way under a throttle; wait until they are done",
            )
        return self._begin(request)

    def _begin(self, request: wire.HoldThrottle) -> list[Operation]:
        broker = BrokerId(request.broker)
        leaders: dict[TopicPartition, BrokerId | None] = {
            (topic, PartitionId(number)): state.leader
            for (topic, number), state in self._view.states.items()
            if is_filled_anew(broker, replicas=state.replicas, leader=state.leader)
        }
        if not leaders:
            raise MoveRefused(
                ErrorCode.invalid_request,
                f"broker {broker} follows no partition, so there is nothing to throttle",
            )
        throttle = of_bootstrap(
            leaders, broker, bytes_per_s=request.throttle_bytes_per_s, set_on=broker
        )
        configs = configs_of(self._store, topics=throttle.topics, brokers=throttle.brokers)
        try:
            lease, change = begin(throttle, configs=configs)
        except BadThrottledReplicas as refusal:
            raise MoveRefused(ErrorCode.invalid_config, str(refusal)) from None
        number, asked = numbered(self._store)
        hold = ThrottleHold(broker=broker, holder=request.holder)
        return [
            asked,
            *lease_step(self._store, None, number, lease, change),
            Create(paths.throttle_hold(paths.throttle_lease(str(number))), hold.encode()),
        ]


def _holder(hold: Entry) -> str:
    return ThrottleHold.decode(hold.value).holder


def _check(request: wire.HoldThrottle) -> None:
    """Refuse what no cluster could do."""
    throttle = request.throttle_bytes_per_s
    if throttle < 1 and throttle != NO_THROTTLE:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"under a throttle of {throttle} B/s no broker ever catches up; give 1 or more",
        )
    if not 0 < len(request.holder) <= HOLDER_CHARACTERS_MAX:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"a holder's name has 1 to {HOLDER_CHARACTERS_MAX} characters, not "
            f"{len(request.holder)}",
        )
