"""What every metadata store guarantees, tested on each of them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.store import (
    VALUE_BYTES_MAX,
    Change,
    Check,
    CheckAbsent,
    Create,
    Delete,
    Entry,
    Operation,
    Write,
)
from insync.metadata.view import NodesAfter, fingerprint
from support.metadata.store_kinds import (
    CHANGE_LOG_MAX,
    WORLDS,
    Scenario,
    World,
    play,
    record_notifications,
    until,
)

RunOnStore = Callable[[Scenario], None]


@pytest.fixture(params=sorted(WORLDS))
def run_on_store(request: pytest.FixtureRequest, tmp_path: Path) -> RunOnStore:
    return lambda scenario: play(request.param, tmp_path, scenario)


def test_a_version_is_0_at_creation_and_grows_with_each_write(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        first = await store.commit(Create("/a", b"1"))
        assert store.get("/a") == Entry("/a", b"1", 0)
        assert store.revision == first
        assert await store.commit(Write("/a", b"2", 0)) == first + 1
        await store.commit(Write("/a", b"2", 1))  # the same value is a write too
        assert store.get("/a") == Entry("/a", b"2", 2)
        await store.commit(Delete("/a", 2))
        assert store.get("/a") is None
        await store.commit(Create("/a", b"3"))
        assert store.get("/a") == Entry("/a", b"3", 0)

    run_on_store(scenario)


FAILING: list[tuple[Operation, str, int | None]] = [
    (Create("/a", b""), "/a: expected nothing, found version 1", 1),
    (CheckAbsent("/a"), "/a: expected nothing, found version 1", 1),
    (Write("/a", b"", 0), "/a: expected version 0, found version 1", 1),
    (Write("/a", b"", 2), "/a: expected version 2, found version 1", 1),
    (Write("/none", b"", 0), "/none: expected version 0, found nothing", None),
    (Delete("/a", 0), "/a: expected version 0, found version 1", 1),
    (Delete("/none"), "/none: expected a node, found nothing", None),
    (Check("/a", 0), "/a: expected version 0, found version 1", 1),
    (Check("/none"), "/none: expected a node, found nothing", None),
    (Check("/none", 0), "/none: expected version 0, found nothing", None),
]


def test_a_step_with_one_failing_operation_changes_nothing_and_names_it(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        await store.commit(Create("/a", b"1"), Create("/b", b"1"), Create("/c", b"1"))
        await store.commit(Write("/a", b"2", 0))
        before, revision = store.snapshot(), store.revision
        for failing, message, found_version in FAILING:
            with pytest.raises(Conflict) as caught:
                await store.commit(
                    Write("/b", b"x", 0), Create("/d", b"x"), failing, Check("/none"), Delete("/c")
                )
            assert (str(caught.value), caught.value.index) == (message, 2)
            assert (caught.value.path, caught.value.found_version) == (failing.path, found_version)
            assert (store.snapshot(), store.revision) == (before, revision)

    run_on_store(scenario)


def test_checks_that_hold_let_a_step_pass(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        await store.commit(Create("/a", b""), Create("/b", b""))
        await store.commit(Check("/a"), Check("/a", 0), Check("/b", 0), CheckAbsent("/c"))
        # Operations see the tree before the step, in any order.
        await store.commit(
            Write("/a", b"", 0), Check("/a", 0), Create("/c", b""), CheckAbsent("/c")
        )
        await store.commit(Delete("/a"), Check("/a", 1), Delete("/b", 0))
        assert sorted(store.snapshot()) == ["/c"]

    run_on_store(scenario)


def test_a_step_of_checks_is_a_revision_without_a_notification(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.open(), await world.open()
        notified: list[Sequence[Change]] = []
        two.watch(notified.append)
        revision = await one.commit(CheckAbsent("/a"))
        assert await one.commit(CheckAbsent("/a")) == revision + 1
        await one.commit(Create("/a", b""))
        await until(lambda: two.revision == revision + 2)
        assert [[change.path for change in changes] for changes in notified] == [["/a"]]

    run_on_store(scenario)


def test_children_are_names_and_under_is_everything_below(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        # "-" and "." sort before "/": neighbours in order are not neighbours in the tree.
        made = ["/t/a", "/t/a-b", "/t/a.b/x/y", "/t/a/p/0", "/t/a/p/10", "/t/ab", "/tt", "/t/B"]
        await store.commit(*(Create(path, path.encode()) for path in made))
        assert store.children("/t") == ["B", "a", "a-b", "a.b", "ab"]
        assert store.children("/t/a") == ["p"]
        assert store.children("/t/a/p") == ["0", "10"]
        assert store.children("/") == ["t", "tt"]
        assert store.children("/tt") == store.children("/none") == []
        assert [entry.path for entry in store.under("/t/a")] == ["/t/a/p/0", "/t/a/p/10"]
        below = [path for path in sorted(made) if path.startswith("/t/")]
        assert [entry.path for entry in store.under("/t")] == below
        assert [entry.path for entry in store.under("/")] == sorted(made)
        await store.commit(Delete("/t/a/p/0"), Delete("/t/a/p/10"), Delete("/t/a"))
        assert store.children("/t") == ["B", "a-b", "a.b", "ab"]
        assert list(store.under("/t/a")) == []

    run_on_store(scenario)


def test_a_snapshot_stays_as_it_was(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        await store.commit(Create("/a", b"1"))
        snapshot, below = store.snapshot(), store.under("/")
        await store.commit(Write("/a", b"2", 0), Create("/b", b""))
        assert dict(snapshot) == {"/a": Entry("/a", b"1", 0)}
        assert [entry.value for entry in below] == [b"1"]

    run_on_store(scenario)


def test_values_and_paths_are_kept_as_they_are(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        values = {"/empty": b"", "/nul": b"a\0b", "/ü/<default>": "ü'\"".encode()}
        values["/large"] = bytes(VALUE_BYTES_MAX)
        await store.commit(*(Create(path, value) for path, value in values.items()))
        late = await world.open()
        for reader in (store, late):
            assert {path: entry.value for path, entry in reader.snapshot().items()} == values

    run_on_store(scenario)


def test_every_store_is_notified_of_every_step_in_order_with_its_view_at_that_step(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        stores = [await world.open() for _ in range(3)]
        notified = [record_notifications(store) for store in stores]
        first = await stores[0].commit(Create("/a", b"0"), Create("/b", b"0"))
        await stores[1].commit(Write("/a", b"1", 0))
        await stores[2].commit(Delete("/b"), Write("/a", b"2", 1))
        a0, a1, a2 = (Entry("/a", b"%d" % number, number) for number in range(3))
        b0 = Entry("/b", b"0", 0)
        expected = [
            (first, [Change("/a", None, a0), Change("/b", None, b0)]),
            (first + 1, [Change("/a", a0, a1)]),
            (first + 2, [Change("/b", b0, None), Change("/a", a1, a2)]),
        ]
        await until(lambda: all(store.revision == first + 2 for store in stores))
        assert notified == [expected] * 3

    run_on_store(scenario)


def test_catch_up_applies_missed_steps_at_once_and_none_twice(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        here, away = await world.open(), await world.open()
        received: list[str] = []
        away.watch(lambda changes: received.extend(change.path for change in changes))
        for name in ("/a", "/b", "/c"):
            await here.commit(Create(name, b""))
        away.catch_up()
        assert received == ["/a", "/b", "/c"]
        assert away.get("/c") is not None
        away.catch_up()
        await here.commit(Create("/d", b""))
        await until(lambda: "/d" in received)
        assert received == ["/a", "/b", "/c", "/d"]

    run_on_store(scenario)


def test_a_watcher_that_catches_up_is_notified_step_by_step(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        here, away = await world.open(), await world.open()
        received: list[str] = []

        def catch_up(changes: Sequence[Change]) -> None:
            received.extend(f"first {change.path}" for change in changes)
            away.catch_up()

        away.watch(catch_up)
        away.watch(lambda changes: received.extend(f"then {change.path}" for change in changes))
        for name in ("/a", "/b"):
            await here.commit(Create(name, b""))
        away.catch_up()
        assert received == ["first /a", "then /a", "first /b", "then /b"]
        await here.commit(Create("/c", b""))
        await until(lambda: "then /c" in received)

    run_on_store(scenario)


def test_unsubscribed_watchers_are_not_called_and_a_failing_one_stops_no_other(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context["exception"])
        )
        store = await world.open()
        notified: list[str] = []

        def fail(_: Sequence[Change]) -> None:
            raise ZeroDivisionError

        def unsubscribe_first(_: Sequence[Change]) -> None:
            notified.append("second")
            unsubscribe()

        store.watch(fail)
        unsubscribe = store.watch(lambda _: notified.append("first"))
        store.watch(unsubscribe_first)
        await store.commit(Create("/a", b""))
        await store.commit(Create("/b", b""))
        unsubscribe()  # a second time is harmless
        assert notified == ["first", "second", "second"]
        assert [type(failure) for failure in failures] == [ZeroDivisionError] * 2

    run_on_store(scenario)


def test_a_store_behind_the_change_log_gets_the_difference_as_one_step(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.commit(Create("/stays", b""), Create("/goes", b""), Create("/n", b"0"))
        await until(lambda: two.revision == one.revision)
        notified: list[Sequence[Change]] = []
        two.watch(notified.append)
        world.quiet(two)
        try:
            await one.commit(Delete("/goes"), Create("/new", b""))
            for version in range(CHANGE_LOG_MAX + 10):
                await one.commit(Write("/n", b"%d" % version, version))
            assert notified == []
        finally:
            world.wake(two)
        await until(lambda: two.revision == one.revision)
        assert two.snapshot() == one.snapshot()
        assert [[change.path for change in changes] for changes in notified] == [
            ["/goes", "/n", "/new"]
        ]
        await one.commit(Delete("/stays"))
        await until(lambda: len(notified) == 2)

    run_on_store(scenario)


def test_a_step_larger_than_the_change_log_reaches_every_store(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.open(), await world.open()
        for round_number in range(3):
            await one.commit(
                *(Create(f"/{round_number}/{i}", b"") for i in range(CHANGE_LOG_MAX * 3))
            )
            await until(lambda: two.revision == one.revision)
            assert two.snapshot() == one.snapshot()

    run_on_store(scenario)


def test_exactly_one_of_several_steps_on_the_same_version_is_committed(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        stores = [await world.open() for _ in range(3)]
        await stores[0].commit(Create("/a", b""), Create("/b", b""))
        await until(lambda: all(store.revision == stores[0].revision for store in stores))
        for version in range(20):
            results = await asyncio.gather(
                *(
                    store.commit(Check("/b", 0), Write("/a", b"%d" % number, version))
                    for number, store in enumerate(stores)
                ),
                return_exceptions=True,
            )
            winners = [number for number, result in enumerate(results) if isinstance(result, int)]
            assert len(winners) == 1
            assert sum(isinstance(result, Conflict) for result in results) == 2
            for store in stores:  # the losers see the winner's write
                assert store.get("/a") == Entry("/a", b"%d" % winners[0], version + 1)

    run_on_store(scenario)


def test_ephemeral_nodes_vanish_with_their_session_in_one_step(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.open(), await world.open()
        incarnation = await one.open_session("broker-1")
        await one.commit(
            Create("/brokers/ids/1", b"", ephemeral=True),
            Create("/controller", b"", ephemeral=True),
            Create("/stays", b""),
        )
        assert one.get("/controller") == Entry("/controller", b"", 0, str(incarnation))
        await two.commit(Check("/controller"), Check(f"/sessions/{incarnation}"))
        await two.commit(
            Write("/controller", b"2", 0)
        )  # another may write it; it still belongs to the first
        notified: list[Sequence[Change]] = []
        two.watch(notified.append)
        assert (one.session, two.session) == (str(incarnation), None)
        await one.close_session()
        assert (one.session, two.session) == (None, None)
        assert not one.session_lost.is_set()
        await until(lambda: two.revision == one.revision)
        gone = ["/brokers/ids/1", "/controller", f"/sessions/{incarnation}"]
        assert [[change.path for change in changes] for changes in notified] == [gone]
        assert sorted(two.snapshot()) == ["/stays"]
        await one.close_session()

    run_on_store(scenario)


def test_a_store_that_lost_its_session_is_notified_and_may_open_another(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.open(), await world.open()
        other = await two.open_session("broker-2")
        await two.commit(Create("/brokers/ids/2", b"", ephemeral=True))
        first = await one.open_session("broker-1")
        assert first > other
        await one.commit(Create("/brokers/ids/1", b"", ephemeral=True))
        await world.end_session(first)
        await asyncio.wait_for(one.session_lost.wait(), 5)
        assert not one.is_alive(0)
        assert one.children("/brokers/ids") == ["2"]
        with pytest.raises(SessionEnded):
            await one.commit(Create("/brokers/ids/1", b"", ephemeral=True))
        second = await one.open_session("broker-1")
        assert second > first
        assert not one.session_lost.is_set()
        await one.commit(Create("/brokers/ids/1", b"", ephemeral=True))
        assert not two.session_lost.is_set()

    run_on_store(scenario)


def test_an_ephemeral_node_needs_a_session(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        with pytest.raises(SessionEnded, match="/a: "):
            await store.commit(Create("/a", b"", ephemeral=True))
        assert not store.is_alive(0)
        assert store.snapshot() == {}

    run_on_store(scenario)


def test_a_session_that_has_ended_makes_no_ephemeral_node_though_its_owner_does_not_know(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.open(), await world.open()
        incarnation = await one.open_session("broker-1")
        world.quiet(one)
        try:
            await world.end_session(incarnation)
            commit = asyncio.ensure_future(one.commit(Create("/a", b"", ephemeral=True)))
            await asyncio.sleep(0)
            assert one.session == str(incarnation)
        finally:
            world.wake(one)
        with pytest.raises(SessionEnded):
            await commit
        await two.commit(CheckAbsent("/a"))

    run_on_store(scenario)


def test_a_closed_store_refuses_and_its_session_is_gone(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.open_session("broker-1")
        await one.commit(Create("/a", b"", ephemeral=True))
        await one.close()
        await one.close()
        with pytest.raises(Unavailable):
            await one.commit(Create("/b", b""))
        with pytest.raises(Unavailable):
            await one.open_session("broker-1")
        await until(lambda: two.revision == 3)
        assert two.snapshot() == {}

    run_on_store(scenario)


def test_an_incarnation_is_never_used_twice(run_on_store: RunOnStore) -> None:
    async def scenario(world: World) -> None:
        stores = [await world.open() for _ in range(3)]
        incarnations: list[int] = []
        for _ in range(3):
            incarnations += await asyncio.gather(*(store.open_session("same") for store in stores))
            await asyncio.gather(*(store.close_session() for store in stores))
        assert len(set(incarnations)) == 9
        assert incarnations[0:3] < incarnations[3:6] < incarnations[6:9]

    run_on_store(scenario)


@pytest.mark.parametrize(
    "operations",
    [
        [],
        [Create("a", b"")],
        [Create("/", b"")],
        [Create("/a/", b"")],
        [Create("/a//b", b"")],
        [Create("/a\0", b"")],
        [Create("/a", bytes(VALUE_BYTES_MAX + 1))],
        [Create("/a", b""), Write("/a", b"", 0)],
        [Delete("/sessions/1")],
    ],
)
def test_steps_that_only_a_bug_makes_fail_an_assertion(
    run_on_store: RunOnStore, operations: list[Operation]
) -> None:
    async def scenario(world: World) -> None:
        store = await world.open()
        with pytest.raises(AssertionError):
            await store.commit(*operations)

    run_on_store(scenario)


def test_two_different_steps_with_the_same_revision_have_different_fingerprints(
    run_on_store: RunOnStore,
) -> None:
    async def scenario(world: World) -> None:
        writer, reader = await world.open(), await world.open()
        first = await writer.commit(Create("/a", b"1"), Create("/b", b"1"))
        seen = writer.latest_step
        assert seen[0] == first
        assert seen[1]
        await until(lambda: reader.revision == first)
        assert reader.latest_step == seen
        checked = await writer.commit(Check("/a"))  # changes nothing: not one to compare
        assert writer.latest_step == seen
        second = await writer.commit(Delete("/b"))
        assert await reader.fingerprint_of(first) == seen[1]
        assert await reader.fingerprint_of(second) == writer.latest_step[1] != seen[1]
        assert await reader.fingerprint_of(checked) == ""
        assert await reader.fingerprint_of(second + 1) is None
        late = await world.open()
        assert late.latest_step == (second, "")  # it has read the tree, and no step
        for number in range(CHANGE_LOG_MAX + 1):
            await writer.commit(Write("/a", b"", number))
        assert await reader.fingerprint_of(first) is None

    run_on_store(scenario)


def test_the_fingerprint_depends_on_everything_in_a_step() -> None:
    nodes: NodesAfter = [("/a", Entry("/a", b"1", 0)), ("/b", None)]
    others: list[NodesAfter] = [
        [("/a", Entry("/a", b"2", 0)), ("/b", None)],
        [("/a", Entry("/a", b"1", 1)), ("/b", None)],
        [("/a", Entry("/a", b"1", 0, "7")), ("/b", None)],
        [("/a", Entry("/a", b"1", 0)), ("/c", None)],
        [("/a", Entry("/a", b"1", 0))],
        [("/a", None), ("/b", None)],
    ]
    assert fingerprint(nodes) == fingerprint(list(nodes))
    assert len({fingerprint(each) for each in [nodes, *others]}) == 1 + len(others)
