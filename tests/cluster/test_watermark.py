"""What clients may see around the high watermark, also when a new leader does not know it yet.

One follower is paused while the others go on, so that the watermark lies below the leader's end
for as long as a test wants it to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from insync.testing.cluster import Cluster
from support.cluster.clients import eventually
from support.wire.kio_client import KioClient
from support.wire.kio_requests import (
    DEBUG_REPLICA,
    DESCRIBE_CLUSTER,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    METADATA,
    NO_OFFSET,
    batch,
    create,
    epoch_end,
    fetch,
    list_offset,
    produce,
    records_of,
)

NAME = "orders"
SEEN, UNSEEN = 3, 2  # records below the watermark, and above it
SEEN_MS, UNSEEN_MS = 1_000, 2_000
END = SEEN + UNSEEN
# No broker loses its session or leaves an ISR during a test.
PATIENT = {
    "broker.session.timeout.ms": "120000",
    "replica.lag.time.max.ms": "120000",
    "replica.fetch.wait.max.ms": "100",
}
pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(settings=PATIENT)]


@dataclass
class HeldBack:
    """A leader whose last records one follower has and the other, which is stopped, has not."""

    cluster: Cluster
    topic: tuple[str, UUID]
    leader: int
    new_leader: int
    stopped: int
    clients: dict[int, KioClient]

    def depose_leader(self) -> KioClient:
        """Kill it; the new leader, in epoch 1, does not know the stopped follower's offset."""
        self.cluster.kill(self.leader)
        new_leader = self.clients[self.new_leader]
        values = {"topics": [{"name": NAME}]}
        eventually(
            lambda: (
                new_leader.request(METADATA, 9, values).topics[0].partitions[0].leader_id
                == self.new_leader
            ),
            within_s=20,
            what="the new leader leads",
        )
        eventually(
            lambda: list_offset(new_leader, 4, NAME, EARLIEST, leader_epoch=1)[0] is ErrorCode.none,
            within_s=20,
            what="the new leader knows that it leads",
        )
        return new_leader


@pytest.fixture
def held_back(cluster: Cluster) -> Iterator[HeldBack]:
    with ExitStack() as undo:
        clients = {
            broker: undo.enter_context(KioClient(each.port))
            for broker, each in cluster.brokers.items()
        }
        # The controller must neither be killed nor stopped.
        new_leader: int = clients[1].request(DESCRIBE_CLUSTER, 0, {}).controller_id
        leader, stopped = (broker for broker in cluster.brokers if broker != new_leader)
        placed = [{"partition_index": 0, "broker_ids": (leader, new_leader, stopped)}]
        made = create(
            clients[leader],
            7,
            name=NAME,
            num_partitions=-1,
            replication_factor=-1,
            assignments=placed,
        )
        topic = (NAME, made.topic_id)
        client = clients[leader]
        eventually(
            lambda: list_offset(client, 1, NAME, LATEST)[0] is ErrorCode.none,
            within_s=20,
            what="the partition is led",
        )
        answer = produce(client, 9, topic, batch(*[SEEN_MS] * SEEN))
        assert answer.error_code is ErrorCode.none
        cluster.pause(stopped)
        undo.callback(cluster.resume, stopped)
        answer = produce(client, 9, topic, batch(*[UNSEEN_MS] * UNSEEN), acks=1)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, SEEN)
        eventually(
            lambda: own_end(clients[new_leader]) == END,
            within_s=20,
            what="the next leader has every record",
        )
        yield HeldBack(cluster, topic, leader, new_leader, stopped, clients)


def own_end(client: KioClient) -> int:
    """The end of a broker's own log, whether it leads or not."""
    code, offset, _ = list_offset(client, 1, NAME, LATEST, replica=DEBUG_REPLICA)
    assert code is ErrorCode.none
    return offset


