"""KIP-73 in a broker: what throttled replicas may still send and fetch, and who waits for it.

The two sides have a quota each, with a list of replicas and a rate of its own. Decisions are the
rules' (`rules.throttling`, `rules.quota_bucket`); here they meet requests and time:

- A leader looks at each answer it fills as a `Passage`: it takes from the bucket what it lets go,
  once the answer leaves.
- A follower reserves before it asks, and settles with the answer.
- Whoever is refused waits in a line. Its first is woken when the bucket holds what it needs, and
  nobody overtakes it: small batches would keep the bucket from ever filling for a large one.

Without a throttle nothing here is touched but one flag per request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

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
"""A refill wakes nobody sooner: a batch each millisecond would cost more than it brings."""

Partition = tuple[str, int]


class Waiter(Protocol):
    """A fetch session at a leader, or a fetcher at a follower."""

    def has_room(self) -> None:
        """The quota may have something for you: look again."""


class Quota:
    """One side of this broker's throttle."""

    def __init__(self, side: str, broker: BrokerId, clock_ms: Callable[[], int]) -> None:
        self.side = side
        self.rate: int | None = None  # bytes per second; None: no limit
        self.is_set = False  # something is throttled
        self.bytes_passed = 0  # since the start: all that was counted
        self.bytes_exempt = 0  # of these, for in-sync replicas
        self._broker = broker
        self._clock_ms = clock_ms
        self._bucket: Bucket | None = None
        self._window = QuotaWindow()
        self._lists: dict[str, ThrottledReplicas] = {}
        self._line: dict[Waiter, int] = {}  # the longest waiting first, and what it needs
        self._turn: Waiter | None = None
        self._sharers: dict[Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    # What holds.

    def take_rate(self, settings: Settings) -> None:
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
        now_ms = self._clock_ms()
        if self.rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = Bucket(bytes_per_s=self.rate, at_ms=now_ms)
        else:
            self._bucket = self._bucket.with_rate(self.rate, now_ms=now_ms)
        self._wake_all()

    def take_lists(self, topics: Mapping[str, Mapping[str, str]], changed: Iterable[str]) -> None:
        name = LISTS[self.side]
        before = dict(self._lists)
        for topic in changed:
            listed = _listed(topics.get(topic, {}).get(name, ""))
            if listed == NO_REPLICAS:
                self._lists.pop(topic, None)
            else:
                self._lists[topic] = listed
        if self._lists != before:
            self.is_set = bool(self._lists)
            self._wake_all()

    @property
    def topics(self) -> Iterable[str]:
        return self._lists.keys()

    def partitions_of(self, held: Iterable[Partition]) -> Iterator[Partition]:
        """Those that are throttled here."""
        return (partition for partition in held if self.throttles(partition))

    def lists(self, partition: Partition, broker: BrokerId) -> bool:
        """Whether this side's list has that replica, on whichever broker."""
        listed = self._lists.get(partition[0])
        return listed is not None and listed.includes(PartitionId(partition[1]), broker)

    def throttles(self, partition: Partition) -> bool:
        return self.lists(partition, self._broker)

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment:
        return treatment(is_throttled=self.throttles(partition), is_in_sync=is_in_sync)

    # What was, and what waits.

    def bytes_per_s(self) -> float:
        """The rate of throttled replication, as Kafka measures it."""
        now_ms = self._clock_ms()
        self._window = self._window.measured(now_ms=now_ms)
        return self._window.bytes_per_s(now_ms=now_ms)

    def _record(self, size_bytes: int, exempt_bytes: int, *, now_ms: int) -> None:
        if size_bytes:
            self._window = self._window.record(size_bytes, now_ms=now_ms)
            self.bytes_passed += size_bytes
            self.bytes_exempt += exempt_bytes

    # As leader.

    def passage(self, who: Waiter) -> Passage | None:
        """The way of one answer through this quota; None: nothing is throttled."""
        if not self.is_set:
            return None
        bucket = self._bucket
        now_ms = self._clock_ms()
        is_my_turn = not self._line or self._turn is who or next(iter(self._line)) is who
        return Passage(
            self,
            who,
            None if bucket is None else bucket.at(now_ms),
            is_open=is_my_turn,
            now_ms=now_ms,
        )

    def passed(self, passage: Passage) -> None:
        """Take what it let go from the bucket as it is now.

        Another answer may have left since this one was begun: what was read for it committed
        records, and a producer that is told goes on within the same call.
        """
        if self._bucket is not None:
            now_ms, limited_bytes = passage.now_ms, passage.limited_bytes
            taken = self._bucket.settle(
                reserved_bytes=0, received_bytes=limited_bytes, now_ms=now_ms
            )
            self._bucket = taken.pass_in_sync(passage.exempt_bytes, now_ms=now_ms)
        self._record(
            passage.limited_bytes + passage.exempt_bytes,
            passage.exempt_bytes,
            now_ms=passage.now_ms,
        )
        if passage.limited_bytes:
            self._line.pop(passage.who, None)
        if self._line:
            self._arm()

    # As follower.

    def reserve(self, who: Waiter, wanted_bytes: int, *, batch_bytes_max: int) -> int:
        """What `who` may ask its leader for now; 0: it is woken when there is something."""
        if self._bucket is None:
            return wanted_bytes
        self._sharers[who] = None
        if self._line and self._turn is not who and next(iter(self._line)) is not who:
            self.wait(who, min(wanted_bytes, batch_bytes_max))
            return 0
        now_ms = self._clock_ms()
        self._bucket, granted = self._bucket.reserve(
            wanted_bytes,
            batch_bytes_max=batch_bytes_max,
            leaders=len(self._sharers),
            now_ms=now_ms,
        )
        if granted:
            self._line.pop(who, None)
        else:
            self.wait(who, min(wanted_bytes, batch_bytes_max))
        return granted

    def settle(self, reserved_bytes: int, received_bytes: int) -> None:
        """An answer to what was reserved came, or none will."""
        now_ms = self._clock_ms()
        bucket = self._bucket
        if bucket is not None:
            # Reserved while there was no limit, it is not in this bucket.
            known = min(reserved_bytes, bucket.reserved // 1_000)
            self._bucket = bucket.settle(
                reserved_bytes=known, received_bytes=received_bytes, now_ms=now_ms
            )
        self._record(received_bytes, 0, now_ms=now_ms)
        if self._line:
            self._arm()

    def received_in_sync(self, size_bytes: int) -> None:
        now_ms = self._clock_ms()
        if self._bucket is not None:
            self._bucket = self._bucket.pass_in_sync(size_bytes, now_ms=now_ms)
        self._record(size_bytes, size_bytes, now_ms=now_ms)

    # The line.

    def wait(self, who: Waiter, needed_bytes: int) -> None:
        """Stand in line for this much; who was let look and is refused again keeps its place."""
        if self._turn is who:
            self._line = {who: needed_bytes, **self._line}
        else:
            self._line[who] = needed_bytes
        self._arm()

    def wait_behind(self, who: Waiter) -> None:
        """Stand in line without knowing for how much: its turn will tell."""
        if who not in self._line and self._turn is not who:
            self._line[who] = 1

    def leave(self, who: Waiter) -> None:
        """It wants nothing more."""
        self._sharers.pop(who, None)
        if self._line.pop(who, None) is not None and self._line:
            self._arm()

    def _arm(self) -> None:
        """Look again when the first in line may go; a settled reservation arms anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._bucket is None or not self._line:
            return
        now_ms = self._clock_ms()
        at_ms = self._bucket.at(now_ms).admits_at_ms(next(iter(self._line.values())))
        if at_ms is not None:
            delay_ms = max(WAKE_MS_MIN, at_ms - now_ms)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ms / 1_000, self._serve)

    def _serve(self) -> None:
        """Let those look in turn who may go."""
        self._timer = None
        for who, needed_bytes in list(self._line.items()):
            bucket = self._bucket
            if bucket is not None and not bucket.admits(needed_bytes, now_ms=self._clock_ms()):
                break
            self._line.pop(who, None)
            self._turn = who
            try:
                who.has_room()
            finally:
                self._turn = None
            if who in self._line:
                break
        self._arm()

    def _wake_all(self) -> None:
        """What holds has changed: everybody looks again."""
        line, self._line = self._line, {}
        for who in line:
            who.has_room()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Passage:
    """One answer of a leader on its way: what it takes counts when it leaves, and only then."""

    __slots__ = (
        "_is_open",
        "_quota",
        "bucket",
        "exempt_bytes",
        "limited_bytes",
        "now_ms",
        "who",
    )

    def __init__(
        self, quota: Quota, who: Waiter, bucket: Bucket | None, *, is_open: bool, now_ms: int
    ) -> None:
        self._quota = quota
        self._is_open = is_open  # until somebody is refused
        self.who = who
        self.bucket = bucket
        self.now_ms = now_ms
        self.limited_bytes = 0
        self.exempt_bytes = 0

    @property
    def is_open(self) -> bool:
        return self._is_open

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment:
        return self._quota.treatment(partition, is_in_sync=is_in_sync)

    def room_bytes(self, left_bytes: int) -> int:
        """What may be read for a partition that can be held back, of what the answer has left."""
        if not self._is_open:
            self._quota.wait_behind(self.who)
            return 0
        if self.bucket is None:
            return left_bytes
        return max(1, min(left_bytes, self.bucket.credit // 1_000))

    def admits(self, size_bytes: int) -> bool:
        """Let these bytes go, or shut: then everybody after them waits as well."""
        if not self._is_open:
            return False
        if self.bucket is not None:
            if not self.bucket.admits(size_bytes, now_ms=self.now_ms):
                self._is_open = False
                self._quota.wait(self.who, size_bytes)
                return False
            self.bucket = self.bucket.let_go(size_bytes, now_ms=self.now_ms)
        self.limited_bytes += size_bytes
        return True

    def in_sync(self, size_bytes: int) -> None:
        if self.bucket is not None:
            self.bucket = self.bucket.pass_in_sync(size_bytes, now_ms=self.now_ms)
        self.exempt_bytes += size_bytes

    def leaves(self) -> None:
        """The answer goes out."""
        if self.limited_bytes or self.exempt_bytes:
            self._quota.passed(self)


class Quotas:
    """Both sides of one broker."""

    def __init__(self, broker: BrokerId, clock_ms: Callable[[], int]) -> None:
        self.leader = Quota(LEADER, broker, clock_ms)
        self.follower = Quota(FOLLOWER, broker, clock_ms)

    @property
    def sides(self) -> tuple[Quota, Quota]:
        return self.leader, self.follower

    def holds_back(self, partition: Partition, *, leader: BrokerId, follower: BrokerId) -> bool:
        """Whether a follower that is not in sync is throttled, on whichever side."""
        return self.leader.lists(partition, leader) or self.follower.lists(partition, follower)

    @property
    def topics(self) -> frozenset[str]:
        """Those of which something is throttled."""
        return frozenset(topic for quota in self.sides for topic in quota.topics)

    def take_rates(self, settings: Settings) -> None:
        for quota in self.sides:
            quota.take_rate(settings)

    def take_lists(self, topics: Mapping[str, Mapping[str, str]], changed: Iterable[str]) -> None:
        names = list(changed)
        for quota in self.sides:
            quota.take_lists(topics, names)

    def stop(self) -> None:
        for quota in self.sides:
            quota.stop()


def _listed(text: str) -> ThrottledReplicas:
    """A broker of another version may have stored it: what cannot be read throttles nothing."""
    try:
        return parse(text)
    except BadSetting:
        return NO_REPLICAS
