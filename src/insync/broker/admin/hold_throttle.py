"""HoldThrottle: a throttle for a broker that rebuilds its replicas, while a tool renews it.

The first request writes the throttled-replica lists, the rates, the lease, and a small *hold* node.
A renewal writes the hold again, and adds leaders that lead since to the lists and the rates. What
the lease has set before is left alone, so a rate that an operator changed meanwhile stays. The
controller ends the lease when the hold has not been written for too long.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode

from insync.broker.admin.lease_steps import lease_operations, next_lease_number
from insync.broker.admin.partition_steps import MoveRefused
from insync.broker.admin.topics import ATTEMPTS_MAX
from insync.broker.cluster_view import PROPAGATION_MAX_S, ClusterView
from insync.broker.server.answers import BackgroundAnswers
from insync.broker.server.server import Reply
from insync.metadata import paths
from insync.metadata.configs import configs_of
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.records import ThrottleHold, decode_lease
from insync.metadata.store import Create, Entry, Operation, Write
from insync.metadata.throttle_leases import current_lease, end_step, hold_of_lease
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import BadThrottledReplicas
from insync.rules.throttle_lease import HOLD_MS, begin, follow_leaders
from insync.rules.throttle_settings import Throttle, is_rebuilt_from_leader, of_bootstrap
from insync.rules.values import BrokerId, PartitionId
from insync.wire import holds as wire
from insync.wire.holds import NO_THROTTLE, ThrottleHeld

HOLDER_CHARACTERS_MAX: Final = 64


class HoldThrottle:
    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._store = view.store
        self._answers = BackgroundAnswers()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = wire.read_request(frame, reply.header.body_at)
        self._answers.begin(reply, self._answer(reply, request))

    async def _answer(self, reply: Reply, request: wire.HoldThrottle) -> None:
        reply.send([wire.write_response(await self.hold(request))])

    async def hold(self, request: wire.HoldThrottle) -> ThrottleHeld:
        try:
            _check(request)
            for _ in range(ATTEMPTS_MAX):
                step = self._operations(request)
                try:
                    if step:
                        await self._store.commit(*step)
                except Conflict:
                    continue
                if len(step) > 1:  # more than a renewal: the tool may ask another broker next
                    await asyncio.sleep(PROPAGATION_MAX_S)
                lease = current_lease(self._store)
                is_held = lease is not None and hold_of_lease(self._store, lease.path) is not None
                return ThrottleHeld(int(ErrorCode.none), lasts_ms=HOLD_MS if is_held else 0)
        except MoveRefused as refused:
            return ThrottleHeld(int(refused.code), refused.message)
        except Unavailable as unavailable:
            return ThrottleHeld(int(ErrorCode.request_timed_out), str(unavailable))
        return ThrottleHeld(int(ErrorCode.request_timed_out), "other changes kept coming first")

    def _operations(self, request: wire.HoldThrottle) -> list[Operation]:
        is_release = request.throttle_bytes_per_s == NO_THROTTLE
        lease = current_lease(self._store)
        hold = None if lease is None else hold_of_lease(self._store, lease.path)
        if lease is not None and hold is not None and _holder_of(hold) == request.holder:
            if is_release:
                return end_step(self._store, lease.path, lease.version, decode_lease(lease.value))
            renewal = Write(hold.path, hold.value, hold.version)
            return [renewal, *self._extend(request, lease, ThrottleHold.decode(hold.value).broker)]
        if is_release:
            return []  # it has ended already
        if hold is not None:
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                f"broker {ThrottleHold.decode(hold.value).broker} is held back by another tool; "
                "wait until it is done (the throttle of a dead tool ends soon after "
                f"{HOLD_MS // 1_000} s)",
            )
        if lease is not None:
            raise MoveRefused(
                ErrorCode.reassignment_in_progress,
                "reassignments are under way under a throttle; wait until they are done",
            )
        return self._begin(request)

    def _throttle(self, request: wire.HoldThrottle, broker: BrokerId) -> Throttle | None:
        """By the leaders of now; None if the broker follows no partition."""
        leaders: dict[TopicPartition, BrokerId | None] = {
            (topic, PartitionId(number)): state.leader
            for (topic, number), state in self._view.states.items()
            if is_rebuilt_from_leader(broker, replicas=state.replicas, leader=state.leader)
        }
        if not leaders:
            return None
        return of_bootstrap(
            leaders, broker, bytes_per_s=request.throttle_bytes_per_s, set_on=broker
        )

    def _extend(
        self, request: wire.HoldThrottle, entry: Entry, broker: BrokerId
    ) -> list[Operation]:
        throttle = self._throttle(request, broker)
        if throttle is None:
            return []
        lease = decode_lease(entry.value)
        configs = configs_of(self._store, topics=throttle.topics, brokers=throttle.brokers)
        try:
            extension = follow_leaders(lease, throttle, configs=configs)
            if extension is None:
                return []
            number, count_request = next_lease_number(self._store)
            return [count_request, *lease_operations(self._store, entry, number, *extension)]
        except (BadThrottledReplicas, MoveRefused):
            return []  # a list that an operator set since, or too long: the throttle is renewed

    def _begin(self, request: wire.HoldThrottle) -> list[Operation]:
        broker = BrokerId(request.broker)
        throttle = self._throttle(request, broker)
        if throttle is None:
            raise MoveRefused(
                ErrorCode.invalid_request,
                f"broker {broker} follows no partition; there is nothing to throttle",
            )
        configs = configs_of(self._store, topics=throttle.topics, brokers=throttle.brokers)
        try:
            lease, change = begin(throttle, configs=configs)
        except BadThrottledReplicas as refusal:
            raise MoveRefused(ErrorCode.invalid_config, str(refusal)) from None
        number, count_request = next_lease_number(self._store)
        hold = ThrottleHold(broker=broker, holder=request.holder)
        return [
            count_request,
            *lease_operations(self._store, None, number, lease, change),
            Create(paths.throttle_hold(paths.throttle_lease(str(number))), hold.encode()),
        ]


def _holder_of(hold: Entry) -> str:
    return ThrottleHold.decode(hold.value).holder


def _check(request: wire.HoldThrottle) -> None:
    """Refuse what is invalid in any cluster."""
    throttle = request.throttle_bytes_per_s
    if throttle < 1 and throttle != NO_THROTTLE:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"under a throttle of {throttle} B/s no broker ever catches up; use 1 or more",
        )
    if not 0 < len(request.holder) <= HOLDER_CHARACTERS_MAX:
        raise MoveRefused(
            ErrorCode.invalid_request,
            f"a holder's name has 1 to {HOLDER_CHARACTERS_MAX} characters, not "
            f"{len(request.holder)}",
        )
