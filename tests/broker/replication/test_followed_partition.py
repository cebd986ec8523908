"""Whatever happens to followed partitions, their state and the fetcher's queues agree."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from insync.broker.broker_loop import BrokerLoop
from insync.broker.quotas.quotas import Quota, Quotas
from insync.broker.replication.followed_partition import (
    DROPPED,
    FollowedPartition,
    FollowedPartitions,
    HeldBack,
    Listed,
    Resting,
    ToList,
)
from insync.broker.replication.replica import Replica
from insync.broker.settings import Settings
from insync.rules.values import BrokerId, LeaderEpoch

ME = BrokerId(1)
COUNT = 3
LIST = "follower.replication.throttled.replicas"
RATE = "follower.replication.throttled.rate"
SETTINGS = Settings({"replica.fetch.max.bytes": "400", "replica.fetch.response.max.bytes": "900"})

ROLES = ("follow", "new epoch", "drop")
ANSWERS = ("records", "error", "diverging", "rested")
EVENTS = ("send", "last answer", "disconnect", "throttle", "unthrottle", "time")
STEPS = ROLES + ANSWERS + EVENTS


class EmptyLog:
    start = end = 0


class Fetcher:
    """What a leader's fetcher does to its partitions, without a leader."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.requests = 0
        self.timers: list[asyncio.TimerHandle] = []
        self.quota: Quota = Quotas(ME, BrokerLoop(lambda: self.now_ms)).follower
        self.quota.apply_rate(SETTINGS.at_run_time(own={RATE: "1000"}, everyones={}))
        replicas: Any = SimpleNamespace(broker=ME, may_lead=lambda: True)
        self.partitions = FollowedPartitions(
            replicas=replicas, settings=SETTINGS, quota=self.quota, waiter=self
        )
        self.replicas = [replica_of(number) for number in range(COUNT)]

    def has_room(self) -> None:
        pass

    def do(self, step: str, number: int) -> None:
        replica = self.replicas[number]
        partition = self.partitions.get((replica.topic_id, number))
        if step in ROLES:
            self._change_role(step, replica)
        elif step in ANSWERS:
            if partition is not None:
                self._change_state(step, partition)
        else:
            self._happen(step)

    def _change_role(self, step: str, replica: Replica) -> None:
        if step == "drop":
            self.partitions.drop(replica)
        else:
            replica.epoch = LeaderEpoch(replica.epoch + (step == "new epoch"))
            self.partitions.follow(replica)

    def _change_state(self, step: str, partition: FollowedPartition) -> None:
        loop = asyncio.get_running_loop()
        match step, partition.accepts_answer_to(self.requests):
            case "records", True:
                self.partitions.count_received(partition, 150)
                self.partitions.list_again(partition)
            case "error", True:
                self.timers.append(loop.call_later(60, loop.stop))
                self.partitions.rest(partition, self.timers[-1])
            case "diverging", True:
                self.partitions.truncate(partition, loop.create_future())
            case "rested", _ if isinstance(partition.state, Resting):
                self.partitions.list_again(partition)

    def _happen(self, step: str) -> None:
        match step:
            case "send":
                self.partitions.apply_quota()
                self.requests += 1
                self.partitions.note_sent(self.requests)
            case "last answer":
                self.partitions.end_reservations()
            case "disconnect":
                self.partitions.start_session()
            case "throttle" | "unthrottle":
                replicas = "*" if step == "throttle" else ""
                self.quota.apply_lists({"t": {LIST: replicas}}, ["t"])
                self.partitions.on_quota_changed()
            case _:
                assert step == "time"
                self.now_ms += 200

    def check(self) -> None:
        partitions = self.partitions
        all_of_them = list(partitions._partitions.values())
        to_list = {each for each in all_of_them if isinstance(each.state, ToList)}
        listed = {each for each in all_of_them if isinstance(each.state, Listed)}
        held_back = {each for each in all_of_them if isinstance(each.state, HeldBack)}
        dropped = {each for each in all_of_them if each.state is DROPPED}
        in_session = {each for each in all_of_them if each.is_in_session}
        assert listed | dropped <= in_session
        assert set(partitions.to_list) == to_list
        assert set(partitions._held_back) == held_back
        assert set(partitions.to_forget) == in_session - to_list - listed
        assert partitions._session_size == len(in_session)
        assert partitions.needs_request is bool(in_session or to_list)
        resting = {each.state.timer for each in all_of_them if isinstance(each.state, Resting)}
        assert {timer for timer in self.timers if not timer.cancelled()} == resting
        reserved = {each for each in all_of_them if each.reserved_bytes is not None}
        assert set(partitions._reserved) == reserved
        assert self.quota._bucket is not None
        assert self.quota._bucket.reserved == 1_000 * sum(
            each.reserved_bytes or 0 for each in reserved
        )


