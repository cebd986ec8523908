"""Topics on real brokers: created, grown, deleted and recreated; leaders when brokers die."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from insync.cli import main as cli
from insync.client.sockets import brokers_known_to
from insync.testing.cluster import HOST, Cluster
from support.cluster.clients import QUIET, IntegerProducer, eventually, read_all

pytestmark = pytest.mark.process

Topics = Callable[..., Any]


def topics_of(capsys: pytest.CaptureFixture[str], cluster: Cluster) -> Topics:
    """`insync topics --json` on this cluster: its data, or its error line."""

    def run(*flags: str, expect: int = 0) -> Any:
        arguments = ["topics", "--bootstrap-server", cluster.bootstrap, "--json", *flags]
        code = cli.main(arguments)
        captured = capsys.readouterr()
        assert code == expect, captured.err
        return json.loads(captured.out) if code == 0 else captured.err

    return run


def partitions(topics: Topics, name: str) -> list[Any]:
    partitions_described: list[Any] = topics("--describe", "--topic", name)[0]["partitions"]
    return partitions_described


def leader(topics: Topics, name: str) -> int | None:
    broker: int | None = partitions(topics, name)[0]["leader"]
    return broker


def files_of(cluster: Cluster, broker: int, topic: str) -> list[str]:
    folder = cluster.brokers[broker].log_dir
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(f"{topic}-"))


def fill(cluster: Cluster, topic: str, count: int, *, partitions: int = 1) -> IntegerProducer:
    producer = IntegerProducer(cluster, topic, partitions=partitions)
    producer.send(count)
    producer.flush()
    assert producer.acknowledged_count == count, producer.errors
    return producer


def test_the_command_on_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(brokers=3, settings={"telemetry.enable": "false"}) as cluster:
        topics = topics_of(capsys, cluster)
        assert topics("--list") == []
        assert topics("--create", "--topic", "one", "--partitions", "2") == {"created": ["one"]}
        assert "already exists" in topics("--create", "--topic", "one", expect=1)
        assert topics("--create", "--topic", "one", "--if-not-exists") == {"created": []}
        topics("--create", "--topic", "two", "--replica-assignment", "3:1,1:2")
        assert [row["topic"] for row in topics("--list")] == ["one", "two"]
        assert [row["topic"] for row in topics("--describe", "--topic", "tw.,three")] == ["two"]
        assert [part["replicas"] for part in partitions(topics, "two")] == [[3, 1], [1, 2]]
        flags = ["--partitions", "3", "--replica-assignment", "1:2,1:2,2:3"]
        topics("--alter", "--topic", "two", *flags)
        assert partitions(topics, "two")[2]["replicas"] == [2, 3]
        assert "no increase" in topics("--alter", "--topic", "two", "--partitions", "3", expect=1)
        identity = topics("--describe", "--topic", "one")[0]["topic_id"]
        assert topics("--describe", "--topic-id", identity)[0]["topic"] == "one"
        assert "does not exist" in topics("--describe", "--topic", "ones", expect=1)
        assert topics("--describe", "--topic", "ones", "--if-exists") == []
        cluster.kill(3)
        eventually(
            lambda: len(topics("--describe", "--under-replicated-partitions")) == 2,
            within_s=10,
            what="the dead broker's partitions are described",
        )
        assert topics("--describe", "--unavailable-partitions") == []
        assert topics("--delete", "--topic", "one|two") == {"deleted": ["one", "two"]}
        assert "does not exist" in topics("--delete", "--topic", "one", expect=1)
        assert topics("--delete", "--topic", "one", "--if-exists") == {"deleted": []}
        assert topics("--list") == []


def test_a_deleted_topic_is_gone_everywhere_and_one_of_the_same_name_is_new(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(settings={"log.retention.check.interval.ms": "200"}) as cluster:
        topics = topics_of(capsys, cluster)
        topics("--create", "--topic", "again", "--partitions", "1")
        fill(cluster, "again", 500)
        (former,) = topics("--describe", "--topic", "again")
        topics("--delete", "--topic", "again")
        eventually(
            lambda: not any(files_of(cluster, broker, "again") for broker in cluster.brokers),
            within_s=10,
            what="no file of the topic is left",
        )
        topics("--create", "--topic", "again", "--partitions", "1")
        (latter,) = topics("--describe", "--topic", "again")
        assert latter["topic_id"] != former["topic_id"]
        producer = fill(cluster, "again", 7)
        records = read_all(cluster, "again", [0])
        assert records == {0: [0, 1, 2, 3, 4, 5, 6]} == producer.acknowledged


def test_a_broker_that_missed_the_deletion_never_serves_the_deleted_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(settings={"log.retention.check.interval.ms": "200"}) as cluster:
        topics = topics_of(capsys, cluster)
        for name in ("gone", "again"):
            topics("--create", "--topic", name, "--replica-assignment", "3:1:2")
            fill(cluster, name, 300)
        cluster.kill(3)
        for name in ("gone", "again"):
            topics("--delete", "--topic", name)
        eventually(
            lambda: len(AdminClientOf(cluster, 1).live()) == 2, within_s=10, what="3 is known dead"
        )
        topics("--create", "--topic", "again", "--replication-factor", "2")
        topics("--create", "--topic", "fresh", "--replication-factor", "2")
        assert files_of(cluster, 3, "gone"), "it still has what it missed the end of"
        cluster.restart(3)
        eventually(
            lambda: all(
                name.endswith("-stray")
                for topic in ("gone", "again")
                for name in files_of(cluster, 3, topic)
            ),
            within_s=10,
            what="its logs of what was deleted are set aside",
        )
        assert files_of(cluster, 3, "gone"), "kept: the store may have gone back"
        # Made again with the returned broker as leader: it begins with nothing.
        topics("--delete", "--topic", "again")
        topics("--create", "--topic", "again", "--replica-assignment", "3:1:2")
        fill(cluster, "again", 5)
        assert read_all(cluster, "again", [0]) == {0: [0, 1, 2, 3, 4]}
        topics("--describe", "--topic", "gone", expect=1)


def test_a_topic_recreated_while_a_broker_was_down_is_not_mixed_with_its_old_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The returned broker holds three hundred records under the name it is to follow, then lead."""
    with Cluster(brokers=3) as cluster:
        topics = topics_of(capsys, cluster)
        topics("--create", "--topic", "again", "--replica-assignment", "3:1:2")
        fill(cluster, "again", 300)
        cluster.brokers[3].stop()  # cleanly, so that it remembers a watermark
        topics("--delete", "--topic", "again")
        topics("--create", "--topic", "again", "--replication-factor", "2")
        fill(cluster, "again", 5)
        cluster.restart(3)
        eventually(
            lambda: all(3 in _known_to(each.port) for each in cluster.brokers.values()),
            within_s=10,
            what="every broker knows that it is back",
        )
        topics(
            "--alter", "--topic", "again", "--partitions", "2", "--replica-assignment", "1:2,3:1"
        )
        fill(cluster, "again", 10, partitions=2)
        records = read_all(cluster, "again", [0, 1])
        assert records == {0: [0, 1, 2, 3, 4, 0, 2, 4, 6, 8], 1: [1, 3, 5, 7, 9]}


