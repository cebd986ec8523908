"""The partitions that one fetcher follows. Each is in one state; every transition is made here.

| state        | meaning                                                                        |
|--------------|--------------------------------------------------------------------------------|
| `ToList`     | the next request lists it                                                      |
| `Listed`     | the leader has it in the fetch session, and answers when there is something    |
| `HeldBack`   | it is throttled (KIP-73), and the follower's quota has no bytes for it yet      |
| `Truncating` | the position to truncate its log at is being searched for                      |
| `Resting`    | it had an error; it is listed again after a pause                              |
| `Dropped`    | it is no longer followed, and the leader's fetch session still has to forget it |

A throttled partition that is out of sync is listed only with bytes reserved of the quota. Bytes are
reserved in turn, and given back when the answer to the request brings less. Thousands may be held
back: a request looks at those whose turn it is, and at the others only when the quota, or what the
metadata says of them, has changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import KeysView
from typing import Final, NamedTuple
from uuid import UUID

from insync.broker.quotas.quota_admission import QuotaAdmission, Waiter
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.settings import Settings
from insync.rules.throttling import Treatment, follower_is_in_sync
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.truncation import PreparedTruncation

PartitionKey = tuple[UUID, int]
"""A topic's id and the number of a partition."""


class ToList(NamedTuple):
    reserved_bytes: int | None = None
    """Bytes of the quota that the request may use; None: it needs none."""


class Listed(NamedTuple):
    epoch: LeaderEpoch
    """The leader epoch that the request named."""
    request: int
    """The number of the request. Answers to earlier requests are stale."""
    reserved_bytes: int | None = None
    """As in `ToList`, until the answer comes."""


class HeldBack:
    __slots__ = ()


class Truncating(NamedTuple):
    epoch: LeaderEpoch
    """The leader epoch in which the leader reported the divergence."""
    search: asyncio.Future[PreparedTruncation]
    """What is read for it. Another search or state makes its result stale."""


class Resting(NamedTuple):
    timer: asyncio.TimerHandle
    """Lists the partition again."""


class Dropped:
    __slots__ = ()


State = ToList | Listed | HeldBack | Truncating | Resting | Dropped

TO_LIST: Final = ToList()
HELD_BACK: Final = HeldBack()
DROPPED: Final = Dropped()


class FollowedPartition:
    __slots__ = ("is_in_session", "is_watermark_known", "key", "replica", "state")

    def __init__(self, key: PartitionKey, replica: Replica) -> None:
        self.key = key
        self.replica = replica
        self.state: State = DROPPED
        self.is_in_session = False
        """Whether the leader's fetch session has it. Always if `Listed`; in other states it is
        listed again or forgotten in the next request."""
        self.is_watermark_known = False
        """Whether the leader has sent its high watermark in this session."""

    @property
    def reserved_bytes(self) -> int | None:
        return self.state.reserved_bytes if isinstance(self.state, ToList | Listed) else None

    def accepts_answer_to(self, request: int) -> bool:
        """Whether the answer to this request is about the partition as it is now."""
        return isinstance(self.state, Listed) and self.state.request <= request


