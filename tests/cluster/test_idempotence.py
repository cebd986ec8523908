"""An idempotent producer's sequences, across failover, restarts and truncation.

By the raw protocol: a real client would hide what each broker answered.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from insync.testing.cluster import Cluster
from support.cluster.clients import (
    await_in_sync,
    check_replicas_agree,
    create_topic,
    eventually,
    leader_of,
)
from support.wire.raw_client import LATEST, RawClient, sequenced

SETTINGS = {"min.insync.replicas": "2", "broker.session.timeout.ms": "1000"}
pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(settings=SETTINGS)]


@pytest.fixture
def cluster(insync_cluster: Cluster) -> Cluster:
    create_topic(insync_cluster, "orders", partitions=1)
    await_in_sync(insync_cluster, "orders")
    return insync_cluster


def client_of_leader(cluster: Cluster) -> RawClient:
    return RawClient(cluster.brokers[leader_of(cluster)].port)


def produce(cluster: Cluster, batch: bytes) -> tuple[ErrorCode, int]:
    """To the leader, with retries: a new leader may not know yet that it leads."""
    answer = (ErrorCode.not_leader_or_follower, -1)

    def is_answered() -> bool:
        nonlocal answer
        with client_of_leader(cluster) as client:
            answer = client.produce("orders", batch)
        return answer[0] not in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_enough_replicas,
            ErrorCode.not_enough_replicas_after_append,
            ErrorCode.request_timed_out,
        )

    eventually(is_answered, within_s=20, what="a leader answers")
    return answer


def end_of(cluster: Cluster) -> int:
    ends: list[int] = []

    def is_known() -> bool:
        with client_of_leader(cluster) as client:
            code, offset = client.offset("orders", LATEST)
        ends[:] = [offset]
        return code is ErrorCode.none

    eventually(is_known, within_s=20, what="the leader knows what is committed")
    return ends[0]


def check_sequences(cluster: Cluster, *, sent: int) -> None:
    """As many batches of one record were sent as `sent`, with sequences and offsets from 0 on."""
    end = end_of(cluster)
    last = sent - 1
    again = sequenced(b"%d" % last, sequence=last, epoch=1)
    assert produce(cluster, again) == (ErrorCode.none, last)
    gap = sequenced(b"gap", sequence=sent + 1, epoch=1)
    assert produce(cluster, gap) == (ErrorCode.out_of_order_sequence_number, -1)
    older = sequenced(b"old", sequence=sent, epoch=0)
    assert produce(cluster, older) == (ErrorCode.invalid_producer_epoch, -1)
    assert end_of(cluster) == end


def send(cluster: Cluster, sequences: range) -> None:
    for sequence in sequences:
        batch = sequenced(b"%d" % sequence, sequence=sequence, epoch=1)
        assert produce(cluster, batch) == (ErrorCode.none, sequence)


def test_the_next_leader_knows_the_producer_state_of_the_last_one(cluster: Cluster) -> None:
    send(cluster, range(8))
    check_sequences(cluster, sent=8)
    cluster.kill(leader_of(cluster))
    check_sequences(cluster, sent=8)
    send(cluster, range(8, 10))
    check_sequences(cluster, sent=10)


def test_producer_state_survives_a_kill_of_all_brokers(cluster: Cluster) -> None:
    send(cluster, range(8))
    for broker in cluster.brokers:
        cluster.kill(broker)
    cluster.start()
    check_sequences(cluster, sent=8)
    send(cluster, range(8, 10))


def test_producer_state_survives_a_clean_stop_of_all_brokers(cluster: Cluster) -> None:
    send(cluster, range(8))
    cluster.stop()
    cluster.start()
    check_sequences(cluster, sent=8)
    send(cluster, range(8, 10))


def test_producer_state_of_truncated_records_is_forgotten(cluster: Cluster) -> None:
    """A leader appends alone, truncates that and leads again: then the batch must be new to it."""
    send(cluster, range(3))
    stale = leader_of(cluster)
    others = [broker for broker in cluster.brokers if broker != stale]
    lonely = sequenced(b"3", sequence=3, epoch=1)
    with RawClient(cluster.brokers[stale].port) as old:
        for broker in others:
            cluster.pause(broker)
        # The fetches that wait at the leader are answered with this one, and none comes after.
        filler = sequenced(b"filler", sequence=0, producer=55)
        assert old.produce("orders", filler, acks=1) == (ErrorCode.none, 3)
        # acks=1: appended and answered, though no other replica has it.
        assert old.produce("orders", lonely, acks=1) == (ErrorCode.none, 4)
        cluster.kill(stale)
    for broker in others:
        cluster.resume(broker)
    eventually(lambda: leader_of(cluster) != stale, within_s=20, what="another leads")
    end = end_of(cluster)
    assert end < 5
    # Its offset is another producer's now.
    other = sequenced(b"other", sequence=0, producer=77)
    assert produce(cluster, other) == (ErrorCode.none, end)
    cluster.restart(stale)
    await_in_sync(cluster, "orders")
    assert f"truncating from offset 5 to {end}" in cluster.brokers[stale].log.read_text()
    for broker in others:
        cluster.kill(broker)  # one by one, so that the one that was cut leads in the end
        if leader_of(cluster) == stale:
            cluster.restart(broker)
            break
        cluster.restart(broker)
        await_in_sync(cluster, "orders")
    assert leader_of(cluster) == stale
    assert produce(cluster, lonely) == (ErrorCode.none, end + 1)
    assert produce(cluster, lonely) == (ErrorCode.none, end + 1)
    assert check_replicas_agree(cluster, "orders", 1) > 0
