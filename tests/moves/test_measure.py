"""How long it takes to measure what comes in: on Insync, on older brokers, on Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from insync.cli import reassign_do, reassign_plan
from insync.client.admin import Admin
from insync.client.admin_connections import Connections
from insync.client.log_sizes import LogSize, LogSizes
from insync.moves import size_samples
from insync.moves.planning import UnsafeThrottle
from insync.moves.size_samples import AGE_MS_MAX, AGE_MS_MIN, Clocks, SampleFile, SizeSample
from insync.sim.cluster import Cluster
from insync.wire import describe_replicas as wire
from insync.wire.apis import Api
from support.moves.simulated_brokers import PARTITION, options, run_tool, to
from support.sim.few_brokers import ONE, client_of, state_of, until

PAYLOAD = bytes(10_000)
EVERY_S = 0.1
BYTES_PER_S = 200_000  # a leader sends each byte to a replica that stays and one that is added
TOO_LOW = BYTES_PER_S * 9 // 10
AT_ONCE_S = 1.0
DAY_MS = 24 * 3_600_000


async def write_steadily(cluster: Cluster) -> None:
    client = client_of(cluster, 105)
    while True:
        await client.append_once([PAYLOAD])
        await asyncio.sleep(EVERY_S)


async def timed(cluster: Cluster, action: Awaitable[Any]) -> tuple[float, Any]:
    began_s = cluster.loop.time()
    result = await action
    return cluster.loop.time() - began_s, result


def old_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before version 2 of DescribeReplicas."""
    write = wire.write_response
    monkeypatch.setattr(wire, "write_response", lambda seen, version: write(seen, min(version, 1)))


def apache_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not know DescribeReplicas."""
    offers, broker_offers = Connections.offers, Connections.broker_offers

    async def no_private(self: Connections, api: Api) -> bool:
        return api is not Api.DESCRIBE_REPLICAS and await offers(self, api)

    async def no_private_of(self: Connections, broker: int, api: Api) -> bool:
        return api is not Api.DESCRIBE_REPLICAS and await broker_offers(self, broker, api)

    monkeypatch.setattr(Connections, "offers", no_private)
    monkeypatch.setattr(Connections, "broker_offers", no_private_of)


@pytest.fixture(autouse=True)
def _virtual_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool's clocks are those of the simulated cluster, which began a day after the epoch."""

    def now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1_000)

    clocks = Clocks(wall_ms=lambda: DAY_MS + now_ms(), monotonic_ms=now_ms)
    monkeypatch.setattr(reassign_do, "CLOCKS", clocks)


def loaded(scenario: Callable[[Cluster, Admin], Awaitable[None]]) -> None:
    """The scenario beside a steady producer, which has written for half a minute."""

    async def whole(cluster: Cluster, admin: Admin) -> None:
        writing = asyncio.create_task(write_steadily(cluster))
        await asyncio.sleep(30)
        await admin.brokers()  # it knows all, if the first is killed
        await scenario(cluster, admin)
        writing.cancel()

    run_tool(whole)


def executing(folder: Path, throttle: int, **changed: Any) -> reassign_do.ReassignOptions:
    return options(folder, to(3, 2), throttle_bytes_per_s=throttle, force=False, **changed)


async def is_refused(admin: Admin, asked: reassign_do.ReassignOptions) -> bool:
    try:
        await reassign_do.execute(admin, asked)
    except UnsafeThrottle:
        return True
    return False


