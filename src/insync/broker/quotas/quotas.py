"""KIP-73 in a broker: which bytes of throttled replicas may be sent and fetched, and which wait.

The leader's side and the follower's side have a quota each, with a list of replicas and a rate of
its own. `rules.throttling` and `rules.quota_bucket` decide; here they meet requests and time:

- A leader takes the bytes of a response from the bucket when the response is sent.
- A follower reserves bytes before it sends a request, and settles them with the answer.
- A fetch that is refused waits in a queue. The first in the queue is notified when the bucket holds
  what it needs. No fetch overtakes it: small batches would keep the bucket from ever filling for
  a large one.

Without a throttle, one flag per request is read, and nothing else is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from insync.broker.broker_loop import BrokerLoop
from insync.broker.quotas.quota_admission import UNTHROTTLED, Partition, ResponseAdmission, Waiter
from insync.broker.settings import LONG_MAX, Settings
from insync.rules.quota_bucket import Bucket
from insync.rules.quota_window import QuotaWindow
from insync.rules.refusals import BadSetting
from insync.rules.throttled_replicas import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
    NO_REPLICAS,
    ThrottledReplicas,
    parse,
)
from insync.rules.throttling import Treatment, treatment
from insync.rules.values import BrokerId, PartitionId

LEADER, FOLLOWER = "leader", "follower"
RATES: Final = {LEADER: LEADER_RATE, FOLLOWER: FOLLOWER_RATE}
LISTS: Final = {LEADER: LEADER_LIST, FOLLOWER: FOLLOWER_LIST}
WAKE_MS_MIN: Final = 10
"""The bucket refills at least this long before a fetch is notified: a notification for one batch
each millisecond would cost more than it brings."""


class Quota:
    """One side of this broker's throttle: its rate, its list of replicas, and what waits for it."""

    def __init__(self, side: str, broker: BrokerId, loop: BrokerLoop) -> None:
        self.side = side
        self.rate: int | None = None  # bytes per second; None: no limit
        self.is_set = False  # whether any replica is throttled
        self.bytes_passed = 0  # of throttled replicas, since the start
        self.bytes_exempt = 0  # of these, for in-sync replicas
        self._broker = broker
        self._loop = loop
        self._bucket: Bucket | None = None
        self._window = QuotaWindow()
        self._lists: dict[str, ThrottledReplicas] = {}
        self._queue: dict[Waiter, int] = {}  # the longest waiting first, with the bytes it needs
        self._notified: Waiter | None = None  # the one that tries again right now
        self._fetchers: dict[Waiter, None] = {}  # as follower: those that share the bucket
        self._timer: asyncio.TimerHandle | None = None

    # Settings.

    def apply_rate(self, settings: Settings) -> None:
        rate = settings.integer(RATES[self.side])
        self.rate = None if rate == LONG_MAX else rate
        window = QuotaWindow(
            samples_max=settings.integer("replication.quota.window.num"),
            sample_ms=settings.integer("replication.quota.window.size.seconds") * 1_000,
        )
        if (window.samples_max, window.sample_ms) != (
            self._window.samples_max,
            self._window.sample_ms,
        ):
            self._window = window
        now_ms = self._loop.now_ms
        if self.rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = Bucket(bytes_per_s=self.rate, at_ms=now_ms)
        else:
            self._bucket = self._bucket.with_rate(self.rate, now_ms=now_ms)
        self._notify_all()

    def apply_lists(self, topics: Mapping[str, Mapping[str, str]], changed: Iterable[str]) -> None:
        setting = LISTS[self.side]
        lists_before = dict(self._lists)
        for topic in changed:
            replicas = _throttled_replicas(topics.get(topic, {}).get(setting, ""))
            if replicas == NO_REPLICAS:
                self._lists.pop(topic, None)
            else:
                self._lists[topic] = replicas
        if self._lists != lists_before:
            self.is_set = bool(self._lists)
            self._notify_all()

    @property
    def topics(self) -> Iterable[str]:
        return self._lists.keys()

    def throttled_of(self, partitions: Iterable[Partition]) -> Iterator[Partition]:
        """Of these, the partitions whose replica on this broker is throttled."""
        return (partition for partition in partitions if self.throttles(partition))

    def lists(self, partition: Partition, broker: BrokerId) -> bool:
        """Whether this side's list has the replica on that broker, which may be another one."""
        replicas = self._lists.get(partition[0])
        return replicas is not None and replicas.includes(PartitionId(partition[1]), broker)

    def throttles(self, partition: Partition) -> bool:
        return self.lists(partition, self._broker)

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment:
        return treatment(is_throttled=self.throttles(partition), is_in_sync=is_in_sync)

    # Measuring.

    def bytes_per_s(self) -> float:
        """The rate of throttled replication, as Kafka measures it."""
        now_ms = self._loop.now_ms
        self._window = self._window.measured(now_ms=now_ms)
        return self._window.bytes_per_s(now_ms=now_ms)

    def _record(self, size_bytes: int, exempt_bytes: int, *, now_ms: int) -> None:
        if size_bytes:
            self._window = self._window.record(size_bytes, now_ms=now_ms)
            self.bytes_passed += size_bytes
            self.bytes_exempt += exempt_bytes

    # As leader.

    def response(self, waiter: Waiter) -> ResponseAdmission:
        if not self.is_set:
            return UNTHROTTLED
        now_ms = self._loop.now_ms
        return ThrottledResponse(
            self,
            waiter,
            None if self._bucket is None else self._bucket.at(now_ms),
            is_open=self._is_first(waiter),
            now_ms=now_ms,
        )

    def spend(self, response: ThrottledResponse) -> None:
        """Take what was admitted for a response from the bucket as it is now.

        Since the response was begun, other bytes may have been counted.
        """
        now_ms = response.now_ms
        if self._bucket is not None:
            bucket = self._bucket.settle(
                reserved_bytes=0, received_bytes=response.limited_bytes, now_ms=now_ms
            )
            self._bucket = bucket.pass_in_sync(response.exempt_bytes, now_ms=now_ms)
        self._record(
            response.limited_bytes + response.exempt_bytes, response.exempt_bytes, now_ms=now_ms
        )
        if response.limited_bytes:
            self._queue.pop(response.waiter, None)
        if self._queue:
            self._set_timer()

    # As follower.

    def reserve(self, waiter: Waiter, requested_bytes: int, *, batch_bytes_max: int) -> int:
        if self._bucket is None:
            return requested_bytes
        self._fetchers[waiter] = None
        if not self._is_first(waiter):
            self.wait(waiter, min(requested_bytes, batch_bytes_max))
            return 0
        self._bucket, granted_bytes = self._bucket.reserve(
            requested_bytes,
            batch_bytes_max=batch_bytes_max,
            leaders=len(self._fetchers),
            now_ms=self._loop.now_ms,
        )
        if granted_bytes:
            self._queue.pop(waiter, None)
        else:
            self.wait(waiter, min(requested_bytes, batch_bytes_max))
        return granted_bytes

    def settle(self, reserved_bytes: int, received_bytes: int) -> None:
        now_ms = self._loop.now_ms
        bucket = self._bucket
        if bucket is not None:
            # Bytes that were reserved while there was no rate are not in this bucket.
            in_bucket_bytes = min(reserved_bytes, bucket.reserved // 1_000)
            self._bucket = bucket.settle(
                reserved_bytes=in_bucket_bytes, received_bytes=received_bytes, now_ms=now_ms
            )
        self._record(received_bytes, 0, now_ms=now_ms)
        if self._queue:
            self._set_timer()

    def count_in_sync(self, size_bytes: int) -> None:
        now_ms = self._loop.now_ms
        if self._bucket is not None:
            self._bucket = self._bucket.pass_in_sync(size_bytes, now_ms=now_ms)
        self._record(size_bytes, size_bytes, now_ms=now_ms)

    # The queue.

    def _is_first(self, waiter: Waiter) -> bool:
        """Whether no other fetch has to be served before this one."""
        return not self._queue or self._notified is waiter or next(iter(self._queue)) is waiter

    def wait(self, waiter: Waiter, needed_bytes: int) -> None:
        """Queue for this many bytes. A waiter that was notified and is refused stays the first."""
        if self._notified is waiter:
            self._queue = {waiter: needed_bytes, **self._queue}
        else:
            self._queue[waiter] = needed_bytes
        self._set_timer()

    def wait_behind(self, waiter: Waiter) -> None:
        """Queue for a number of bytes that is not known before the waiter is notified."""
        if waiter not in self._queue and self._notified is not waiter:
            self._queue[waiter] = 1

    def leave(self, waiter: Waiter) -> None:
        self._fetchers.pop(waiter, None)
        if self._queue.pop(waiter, None) is not None and self._queue:
            self._set_timer()

    def _set_timer(self) -> None:
        """Notify the first in the queue when the bucket holds what it needs.

        While it depends on a reservation there is no timer: settling it sets one.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._bucket is None or not self._queue:
            return
        now_ms = self._loop.now_ms
        at_ms = self._bucket.at(now_ms).admits_at_ms(next(iter(self._queue.values())))
        if at_ms is not None:
            delay_ms = max(WAKE_MS_MIN, at_ms - now_ms)
            self._timer = self._loop.call_later(delay_ms / 1_000, self._notify_admitted)

    def _notify_admitted(self) -> None:
        """Notify waiters in turn, as far as the bucket has bytes for them."""
        self._timer = None
        for waiter, needed_bytes in list(self._queue.items()):
            bucket = self._bucket
            if bucket is not None and not bucket.admits(needed_bytes, now_ms=self._loop.now_ms):
                break
            self._queue.pop(waiter, None)
            self._notified = waiter
            try:
                waiter.has_room()
            finally:
                self._notified = None
            if waiter in self._queue:
                break
        self._set_timer()

    def _notify_all(self) -> None:
        """The rate or the list has changed: every waiter tries again."""
        queue, self._queue = self._queue, {}
        for waiter in queue:
            self._loop.then(waiter.has_room)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class ThrottledResponse:
    """The admission of one response while any replica is throttled."""

    __slots__ = (
        "_bucket",
        "_quota",
        "exempt_bytes",
        "is_open",
        "limited_bytes",
        "now_ms",
        "waiter",
    )

    def __init__(
        self, quota: Quota, waiter: Waiter, bucket: Bucket | None, *, is_open: bool, now_ms: int
    ) -> None:
        self._quota = quota
        self._bucket = bucket  # as it would be after this response; None: there is no rate
        self.waiter = waiter
        self.is_open = is_open
        self.now_ms = now_ms
        self.limited_bytes = 0  # admitted
        self.exempt_bytes = 0  # of in-sync replicas

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment:
        return self._quota.treatment(partition, is_in_sync=is_in_sync)

    def room_bytes(self, left_bytes: int) -> int:
        if not self.is_open:
            self._quota.wait_behind(self.waiter)
            return 0
        if self._bucket is None:
            return left_bytes
        return max(1, min(left_bytes, self._bucket.credit // 1_000))

    def admit(self, size_bytes: int) -> bool:
        if not self.is_open:
            return False
        if self._bucket is not None:
            if not self._bucket.admits(size_bytes, now_ms=self.now_ms):
                self.is_open = False
                self._quota.wait(self.waiter, size_bytes)
                return False
            self._bucket = self._bucket.spend(size_bytes, now_ms=self.now_ms)
        self.limited_bytes += size_bytes
        return True

    def count_in_sync(self, size_bytes: int) -> None:
        if self._bucket is not None:
            self._bucket = self._bucket.pass_in_sync(size_bytes, now_ms=self.now_ms)
        self.exempt_bytes += size_bytes

    def on_sent(self) -> None:
        if self.limited_bytes or self.exempt_bytes:
            self._quota.spend(self)


class Quotas:
    """Both sides of one broker."""

    def __init__(self, broker: BrokerId, loop: BrokerLoop) -> None:
        self.leader = Quota(LEADER, broker, loop)
        self.follower = Quota(FOLLOWER, broker, loop)

    @property
    def sides(self) -> tuple[Quota, Quota]:
        return self.leader, self.follower

    def holds_back(self, partition: Partition, *, leader: BrokerId, follower: BrokerId) -> bool:
        """Whether the leader's or the follower's list throttles the follower while out of sync."""
        return self.leader.lists(partition, leader) or self.follower.lists(partition, follower)

    @property
    def topics(self) -> frozenset[str]:
        """Topics with a throttled replica."""
        return frozenset(topic for quota in self.sides for topic in quota.topics)

    def apply_rates(self, settings: Settings) -> None:
        for quota in self.sides:
            quota.apply_rate(settings)

    def apply_lists(self, topics: Mapping[str, Mapping[str, str]], changed: Iterable[str]) -> None:
        changed_topics = list(changed)
        for quota in self.sides:
            quota.apply_lists(topics, changed_topics)

    def stop(self) -> None:
        for quota in self.sides:
            quota.stop()


def _throttled_replicas(text: str) -> ThrottledReplicas:
    """A list that cannot be parsed throttles nothing: a broker of another version may store one."""
    try:
        return parse(text)
    except BadSetting:
        return NO_REPLICAS