class AdminClientOf:
    """The metadata of one broker."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self.bootstrap = f"{HOST}:{cluster.brokers[broker].port}"
        self._client: Any = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def live(self) -> set[int]:
        return set(self._client.list_topics(timeout=10).brokers)

    def partition_count(self, topic: str) -> int:
        return len(self._client.list_topics(topic, timeout=10).topics[topic].partitions)


def test_new_partitions_can_be_used_at_once_through_every_broker(
    capsys: pytest.CaptureFixture[str], insync_cluster: Cluster
) -> None:
    topics = topics_of(capsys, insync_cluster)
    topics("--create", "--topic", "grows", "--partitions", "1")
    each_alone = [AdminClientOf(insync_cluster, broker) for broker in insync_cluster.brokers]
    errors: list[Any] = []
    for count in (2, 5, 9):
        topics("--alter", "--topic", "grows", "--partitions", str(count))
        # At once is 50 ms, tested on virtual time; here others keep the machine busy too.
        eventually(
            lambda count=count: all(one.partition_count("grows") == count for one in each_alone),  # type: ignore[misc]
            within_s=2,
            what="every broker knows the new partitions",
        )
        errors.clear()
        for alone in each_alone:
            producer = Producer(
                {"bootstrap.servers": alone.bootstrap, "acks": "all", "retries": 0, **QUIET}
            )
            for partition in range(count):
                producer.produce(
                    "grows",
                    value=b"1",
                    partition=partition,
                    on_delivery=lambda error, _: errors.append(error),
                )
            assert producer.flush(20) == 0
        assert errors == [None] * 3 * count


def test_a_dead_leader_is_replaced_and_leads_again_when_it_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(settings={"leader.imbalance.check.interval.seconds": "1"}) as cluster:
        topics = topics_of(capsys, cluster)
        topics("--create", "--topic", "led", "--replica-assignment", "2:3:1")
        producer = fill(cluster, "led", 50)
        assert leader(topics, "led") == 2
        cluster.kill(2)
        eventually(lambda: leader(topics, "led") == 3, within_s=10, what="the next one leads")
        producer.send(50)
        producer.flush()
        cluster.restart(2)
        eventually(lambda: leader(topics, "led") == 2, within_s=20, what="the preferred one leads")
        producer.send(50)
        producer.flush()
        assert read_all(cluster, "led", [0]) == producer.acknowledged


@pytest.mark.parametrize("allowed", [False, True])
def test_an_out_of_sync_replica_leads_only_if_unclean_election_is_enabled(
    capsys: pytest.CaptureFixture[str],
    allowed: bool,  # noqa: FBT001
) -> None:
    with Cluster(brokers=3) as cluster:
        topics = topics_of(capsys, cluster)
        setting = f"unclean.leader.election.enable={str(allowed).lower()}"
        topics("--create", "--topic", "two", "--replica-assignment", "1:2", "--config", setting)
        fill(cluster, "two", 100)
        cluster.kill(2)
        eventually(lambda: partitions(topics, "two")[0]["isr"] == [1], within_s=10, what="2 is out")
        producer = fill(cluster, "two", 100)
        cluster.kill(1)
        eventually(lambda: leader(topics, "two") is None, within_s=10, what="there is no leader")
        cluster.restart(2)
        if allowed:
            eventually(lambda: leader(topics, "two") == 2, within_s=20, what="2 leads uncleanly")
            assert partitions(topics, "two")[0]["isr"] == [2]
            assert read_all(cluster, "two", [0]) == {0: list(range(100))}
            return
        # The controller has handled the return once the broker is known to be live.
        eventually(
            lambda: partitions(topics, "two")[0]["offline_replicas"] == [1],
            within_s=10,
            what="2 is known to be back",
        )
        assert leader(topics, "two") is None
        assert len(topics("--describe", "--unavailable-partitions")) == 1
        cluster.restart(1)
        eventually(lambda: leader(topics, "two") == 1, within_s=20, what="1 leads again")
        records = read_all(cluster, "two", [0])
        assert records == {0: [*range(100), *producer.acknowledged[0]]}


def _known_to(port: int) -> set[int]:
    return asyncio.run(brokers_known_to(HOST, port))