def test_insyncs_brokers_say_at_once_what_comes_in(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        took_s, answer = await timed(
            cluster, reassign_plan.plan(admin, executing(tmp_path, BYTES_PER_S))
        )
        assert took_s < AT_ONCE_S
        assert answer.data["measured_s"] == 10
        assert answer.data["safe_above_bytes_per_s"] == pytest.approx(BYTES_PER_S, rel=0.05)
        took_s, refused = await timed(cluster, is_refused(admin, executing(tmp_path, TOO_LOW)))
        assert refused
        assert 10 <= took_s < 10 + AT_ONCE_S, "only what still comes in refuses"
        took_s, refused = await timed(
            cluster, is_refused(admin, executing(tmp_path, 20 * BYTES_PER_S))
        )
        assert not refused
        assert took_s < AT_ONCE_S
        await until(lambda: state_of(cluster)["replicas"] == [3, 2], within_s=60)
        assert list(tmp_path.glob("*.samples")) == [], "there is no need of one"

    loaded(scenario)


def test_a_load_that_has_ended_refuses_no_throttle(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        writing = asyncio.create_task(write_steadily(cluster))
        await asyncio.sleep(30)
        writing.cancel()
        await asyncio.sleep(0.5)  # what was under way arrives
        took_s, refused = await timed(cluster, is_refused(admin, executing(tmp_path, TOO_LOW // 2)))
        assert not refused
        assert 10 <= took_s < 10 + AT_ONCE_S

    run_tool(scenario)


def test_an_explicit_time_is_measured_anew(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        asked = executing(tmp_path, BYTES_PER_S, measure_s=4)
        took_s, answer = await timed(cluster, reassign_plan.plan(admin, asked))
        assert 4 <= took_s < 4 + AT_ONCE_S
        assert answer.data["measured_s"] == pytest.approx(4, abs=0.1)
        assert answer.data["safe_above_bytes_per_s"] == pytest.approx(BYTES_PER_S, rel=0.1)

    loaded(scenario)


def test_a_new_leader_is_given_three_seconds(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] == 2, within_s=60)
        await asyncio.sleep(1)
        took_s, answer = await timed(
            cluster, reassign_plan.plan(admin, executing(tmp_path, BYTES_PER_S))
        )
        assert 1 < took_s < 4
        assert answer.data["safe_above_bytes_per_s"] == pytest.approx(BYTES_PER_S, rel=0.35)

    loaded(scenario)


def test_older_brokers_are_measured_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_brokers(monkeypatch)

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        took_s, refused = await timed(cluster, is_refused(admin, executing(tmp_path, TOO_LOW)))
        assert refused
        assert 10 <= took_s < 10 + AT_ONCE_S

    loaded(scenario)


def test_the_sample_of_a_plan_serves_on_apache_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apache_kafka(monkeypatch)

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        async def planned(within_s: tuple[float, float]) -> Any:
            asked = executing(tmp_path, BYTES_PER_S)
            took_s, answer = await timed(cluster, reassign_plan.plan(admin, asked))
            assert within_s[0] <= took_s < within_s[1] + AT_ONCE_S
            rate = answer.data["safe_above_bytes_per_s"]
            assert rate == pytest.approx(BYTES_PER_S, rel=0.1)
            return answer

        await reassign_plan.generate(admin, options(tmp_path, {}))
        await asyncio.sleep(4)
        await planned((6 - AT_ONCE_S, 6))  # the rest of ten seconds
        await planned((0, 0))
        await asyncio.sleep(5)
        answer = await planned((0, 0))
        assert answer.data["measured_s"] == pytest.approx(15, abs=1), "since --generate"
        await asyncio.sleep(60)
        took_s, refused = await timed(cluster, is_refused(admin, executing(tmp_path, TOO_LOW)))
        assert refused
        assert 10 <= took_s < 10 + AT_ONCE_S, "only what still comes in refuses"
        monkeypatch.setattr(size_samples, "AGE_MS_MAX", 120_000)
        await asyncio.sleep(121)
        await planned((10, 10))

    loaded(scenario)


def test_a_sample_of_other_logs_does_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leader's log is another one; so is that of a topic that was created again."""
    apache_kafka(monkeypatch)

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await reassign_plan.generate(admin, options(tmp_path, {}))
        await asyncio.sleep(20)
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] == 2, within_s=60)
        took_s, refused = await timed(cluster, is_refused(admin, executing(tmp_path, TOO_LOW)))
        assert refused
        assert took_s >= 10

    loaded(scenario)


# The file.


def sample_file(folder: Path, *, wall_ms: int, monotonic_ms: int) -> SampleFile:
    clocks = Clocks(wall_ms=lambda: wall_ms, monotonic_ms=lambda: monotonic_ms)
    return SampleFile(folder, "abc/d", clocks)


def add(file: SampleFile) -> None:
    wall_ms, monotonic_ms = file.clocks.read()
    file.add(
        SizeSample(
            wall_ms=wall_ms,
            monotonic_ms=monotonic_ms,
            sizes=LogSizes(
                of={ONE: {PARTITION: LogSize(end=50, size_bytes=1_000)}},
                problems={},
            ),
        )
    )


def ages(folder: Path, *, wall_ms: int, monotonic_ms: int) -> list[int]:
    return [
        age for age, _ in sample_file(folder, wall_ms=wall_ms, monotonic_ms=monotonic_ms).read()
    ]


def test_two_samples_are_kept_ten_seconds_apart_or_more(tmp_path: Path) -> None:
    for second in (0, 3, 10, 13, 21):
        add(sample_file(tmp_path, wall_ms=second * 1_000, monotonic_ms=second * 1_000))
    assert ages(tmp_path, wall_ms=25_000, monotonic_ms=25_000) == [15_000, 4_000]
    (_, sample), *_ = sample_file(tmp_path, wall_ms=25_000, monotonic_ms=25_000).read()
    assert sample.sizes.bytes_on(ONE, PARTITION) == 1_000
    assert sample.sizes.end_on(ONE, PARTITION) == 50
    assert [each.name for each in tmp_path.iterdir()] == ["log-sizes-abc_d.samples"]


@pytest.mark.parametrize(
    ("wall_ms", "monotonic_ms", "is_known"),
    [
        (AGE_MS_MIN, AGE_MS_MIN, True),
        (AGE_MS_MAX, AGE_MS_MAX, True),
        (AGE_MS_MAX + 1, AGE_MS_MAX + 1, False),
        (60_000 + 900, 60_000, True),
        (60_000 + 2_000, 60_000, False),  # the clock was set
        (60_000, 5_000, False),  # the host was restarted, or slept
        (-5_000, -5_000, False),
    ],
)
def test_a_sample_is_used_while_both_clocks_agree_that_it_is_young(
    tmp_path: Path, wall_ms: int, monotonic_ms: int, *, is_known: bool
) -> None:
    add(sample_file(tmp_path, wall_ms=DAY_MS, monotonic_ms=DAY_MS))
    known = ages(tmp_path, wall_ms=DAY_MS + wall_ms, monotonic_ms=DAY_MS + monotonic_ms)
    assert known == ([monotonic_ms] if is_known else [])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version":2}', '{"version":1,"samples":[{"logs":[[1]]}]}', "[" * 9_999],
)
def test_a_file_that_cannot_be_read_is_no_sample(tmp_path: Path, text: str) -> None:
    file = sample_file(tmp_path, wall_ms=0, monotonic_ms=0)
    file.path.write_text(text)
    assert file.read() == []
    add(file)
    assert len(file.read()) == 1, "it is written anew"


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    add(sample_file(tmp_path / "file", wall_ms=0, monotonic_ms=0))
    assert (tmp_path / "file").read_text() == ""