class FollowedPartitions:
    def __init__(
        self, *, replicas: Replicas, settings: Settings, quota: QuotaAdmission, waiter: Waiter
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._quota = quota
        self._waiter = waiter  # notified when the quota has bytes for those held back
        self._partitions: dict[PartitionKey, FollowedPartition] = {}
        self._session_size = 0  # partitions in the leader's fetch session
        # Partitions by state. `_enter` keeps them in step with it.
        self._to_list: dict[FollowedPartition, None] = {}  # in the order of the next request
        self._held_back: OrderedDict[FollowedPartition, None] = OrderedDict()  # next in turn first
        self._reserved: dict[FollowedPartition, None] = {}  # `ToList` or `Listed`, with bytes
        self._to_forget: dict[FollowedPartition, None] = {}  # in the session, not to be fetched

    def get(self, key: PartitionKey) -> FollowedPartition | None:
        partition = self._partitions.get(key)
        return None if partition is None or partition.state is DROPPED else partition

    @property
    def to_list(self) -> KeysView[FollowedPartition]:
        return self._to_list.keys()

    @property
    def to_forget(self) -> KeysView[FollowedPartition]:
        return self._to_forget.keys()

    @property
    def held_back(self) -> int:
        return len(self._held_back)

    @property
    def has_reservations(self) -> bool:
        return bool(self._reserved)

    @property
    def needs_request(self) -> bool:
        """Whether a request to the leader would have anything to list or to wait for."""
        return bool(self._session_size or self._to_list)

    @property
    def has_unsent_changes(self) -> bool:
        return bool(self._to_list or self._to_forget)

    # Transitions.

    def follow(self, replica: Replica) -> bool:
        """Fetch for the replica; False if that is so already, in its leader epoch.

        Called after each change of the partition's state: one held back may be in the ISR now.
        """
        key = (replica.topic_id, replica.key[1])
        partition = self._partitions.get(key)
        if partition is None:
            partition = FollowedPartition(key, replica)
        elif partition.replica is not replica:  # made again: what is known is of the former one
            partition.replica = replica
            partition.is_watermark_known = False
        elif _is_followed_in(partition.state, replica.epoch):
            return self._list_if_unlimited(partition)
        self._partitions.pop(key, None)  # followed last
        self._partitions[key] = partition
        self.list_again(partition)
        return True

    def drop(self, replica: Replica) -> None:
        partition = self.get((replica.topic_id, replica.key[1]))
        if partition is not None:
            self._enter(partition, DROPPED)
            if not partition.is_in_session:
                del self._partitions[partition.key]

    def list_again(self, partition: FollowedPartition) -> None:
        self._enter(partition, TO_LIST)

    def rest(self, partition: FollowedPartition, timer: asyncio.TimerHandle) -> None:
        self._enter(partition, Resting(timer))

    def truncate(
        self, partition: FollowedPartition, search: asyncio.Future[PreparedTruncation]
    ) -> None:
        self._enter(partition, Truncating(partition.replica.epoch, search))

    def note_sent(self, request: int) -> None:
        """A request listed and forgot all that was to be listed and forgotten."""
        for partition in self._to_list:
            if not partition.is_in_session:
                partition.is_in_session = True
                self._session_size += 1
            reserved_bytes = partition.reserved_bytes
            partition.state = Listed(partition.replica.epoch, request, reserved_bytes)
        self._to_list.clear()
        for partition in self._to_forget:
            partition.is_in_session = False
            self._session_size -= 1
            if partition.state is DROPPED:
                del self._partitions[partition.key]
        self._to_forget.clear()

    def start_session(self) -> None:
        """The leader has no session, or a new one: list everything that can be listed."""
        for partition in list(self._partitions.values()):
            partition.is_in_session = partition.is_watermark_known = False
            if partition.state is DROPPED:
                del self._partitions[partition.key]
            elif not isinstance(partition.state, Resting | Truncating):
                self._to_list.pop(partition, None)  # in the order of following
                self._enter(partition, TO_LIST)
        self._to_forget.clear()
        self._session_size = 0

    def stop(self) -> None:
        for partition in list(self._partitions.values()):
            # The broker that stops truncates nothing more: the next start does.
            self._enter(partition, DROPPED)

    def _enter(self, partition: FollowedPartition, state: State) -> None:
        """Leave the partition's state, with everything that belongs to it, for another one."""
        match partition.state:
            case ToList() if not isinstance(state, ToList):
                self._to_list.pop(partition, None)
            case HeldBack():
                self._held_back.pop(partition, None)
            case Resting(timer):
                timer.cancel()
            case _:
                pass
        unused_bytes = partition.reserved_bytes
        if unused_bytes is not None:
            del self._reserved[partition]
            self._quota.settle(unused_bytes, 0)
        partition.state = state
        match state:
            case ToList(reserved_bytes):
                self._to_list[partition] = None
                self._to_forget.pop(partition, None)
                if reserved_bytes is not None:
                    self._reserved[partition] = None
                return
            case HeldBack():
                self._held_back[partition] = None
            case _:
                pass
        if partition.is_in_session:
            self._to_forget[partition] = None

    # Under a throttle.

    @property
    def knows_reserved_watermarks(self) -> bool:
        """Whether every partition with reserved bytes is known to lack something, or not to."""
        return all(partition.is_watermark_known for partition in self._reserved)

    def on_quota_changed(self) -> bool:
        """Reserve for what was listed without; returns whether there is anything to do."""
        for partition in self._partitions.values():
            state = partition.state
            is_unreserved = isinstance(state, Listed) and state.reserved_bytes is None
            if is_unreserved and self._is_limited(partition):
                self._enter(partition, TO_LIST)
            else:
                self._list_if_unlimited(partition)
        return bool(self._to_list or self._held_back)

    def _list_if_unlimited(self, partition: FollowedPartition) -> bool:
        """List a partition that is held back without need; returns whether it was."""
        if partition.state is not HELD_BACK or self._is_limited(partition):
            return False
        self._enter(partition, TO_LIST)
        return True

    def apply_quota(self) -> None:
        """Hold back what the quota has no bytes for, and reserve bytes for the next in turn."""
        if not self._quota.is_set and not self._held_back:
            return
        for partition in list(self._to_list):
            if partition.reserved_bytes is None and self._is_limited(partition):
                self._enter(partition, HELD_BACK)
        self._reserve()
        if not self._held_back and not self._reserved:
            self._quota.leave(self._waiter)

    def _reserve(self) -> None:
        """Reserve bytes for as many of those held back as possible, the next in turn first."""
        settings = self._settings.broker
        partition_bytes = settings.replica_fetch_max_bytes
        response_bytes = settings.replica_fetch_response_max_bytes
        first = self._next_in_turn()
        if first is None:
            return
        left_bytes = self._quota.reserve(
            self._waiter,
            min(response_bytes, partition_bytes * len(self._held_back)),
            batch_bytes_max=first.replica.batch_bytes_max,
        )
        while left_bytes > 0 and (partition := self._next_in_turn()) is not None:
            # Only the first may be answered with a batch larger than what is reserved for it.
            is_too_little = left_bytes < partition.replica.batch_bytes_max
            if partition is not first and is_too_little:
                break
            reserved_bytes = min(left_bytes, partition_bytes)
            left_bytes -= reserved_bytes
            self._enter(partition, ToList(reserved_bytes))
        if left_bytes > 0:
            self._quota.settle(left_bytes, 0)

    def _next_in_turn(self) -> FollowedPartition | None:
        """The next of those held back. One that needs no quota any more is listed instead."""
        while self._held_back:
            partition = next(iter(self._held_back))
            if not self._list_if_unlimited(partition):
                return partition
        return None

    def count_received(self, partition: FollowedPartition, size_bytes: int) -> None:
        """Count received bytes against those that were reserved for them, if the quota is set."""
        if not self._quota.is_set:
            return
        state = partition.state
        if isinstance(state, ToList | Listed) and state.reserved_bytes is not None:
            del self._reserved[partition]
            partition.state = state._replace(reserved_bytes=None)
            self._quota.settle(state.reserved_bytes, size_bytes)
            return
        match self._treatment(partition):
            case Treatment.COUNTED:
                self._quota.count_in_sync(size_bytes)
            case Treatment.LIMITED:  # listed before it was throttled
                self._quota.settle(0, size_bytes)
            case Treatment.FREE:
                pass

    def end_reservations(self) -> None:
        """The last answer came. Partitions that it did not bring anything for are next in turn."""
        for partition in reversed(list(self._reserved)):
            self._enter(partition, HELD_BACK)
            self._held_back.move_to_end(partition, last=False)

    def _is_limited(self, partition: FollowedPartition) -> bool:
        return self._treatment(partition) is Treatment.LIMITED

    def _treatment(self, partition: FollowedPartition) -> Treatment:
        if not self._quota.is_set:
            return Treatment.FREE
        return self._quota.treatment(partition.replica.key, is_in_sync=self._is_in_sync(partition))

    def _is_in_sync(self, partition: FollowedPartition) -> bool:
        """Whether the ISR has this incarnation, or the replica lacks nothing that is committed."""
        replica, replicas = partition.replica, self._replicas
        members = replica.members
        if members is not None and replicas.broker in members and replicas.may_lead():
            return True
        watermark = Offset(replica.leader_watermark) if partition.is_watermark_known else None
        return follower_is_in_sync(
            next_offset=Offset(replica.log.end), leader_high_watermark=watermark
        )


def _is_followed_in(state: State, epoch: LeaderEpoch) -> bool:
    match state:
        case ToList() | HeldBack():
            return True  # the request that lists it will name the epoch of then
        case Listed() | Truncating():
            return state.epoch == epoch
        case Resting() | Dropped():
            return False
