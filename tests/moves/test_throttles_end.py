"""Throttles that are set, changed and removed again: nothing stays, nothing else is removed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from insync.moves import execute, sweep, throttle
from insync.moves.bootstrap import copies_of, throttle_of
from insync.moves.journal import (
    AnotherTool,
    BadJournal,
    Journal,
    JournalFile,
    RateChange,
    state_directory,
)
from insync.moves.throttle import ALL_BROKERS, CannotThrottle
from insync.rules.move_plan import Move
from insync.rules.refusals import BadPlan
from insync.rules.throttle_settings import Throttle
from insync.rules.throttled_replicas import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
    SomeReplicas,
    listing,
)
from insync.rules.values import BrokerId, PartitionId
from support.moves.admin_in_memory import OneCluster, cluster_now, ids, partition


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    return JournalFile(tmp_path / "state", "one")


def throttle_for(*numbers: int, rate: int = 100) -> Throttle:
    """Partitions of `t` that go from brokers 1 and 2 to 3."""
    moving = {
        partition(number): Move(sources=frozenset(ids([1, 2])), destinations=frozenset(ids([3])))
        for number in numbers
    }
    return throttle.of_moves(moving, bytes_per_s=rate, alive=frozenset(ids([1, 2, 3])))


def set_for(cluster: OneCluster, file: JournalFile, *numbers: int, rate: int = 100) -> None:
    async def setting() -> None:
        with file.locked():
            await throttle.set_throttle(
                cluster.admin,
                file,
                throttle_for(*numbers, rate=rate),
                partitions=[partition(number) for number in numbers],
            )

    asyncio.run(setting())


def end(cluster: OneCluster, file: JournalFile, *active: int) -> throttle.ThrottleRemoval:
    moving = [partition(number) for number in active]
    return asyncio.run(throttle.end(cluster.admin, file, active=moving))


BOTH = {LEADER_RATE: "100", FOLLOWER_RATE: "100"}


def test_exactly_what_was_set_is_removed(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}})
    set_for(cluster, file, 0, 1)
    assert cluster.throttles() == {
        "broker 1": BOTH,
        "broker 2": BOTH,
        "broker 3": BOTH,
        "topic t": {LEADER_LIST: "0:1,0:2,1:1,1:2", FOLLOWER_LIST: "0:3,1:3"},
    }
    ended = end(cluster, file)
    assert (ended.brokers, ended.topics, ended.problems) == (ids([1, 2, 3]), ("t",), ())
    assert cluster.throttles() == {}
    assert not file.path.exists()
    assert end(cluster, file) == throttle.ThrottleRemoval()


def test_the_journal_is_there_before_anything_is_set(file: JournalFile) -> None:
    """Killed at once: a later tool knows all that may have been set."""
    seen = []

    class Watched(OneCluster):
        async def alter_configs(self, *args: object, **kwargs: object) -> str:
            seen.append(json.loads(file.path.read_text()))
            return await super().alter_configs(*args, **kwargs)  # type: ignore[arg-type]

    set_for(Watched(topics_set={"t": {}}), file, 0)
    assert len(seen[0]["rates"]) == 6
    assert {each["added"] for each in seen[0]["lists"]} == {"0:1,0:2", "0:3"}
    assert seen[0]["partitions"] == [["t", 0]]


def test_what_the_operator_had_set_is_restored(file: JournalFile) -> None:
    before = {
        "broker 2": {FOLLOWER_RATE: "7"},
        "broker ": {LEADER_RATE: "5"},
        "topic t": {LEADER_LIST: "0:1,5:9", FOLLOWER_LIST: "*"},
    }
    cluster = OneCluster(
        brokers_set={"2": {FOLLOWER_RATE: "7"}, "": {LEADER_RATE: "5"}},
        topics_set={"t": {LEADER_LIST: "0:1,5:9", FOLLOWER_LIST: "*"}},
    )
    set_for(cluster, file, 0)
    assert cluster.topics_set["t"] == {LEADER_LIST: "0:1,0:2,5:9", FOLLOWER_LIST: "*"}
    assert cluster.brokers_set["2"] == BOTH
    end(cluster, file)
    assert cluster.throttles() == before


def test_a_value_that_changed_meanwhile_is_not_restored(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}})
    set_for(cluster, file, 0)
    cluster.brokers_set["1"][LEADER_RATE] = "999"
    cluster.topics_set["t"][FOLLOWER_LIST] = "0:3,7:7"
    end(cluster, file)
    assert cluster.throttles() == {
        "broker 1": {LEADER_RATE: "999"},
        "topic t": {FOLLOWER_LIST: "7:7"},
    }


def test_a_throttle_changed_while_it_runs_restores_the_very_first_value(file: JournalFile) -> None:
    cluster = OneCluster(brokers_set={"1": {LEADER_RATE: "7"}}, topics_set={"t": {}})
    set_for(cluster, file, 0, rate=100)
    set_for(cluster, file, 0, 1, rate=200)
    assert cluster.brokers_set["1"] == {LEADER_RATE: "200", FOLLOWER_RATE: "200"}
    ended = end(cluster, file, 1)  # the first is done, the second is not
    assert ended.kept_for == (partition(1),)
    assert cluster.topics_set["t"] == {LEADER_LIST: "1:1,1:2", FOLLOWER_LIST: "1:3"}
    assert cluster.brokers_set["3"] == {LEADER_RATE: "200", FOLLOWER_RATE: "200"}
    end(cluster, file)
    assert cluster.throttles() == {"broker 1": {LEADER_RATE: "7"}}


def test_a_dead_broker_keeps_its_rate_and_the_journal_lists_it(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}})
    set_for(cluster, file, 0)
    cluster.alive.remove(3)
    ended = end(cluster, file)
    assert len(ended.problems) == 1
    assert ended.problems[0].startswith("the rate of 100 B/s on broker 3 stays: ")
    assert "there is no live broker 3" in ended.problems[0]
    assert cluster.throttles() == {"broker 3": BOTH}
    assert not file.read().is_empty
    cluster.alive.add(3)
    assert end(cluster, file).brokers == ids([3])
    assert cluster.throttles() == {}


def test_refused_midway_leaves_nothing_set(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}}, refuses_topic="t")
    with pytest.raises(CannotThrottle, match="nothing was moved"):
        set_for(cluster, file, 0)
    assert cluster.throttles() == {}
    assert not file.path.exists()


def test_refused_midway_leaves_an_earlier_throttle_as_it_was(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}})
    set_for(cluster, file, 0)
    before, journal = cluster.throttles(), file.read()
    cluster.refuses_topic = "t"
    with pytest.raises(CannotThrottle):
        set_for(cluster, file, 1, rate=500)
    assert cluster.throttles() == before
    assert file.read() == journal


def test_interrupted_midway_leaves_nothing_set(file: JournalFile) -> None:
    """Ctrl-C is a cancellation at any point."""

    class Interrupted(OneCluster):
        async def alter_configs(self, *args: object, **kwargs: object) -> str:
            if len(self.log) == 2:
                self.log.append("interrupted")
                raise asyncio.CancelledError
            return await super().alter_configs(*args, **kwargs)  # type: ignore[arg-type]

    cluster = Interrupted(topics_set={"t": {}})
    with pytest.raises(asyncio.CancelledError):
        set_for(cluster, file, 0)
    assert len(cluster.log) > 3, "two rates were set and taken away"
    assert cluster.throttles() == {}
    assert not file.path.exists()


def test_the_lists_of_a_topic_deleted_meanwhile_are_gone(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}})
    set_for(cluster, file, 0)
    del cluster.topics_set["t"]
    assert end(cluster, file).problems == ()
    assert cluster.throttles() == {}


# --verify of a move that was started elsewhere.


def clear(cluster: OneCluster, file: JournalFile, *numbers: int) -> throttle.ThrottleRemoval:
    plan = {partition(number): ids([3]) for number in numbers}
    now = cluster_now({partition(number): [1, 2] for number in range(10)})
    return asyncio.run(execute.clear_throttle(cluster.admin, file, now, plan))


def test_without_a_journal_the_plans_own_entries_go_and_then_the_rates(file: JournalFile) -> None:
    cluster = OneCluster(
        brokers_set={"1": dict(BOTH)}, topics_set={"t": {LEADER_LIST: "0:1", FOLLOWER_LIST: "0:3"}}
    )
    ended = clear(cluster, file, 0)
    assert (ended.brokers, ended.topics) == (ids([1]), ("t",))
    assert cluster.throttles() == {}


def test_without_a_journal_rates_stay_for_lists_that_are_not_the_plans(file: JournalFile) -> None:
    cluster = OneCluster(
        brokers_set={"1": dict(BOTH)}, topics_set={"t": {LEADER_LIST: "0:1,5:2"}, "u": {}}
    )
    assert clear(cluster, file, 0).brokers == ()
    assert cluster.throttles() == {"broker 1": BOTH, "topic t": {LEADER_LIST: "5:2"}}
    cluster.topics_set["t"] = {LEADER_LIST: "*"}
    assert clear(cluster, file, 0) == throttle.ThrottleRemoval()
    cluster.topics_set["t"] = {}
    removal = clear(cluster, file, 0)
    assert removal == throttle.ThrottleRemoval(), "the rates may be the operator's"


# --sweep.


def sweep_of(
    cluster: OneCluster, file: JournalFile, *active: int, force: bool = False
) -> sweep.SweepResult:
    keys = [partition(number) for number in range(3)]
    moving = {partition(number): ([3], [1]) for number in active}
    now = cluster_now({key: [1, 2] for key in keys}, moving=moving)
    return asyncio.run(sweep.sweep(cluster.admin, file, now, force=force))


def test_sweep_removes_journalled_throttles_and_lists_others(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}}, brokers_set={"2": {}})
    set_for(cluster, file, 0)
    cluster.topics_set["t"][LEADER_LIST] += ",5:9"
    swept = sweep_of(cluster, file)
    assert swept.ended.brokers == ids([1, 2, 3])
    assert [(each.kind, each.name, each.value) for each in swept.others] == [("topic", "t", "5:9")]
    assert not swept.removed_others
    assert cluster.throttles() == {"topic t": {LEADER_LIST: "5:9"}}
    assert sweep_of(cluster, file, force=True).removed_others
    assert cluster.throttles() == {}


def test_sweep_keeps_the_throttle_of_running_moves(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}})
    set_for(cluster, file, 0)
    before = cluster.throttles()
    swept = sweep_of(cluster, file, 0, force=True)
    assert swept.ended.kept_for == (partition(0),)
    assert swept.others == ()
    assert cluster.throttles() == before


def test_forced_sweep_keeps_what_moves_of_other_tools_need(file: JournalFile) -> None:
    cluster = OneCluster(brokers_set={"1": dict(BOTH)}, topics_set={"t": {LEADER_LIST: "0:1"}})
    sweep_of(cluster, file, 0, force=True)
    assert cluster.throttles() == {"broker 1": BOTH, "topic t": {LEADER_LIST: "0:1"}}


# The journal itself.


def test_two_tools_at_once(file: JournalFile) -> None:
    other = JournalFile(file.path.parent, "one")
    with file.locked(), pytest.raises(AnotherTool, match=r"another insync \(process [0-9]+\)"):
        other.locked().__enter__()
    with other.locked():
        pass


def test_a_journal_is_read_back_as_it_was_written(file: JournalFile) -> None:
    journal = Journal(
        partitions=frozenset({partition(3), partition(1, "ü")}),
        rates={(BrokerId(1), LEADER_RATE): RateChange(before=None, values=("5", "6"))},
        lists={("ü", LEADER_LIST): listing([(PartitionId(1), BrokerId(2))])},
        bootstrapping=BrokerId(4),
    )
    with file.locked():
        file.write(journal)
    assert file.read() == journal
    assert [each.suffix for each in file.path.parent.iterdir() if each.suffix == ".new"] == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', "null", "\0"])
def test_a_file_that_is_not_a_journal_is_refused(file: JournalFile, text: str) -> None:
    with file.locked():
        file.path.write_text(text)
    with pytest.raises(BadJournal, match="is not a journal of moves"):
        file.read()


def test_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    unusable = JournalFile(tmp_path / "file", "one")
    with pytest.raises(BadJournal, match="cannot use"), unusable.locked():
        pass


def test_where_the_state_is() -> None:
    assert state_directory({"INSYNC_STATE_DIR": "/a", "HOME": "/h"}) == Path("/a")
    assert state_directory({"XDG_STATE_HOME": "/x", "HOME": "/h"}) == Path("/x/insync")
    assert state_directory({"HOME": "/h"}) == Path("/h/.local/state/insync")


# A bootstrapping broker.


def test_a_bootstrapping_broker_and_the_leaders_it_fetches_from() -> None:
    now = cluster_now(
        {partition(0): [1, 3], partition(1): [3, 1], partition(2): [2, 1, 3], partition(3): [1, 2]}
    )
    copies = copies_of(now, BrokerId(3))
    assert sorted(copies) == [partition(0), partition(2)], "of what it follows"
    set_throttle = throttle_of(now, copies, BrokerId(3), 10)
    assert set_throttle.rates == {
        (3, FOLLOWER_RATE): 10,
        (1, LEADER_RATE): 10,
        (2, LEADER_RATE): 10,
    }
    assert {name: str(each) for name, each in set_throttle.lists.items()} == {
        ("t", FOLLOWER_LIST): "0:3,2:3",
        ("t", LEADER_LIST): "0:1,2:2",
    }


def test_a_bootstrapping_broker_that_is_down() -> None:
    now = cluster_now({partition(0): [1, 3]}, alive=[1, 2])
    set_throttle = throttle_of(now, copies_of(now, BrokerId(3)), BrokerId(3), 10)
    assert (ALL_BROKERS, FOLLOWER_RATE) in set_throttle.rates


def test_a_broker_that_follows_nothing() -> None:
    with pytest.raises(BadPlan, match="broker 9 follows no partition"):
        copies_of(cluster_now({partition(0): [1, 3]}), BrokerId(9))


def test_the_default_of_all_brokers_is_set_and_removed(file: JournalFile) -> None:
    cluster = OneCluster(topics_set={"t": {}}, alive={1})
    default_rate = Throttle(
        rates={(ALL_BROKERS, FOLLOWER_RATE): 10},
        lists={("t", FOLLOWER_LIST): SomeReplicas(frozenset({(PartitionId(0), BrokerId(3))}))},
    )

    async def setting() -> None:
        with file.locked():
            await throttle.set_throttle(
                cluster.admin, file, default_rate, partitions=[partition(0)]
            )

    asyncio.run(setting())
    assert cluster.brokers_set[""] == {FOLLOWER_RATE: "10"}
    end(cluster, file)
    assert cluster.throttles() == {}
