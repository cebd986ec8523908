"""What every metadata store promises, on each of them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from store_worlds import CHANGE_LOG_MAX, WORLDS, Life, World, hear, play, until

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

Play = Callable[[Life], None]


@pytest.fixture(params=sorted(WORLDS))
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    return lambda life: play(request.param, tmp_path, life)


def test_a_version_is_0_at_creation_and_grows_with_each_write(live: Play) -> None:
    async def life(world: World) -> None:
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

    live(life)


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


def test_a_step_with_one_failing_operation_changes_nothing_and_names_it(live: Play) -> None:
    async def life(world: World) -> None:
        store = await world.open()
        await store.commit(Create("/a", b"1"), Create("/b", b"1"), Create("/c", b"1"))
        await store.commit(Write("/a", b"2", 0))
        before, revision = store.snapshot(), store.revision
        for failing, message, found in FAILING:
            with pytest.raises(Conflict) as caught:
                await store.commit(
                    Write("/b", b"x", 0), Create("/d", b"x"), failing, Check("/none"), Delete("/c")
                )
            assert (str(caught.value), caught.value.index) == (message, 2)
            assert (caught.value.path, caught.value.found_version) == (failing.path, found)
            assert (store.snapshot(), store.revision) == (before, revision)

    live(life)


def test_checks_that_hold_let_a_step_pass(live: Play) -> None:
    async def life(world: World) -> None:
        store = await world.open()
        await store.commit(Create("/a", b""), Create("/b", b""))
        await store.commit(Check("/a"), Check("/a", 0), Check("/b", 0), CheckAbsent("/c"))
        # Operations look at the tree before the step, in whatever order they stand.
        await store.commit(
            Write("/a", b"", 0), Check("/a", 0), Create("/c", b""), CheckAbsent("/c")
        )
        await store.commit(Delete("/a"), Check("/a", 1), Delete("/b", 0))
        assert sorted(store.snapshot()) == ["/c"]

    live(life)


def test_a_step_of_checks_is_a_revision_that_nobody_is_told_of(live: Play) -> None:
    async def life(world: World) -> None:
        one, two = await world.open(), await world.open()
        told: list[Sequence[Change]] = []
        two.watch(told.append)
        revision = await one.commit(CheckAbsent("/a"))
        assert await one.commit(CheckAbsent("/a")) == revision + 1
        await one.commit(Create("/a", b""))
        await until(lambda: two.revision == revision + 2)
        assert [[change.path for change in changes] for changes in told] == [["/a"]]

    live(life)


def test_children_are_names_and_under_is_everything_below(live: Play) -> None:
    async def life(world: World) -> None:
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

    live(life)


def test_a_snapshot_stays_as_it_was(live: Play) -> None:
    async def life(world: World) -> None:
        store = await world.open()
        await store.commit(Create("/a", b"1"))
        snapshot, below = store.snapshot(), store.under("/")
        await store.commit(Write("/a", b"2", 0), Create("/b", b""))
        assert dict(snapshot) == {"/a": Entry("/a", b"1", 0)}
        assert [entry.value for entry in below] == [b"1"]

    live(life)


def test_values_and_paths_are_kept_as_they_are(live: Play) -> None:
    async def life(world: World) -> None:
        store = await world.open()
        values = {"/empty": b"", "/nul": b"a\0b", "/ü/<default>": "ü'\"".encode()}
        values["/large"] = bytes(VALUE_BYTES_MAX)
        await store.commit(*(Create(path, value) for path, value in values.items()))
        late = await world.open()
        for reader in (store, late):
            assert {path: entry.value for path, entry in reader.snapshot().items()} == values

    live(life)


def test_every_handle_is_told_of_every_step_in_order_with_its_view_at_that_step(
    live: Play,
) -> None:
    async def life(world: World) -> None:
        stores = [await world.open() for _ in range(3)]
        told = [hear(store) for store in stores]
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
        assert told == [expected] * 3

    live(life)


def test_who_was_away_catches_up_at_once_and_hears_of_nothing_twice(live: Play) -> None:
    async def play(world: World) -> None:
        here, away = await world.open(), await world.open()
        heard: list[str] = []
        away.watch(lambda changes: heard.extend(change.path for change in changes))
        for name in ("/a", "/b", "/c"):
            await here.commit(Create(name, b""))
        away.catch_up()
        assert heard == ["/a", "/b", "/c"]
        assert away.get("/c") is not None
        away.catch_up()
        await here.commit(Create("/d", b""))
        await until(lambda: "/d" in heard)
        assert heard == ["/a", "/b", "/c", "/d"]

    live(play)


def test_a_watcher_that_catches_up_is_told_one_step_after_the_other(live: Play) -> None:
    async def play(world: World) -> None:
        here, away = await world.open(), await world.open()
        heard: list[str] = []

        def catch_up(changes: Sequence[Change]) -> None:
            heard.extend(f"first {change.path}" for change in changes)
            away.catch_up()

        away.watch(catch_up)
        away.watch(lambda changes: heard.extend(f"then {change.path}" for change in changes))
        for name in ("/a", "/b"):
            await here.commit(Create(name, b""))
        away.catch_up()
        assert heard == ["first /a", "then /a", "first /b", "then /b"]
        await here.commit(Create("/c", b""))
        await until(lambda: "then /c" in heard)

    live(play)


def test_who_unsubscribed_hears_no_more_and_a_failing_watcher_stops_nobody(live: Play) -> None:
    async def life(world: World) -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context["exception"])
        )
        store = await world.open()
        told: list[str] = []

        def fail(_: Sequence[Change]) -> None:
            raise ZeroDivisionError

        def unsubscribe_the_first(_: Sequence[Change]) -> None:
            told.append("second")
            leave()

        store.watch(fail)
        leave = store.watch(lambda _: told.append("first"))
        store.watch(unsubscribe_the_first)
        await store.commit(Create("/a", b""))
        await store.commit(Create("/b", b""))
        leave()  # a second time is harmless
        assert told == ["first", "second", "second"]
        assert [type(failure) for failure in failures] == [ZeroDivisionError] * 2

    live(life)


def test_who_fell_behind_the_change_log_gets_the_difference_as_one_step(live: Play) -> None:
    async def life(world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.commit(Create("/stays", b""), Create("/goes", b""), Create("/n", b"0"))
        await until(lambda: two.revision == one.revision)
        told: list[Sequence[Change]] = []
        two.watch(told.append)
        world.quiet(two)
        try:
            await one.commit(Delete("/goes"), Create("/new", b""))
            for version in range(CHANGE_LOG_MAX + 10):
                await one.commit(Write("/n", b"%d" % version, version))
            assert told == []
        finally:
            world.wake(two)
        await until(lambda: two.revision == one.revision)
        assert two.snapshot() == one.snapshot()
        assert [[change.path for change in changes] for changes in told] == [
            ["/goes", "/n", "/new"]
        ]
        await one.commit(Delete("/stays"))
        await until(lambda: len(told) == 2)

    live(life)


def test_a_step_larger_than_the_change_log_reaches_everybody(live: Play) -> None:
    async def life(world: World) -> None:
        one, two = await world.open(), await world.open()
        for round_number in range(3):
            await one.commit(
                *(Create(f"/{round_number}/{i}", b"") for i in range(CHANGE_LOG_MAX * 3))
            )
            await until(lambda: two.revision == one.revision)
            assert two.snapshot() == one.snapshot()

    live(life)


def test_of_steps_that_build_on_the_same_version_exactly_one_wins(live: Play) -> None:
    async def life(world: World) -> None:
        stores = [await world.open() for _ in range(3)]
        await stores[0].commit(Create("/a", b""), Create("/b", b""))
        await until(lambda: all(store.revision == stores[0].revision for store in stores))
        for version in range(20):
            answers = await asyncio.gather(
                *(
                    store.commit(Check("/b", 0), Write("/a", b"%d" % number, version))
                    for number, store in enumerate(stores)
                ),
                return_exceptions=True,
            )
            winners = [number for number, answer in enumerate(answers) if isinstance(answer, int)]
            assert len(winners) == 1
            assert sum(isinstance(answer, Conflict) for answer in answers) == 2
            for store in stores:  # the losers know what beat them
                assert store.get("/a") == Entry("/a", b"%d" % winners[0], version + 1)

    live(life)


def test_ephemeral_nodes_vanish_with_their_session_in_one_step(live: Play) -> None:
    async def life(world: World) -> None:
        one, two = await world.open(), await world.open()
        incarnation = await one.open_session("broker-1")
        await one.commit(
            Create("/brokers/ids/1", b"", ephemeral=True),
            Create("/controller", b"", ephemeral=True),
            Create("/stays", b""),
        )
        assert one.get("/controller") == Entry("/controller", b"", 0, str(incarnation))
        await two.commit(Check("/controller"), Check(f"/sessions/{incarnation}"))
        await two.commit(Write("/controller", b"2", 0))  # others may write it; it stays one's
        told: list[Sequence[Change]] = []
        two.watch(told.append)
        assert (one.session, two.session) == (str(incarnation), None)
        await one.close_session()
        assert (one.session, two.session) == (None, None)
        assert not one.session_lost.is_set()
        await until(lambda: two.revision == one.revision)
        gone = ["/brokers/ids/1", "/controller", f"/sessions/{incarnation}"]
        assert [[change.path for change in changes] for changes in told] == [gone]
        assert sorted(two.snapshot()) == ["/stays"]
        await one.close_session()

    live(life)


def test_who_lost_its_session_is_told_and_may_open_another(live: Play) -> None:
    async def life(world: World) -> None:
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

    live(life)


def test_an_ephemeral_node_needs_a_session(live: Play) -> None:
    async def life(world: World) -> None:
        store = await world.open()
        with pytest.raises(SessionEnded, match="/a: "):
            await store.commit(Create("/a", b"", ephemeral=True))
        assert not store.is_alive(0)
        assert store.snapshot() == {}

    live(life)


def test_a_session_that_has_ended_makes_no_ephemeral_node_though_its_owner_does_not_know(
    live: Play,
) -> None:
    async def life(world: World) -> None:
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

    live(life)


def test_a_closed_handle_refuses_and_its_session_is_gone(live: Play) -> None:
    async def life(world: World) -> None:
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

    live(life)


def test_an_incarnation_is_never_given_twice(live: Play) -> None:
    async def life(world: World) -> None:
        stores = [await world.open() for _ in range(3)]
        given: list[int] = []
        for _ in range(3):
            given += await asyncio.gather(*(store.open_session("same") for store in stores))
            await asyncio.gather(*(store.close_session() for store in stores))
        assert len(set(given)) == 9
        assert given[0:3] < given[3:6] < given[6:9]

    live(life)


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
def test_steps_that_only_a_bug_makes_are_asserted(live: Play, operations: list[Operation]) -> None:
    async def life(world: World) -> None:
        store = await world.open()
        with pytest.raises(AssertionError):
            await store.commit(*operations)

    live(life)