def test_a_consumer_reads_nothing_above_the_high_watermark(held_back: HeldBack) -> None:
    client = held_back.clients[held_back.leader]
    part = fetch(client, 12, held_back.topic, 0)
    assert [record.offset for record in records_of(part.records)] == [0, 1, 2]
    for offset in range(SEEN, END + 1):
        part = fetch(client, 12, held_back.topic, offset, wait_ms=20)
        assert (part.error_code, part.high_watermark) == (ErrorCode.none, SEEN)
        assert not part.records
    part = fetch(client, 12, held_back.topic, END + 1)
    assert part.error_code is ErrorCode.offset_out_of_range
    assert list_offset(client, 7, NAME, LATEST) == (ErrorCode.none, SEEN, -1)
    assert list_offset(client, 7, NAME, SEEN_MS + 1) == (ErrorCode.none, *NO_OFFSET)
    assert own_end(client) == END
    held_back.cluster.resume(held_back.stopped)
    eventually(
        lambda: list_offset(client, 7, NAME, LATEST) == (ErrorCode.none, END, -1),
        within_s=20,
        what="what all replicas have is seen",
    )
    assert list_offset(client, 7, NAME, SEEN_MS + 1) == (ErrorCode.none, SEEN, UNSEEN_MS)
    part = fetch(client, 12, held_back.topic, SEEN)
    assert [record.offset for record in records_of(part.records)] == [3, 4]


def test_a_new_leader_does_not_answer_latest_before_its_high_watermark_is_known(
    held_back: HeldBack,
) -> None:
    """KIP-207: an earlier leader may have shown more than this one's watermark."""
    new_leader = held_back.depose_leader()
    for version in range(1, 12):
        not_yet = ErrorCode.offset_not_available if version >= 5 else ErrorCode.leader_not_available
        timestamps = [LATEST, SEEN_MS] + ([MAX_TIMESTAMP] if version >= 7 else [])
        for timestamp in timestamps:
            result = list_offset(new_leader, version, NAME, timestamp)
            assert result == (not_yet, *NO_OFFSET), (version, timestamp)
        assert list_offset(new_leader, version, NAME, EARLIEST, leader_epoch=1)[1] == 0
    part = fetch(new_leader, 12, held_back.topic, SEEN, wait_ms=20)
    assert part.error_code is ErrorCode.none
    assert not part.records

    held_back.cluster.resume(held_back.stopped)
    eventually(
        lambda: (
            list_offset(new_leader, 11, NAME, LATEST, leader_epoch=1) == (ErrorCode.none, END, -1)
        ),
        within_s=20,
        what="the stopped follower has caught up, and the new leader knows",
    )
    assert len(records_of(fetch(new_leader, 12, held_back.topic, 0).records)) == END


def test_a_client_with_another_leader_epoch_gets_an_error(held_back: HeldBack) -> None:
    new_leader = held_back.depose_leader()
    for epoch, expected in (
        (0, ErrorCode.fenced_leader_epoch),
        (1, ErrorCode.none),
        (2, ErrorCode.unknown_leader_epoch),
    ):
        assert fetch(new_leader, 12, held_back.topic, 0, epoch=epoch).error_code is expected
        error, *_ = list_offset(new_leader, 7, NAME, EARLIEST, epoch=epoch, leader_epoch=1)
        assert error is expected
        error, *_ = epoch_end(new_leader, 4, NAME, 0, current=epoch)
        assert error is expected
    assert epoch_end(new_leader, 4, NAME, 0, current=1) == (ErrorCode.none, 0, END)
    assert epoch_end(new_leader, 4, NAME, 1, current=1) == (ErrorCode.none, 1, END)


def test_a_follower_answers_clients_with_not_leader(held_back: HeldBack) -> None:
    client = held_back.clients[held_back.new_leader]
    no_leader = ErrorCode.not_leader_or_follower
    assert fetch(client, 12, held_back.topic, 0).error_code is no_leader
    assert list_offset(client, 7, NAME, LATEST) == (no_leader, *NO_OFFSET)
    assert epoch_end(client, 4, NAME, 0) == (no_leader, *NO_OFFSET)
    assert produce(client, 9, held_back.topic, batch(7)).error_code is no_leader
