"""Real processes: an older metadata store, a second process, and a folder that is gone."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from insync.testing.cluster import HOST, Accepted, BrokerFailed, Cluster, free_ports
from support.cluster.clients import (
    IntegerProducer,
    admin,
    await_in_sync,
    check_all_is_well,
    create_topic,
    eventually,
    partitions_of,
)

pytestmark = pytest.mark.process
INSYNC = (sys.executable, "-m", "insync")
TOPIC = "orders"
RECORDS = 200


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*INSYNC, *arguments], capture_output=True, text=True, check=False, timeout=90
    )


def kill_all(cluster: Cluster) -> None:
    for number in cluster.brokers:
        cluster.kill(number)


def fill(cluster: Cluster) -> IntegerProducer:
    create_topic(cluster, TOPIC, partitions=1)
    producer = IntegerProducer(cluster, TOPIC, partitions=1)
    producer.send(RECORDS)
    producer.flush()
    await_in_sync(cluster, TOPIC)
    return producer


def is_logged(log: Path, line: str) -> bool:
    return line in log.read_text()


def logs(cluster: Cluster, broker: int) -> list[str]:
    return sorted(path.name for path in cluster.brokers[broker].log_dir.glob(f"{TOPIC}-*"))


def test_a_store_from_a_backup_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    """As the user of `insync cluster` meets it, with the flag that accepts it."""
    port = free_ports(3)[0]
    cluster = Cluster(
        ports={number: port + number - 1 for number in (1, 2, 3)},
        folder=tmp_path,
        with_faults=False,
    )
    store, backup = tmp_path / "metadata", tmp_path / "backup"
    cluster.start()
    cluster.stop()
    shutil.copytree(store, backup)
    cluster.start()
    producer = fill(cluster)
    cluster.stop()
    shutil.move(store, tmp_path / "right")
    shutil.copytree(backup, store)
    start = ("cluster", "start", "--data-dir", tmp_path, "--port", str(port), "--detach")
    refused = run(*start)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("insync: broker 1 did not start: the metadata store in")
    assert str(store) in refused.stderr
    assert "--accept-older-metadata" in refused.stderr
    assert [logs(cluster, number) for number in (1, 2, 3)] == [[f"{TOPIC}-0"]] * 3
    accepted = run(*start, "--accept-older-metadata")
    try:
        assert accepted.returncode == 0, accepted.stderr
        eventually(
            lambda: all(logs(cluster, number)[-1].endswith("-stray") for number in (1, 2, 3)),
            within_s=10,
            what="the logs are set aside",
        )
        # Both stores began with the same steps. From here on they differ.
        bootstrap = ("--bootstrap-server", f"127.0.0.1:{port}")
        created = run("topics", *bootstrap, "--create", "--topic", "another")
        assert created.returncode == 0, created.stderr
    finally:
        assert run("cluster", "stop", "--data-dir", tmp_path).returncode == 0
    # The right store again: the strays are the logs again, and nothing was lost.
    shutil.rmtree(store)
    shutil.move(tmp_path / "right", store)
    try:
        assert run(*start).returncode == 1
    finally:  # if it did start
        run("cluster", "stop", "--data-dir", tmp_path)
    cluster.start(accepted=Accepted(older_metadata=True))
    try:
        await_in_sync(cluster, TOPIC)
        # The producer may have had a topic of that name made meanwhile, which is a stray now.
        assert all(f"{TOPIC}-0" in logs(cluster, number) for number in (1, 2, 3))
        check_all_is_well(cluster, producer)
    finally:
        cluster.stop()


def second_process(cluster: Cluster, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Another process with broker 2's id, and an empty folder."""
    config = folder / "second.properties"
    config.write_text(
        f"node.id=2\nlisteners=PLAINTEXT://{HOST}:{free_ports(1)[0]}\n"
        f"log.dirs={folder / 'second'}\nmetadata.dir={cluster.folder / 'metadata'}\n"
    )
    return run("broker", "--config", config, *flags)


@pytest.mark.insync_cluster(with_faults=False)
def test_a_second_process_is_refused_while_the_first_one_runs(
    insync_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = insync_cluster
    fill(cluster)
    for flags in ((), ("--new-directory",)):
        refused = second_process(cluster, tmp_path, *flags)
        assert refused.returncode == 1
        last = refused.stderr.splitlines()[-1]
        assert last.startswith("insync: ")
        assert f"{HOST}:{cluster.brokers[2].port}" in last
    cluster.pause(2)  # it is live until its session ends
    refused = second_process(cluster, tmp_path, "--new-directory")
    cluster.resume(2)
    assert refused.returncode == 1
    assert set(partitions_of(cluster, TOPIC)[0].isrs) == {1, 2, 3}


@pytest.mark.insync_cluster(with_faults=False)
def test_a_lost_data_directory_needs_the_new_directory_flag(insync_cluster: Cluster) -> None:
    cluster = insync_cluster
    producer = fill(cluster)
    kill_all(cluster)  # at once: the sessions are still in the store
    shutil.rmtree(cluster.brokers[2].log_dir)
    with pytest.raises(BrokerFailed, match=r"broker 2 did not start: .* --new-directory"):
        cluster.start()
    cluster.start(accepted=Accepted(new_directory=True))
    await_in_sync(cluster, TOPIC)
    check_all_is_well(cluster, producer)


@pytest.mark.insync_cluster(brokers=1, with_faults=False)
def test_a_store_that_is_replaced_under_a_broker_is_not_used(insync_cluster: Cluster) -> None:
    cluster = insync_cluster
    store = cluster.folder / "metadata" / "metadata.sqlite"
    older = cluster.folder / "older.sqlite"
    client = admin(cluster)  # must outlive its requests
    client.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(10)
    older.write_bytes(b"")
    older.rename(store)
    log = cluster.brokers[1].log
    for line in ("the metadata store went back", "serves nothing; stop it"):
        eventually(partial(is_logged, log, line), within_s=10, what=line)
    assert logs(cluster, 1) == [f"{TOPIC}-0"]
    cluster.brokers[1].signal(signal.SIGTERM)
    cluster.brokers[1].stop()
    assert log.read_text().count("cannot register") <= 1