def replica_of(number: int) -> Replica:
    log: Any = EmptyLog()
    loop = BrokerLoop(lambda: 0)
    replica = Replica(("t", number), UUID(int=1), log, high_watermark=0, report=print, loop=loop)
    replica.apply_limits(min_isr=1, batch_bytes_max=100)
    return replica


@pytest.mark.parametrize("seed", range(10))
def test_a_state_and_the_queues_agree(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a long walk through the states

    async def play() -> None:
        fetcher = Fetcher()
        for _ in range(1_000):
            fetcher.do(random.choice(STEPS), random.randrange(COUNT))
            fetcher.check()
        fetcher.partitions.stop()
        assert not fetcher.partitions.has_reservations
        fetcher.quota.stop()

    asyncio.run(play())


def test_a_partition_dropped_and_followed_again_at_once_is_not_forgotten() -> None:
    async def play() -> None:
        fetcher = Fetcher()
        for step in ("follow", "send", "drop"):
            fetcher.do(step, 0)
        assert len(fetcher.partitions.to_forget) == 1
        fetcher.do("follow", 0)
        assert not fetcher.partitions.to_forget
        assert len(fetcher.partitions.to_list) == 1

    asyncio.run(play())


def test_a_response_to_an_earlier_request_is_stale() -> None:
    async def play() -> None:
        fetcher = Fetcher()
        for step in ("follow", "send", "new epoch", "send"):
            fetcher.do(step, 0)
        (partition,) = fetcher.partitions._partitions.values()
        assert not partition.accepts_answer_to(1)
        assert partition.accepts_answer_to(2)

    asyncio.run(play())


def test_a_partition_that_got_nothing_of_its_reserved_bytes_is_next_in_turn() -> None:
    async def play() -> None:
        fetcher = Fetcher()
        fetcher.now_ms = 200  # bytes for two partitions at most
        for number in range(COUNT):
            fetcher.do("follow", number)
        for step in ("throttle", "send", "last answer"):
            fetcher.do(step, 0)
        assert [each.key[1] for each in fetcher.partitions._held_back] == [0, 1, 2]
        fetcher.do("send", 0)
        fetcher.do("records", 0)
        fetcher.do("last answer", 0)
        fetcher.do("send", 0)
        first = fetcher.partitions._reserved or fetcher.partitions._held_back
        assert next(iter(first)).key[1] == 1, "the one that got records comes after the others"
        fetcher.quota.stop()

    asyncio.run(play())


def test_a_replica_that_was_created_again_does_not_know_the_leaders_watermark() -> None:
    async def play() -> None:
        fetcher = Fetcher()
        for step in ("follow", "send"):
            fetcher.do(step, 0)
        (partition,) = fetcher.partitions._partitions.values()
        partition.is_watermark_known = True
        fetcher.do("new epoch", 0)
        assert partition.is_watermark_known
        fetcher.do("send", 0)
        fetcher.replicas[0] = replica_of(0)
        fetcher.do("follow", 0)
        assert set(fetcher.partitions.to_list) == {partition}
        assert not partition.is_watermark_known

    asyncio.run(play())
