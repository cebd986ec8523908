"""DescribeReplicas is read as it was written, with the documented layout."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.broker.admin.describe_replicas import BARS
from insync.rules.membership import Obstacle
from insync.wire.describe_replicas import (
    NONE,
    Flag,
    FollowerSeen,
    Obstacles,
    OfflineSeen,
    PartitionSeen,
    ReplicasSeen,
    read_request,
    read_response,
    write_request,
    write_response,
)
from insync.wire.primitives import BadMessage
from support.wire.message_strategies import int16s, int32s, int64s, names

followers = st.builds(
    FollowerSeen,
    int32s,
    st.integers(0, 15).map(Flag),
    st.integers(0, 31).map(Obstacles),
    int64s,
    int64s,
    int64s,
    int64s,
    int64s,
    int32s,
    int64s,
)
partitions = st.builds(
    PartitionSeen,
    names,
    int32s,
    int32s,
    int64s,
    int64s,
    names,
    int64s,
    int64s,
    st.lists(followers, max_size=3).map(tuple),
    int64s,
    int64s,
)
offline = st.builds(OfflineSeen, names, int32s, int64s, int64s, st.booleans(), names)


@pytest.mark.property
@given(topics=st.none() | st.lists(names, max_size=5))
def test_requests(topics: list[str] | None) -> None:
    assert read_request(b"head" + write_request(topics), 4) == topics


@pytest.mark.property
@given(
    seen=st.builds(
        ReplicasSeen,
        int16s,
        st.lists(partitions, max_size=3).map(tuple),
        st.lists(offline, max_size=3).map(tuple),
    )
)
def test_responses(seen: ReplicasSeen) -> None:
    assert read_response(b"head" + write_response(seen, 2), 4) == seen
    without_bytes_in = seen._replace(
        partitions=tuple(
            each._replace(bytes_in=NONE, bytes_in_over_ms=NONE) for each in seen.partitions
        )
    )
    assert read_response(b"head" + write_response(seen, 1), 4) == without_bytes_in
    without_both = without_bytes_in._replace(offline=())
    assert read_response(b"head" + write_response(seen, 0), 4) == without_both


def test_the_layout() -> None:
    follower = FollowerSeen(2, Flag.MEMBER | Flag.HELD, Obstacles(0), 7, 12, 300, 40, 9, 1, 35)
    part = PartitionSeen("t", 3, 5, 10, 8, "caught-up", 30_000, 500, (follower,))
    assert write_response(ReplicasSeen(0, (part,))) == (
        pack(">hi", 0, 1)
        + pack(">h", 1)
        + b"t"
        + pack(">iiqq", 3, 5, 10, 8)
        + pack(">h", 9)
        + b"caught-up"
        + pack(">qqi", 30_000, 500, 1)
        + pack(">iBBqqqqqiq", 2, 5, 0, 7, 12, 300, 40, 9, 1, 35)
    )
    part = part._replace(bytes_in=6_000, bytes_in_over_ms=10_000)
    seen = ReplicasSeen(0, (part, part))
    assert write_response(seen, 2) == write_response(seen, 1) + 2 * pack(">qq", 6_000, 10_000)
    assert write_request(None) == b"\xff\xff\xff\xff"
    assert write_request(["ab"]) == pack(">ih", 1, 2) + b"ab"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0",
        pack(">i", -2),
        pack(">i", 2**31 - 1),
        pack(">ih", 1, 5) + b"ab",
        pack(">ih", 1, -1),
        pack(">ih", 1, 1) + b"\xff",
        write_request(["t"]) + b"more",
    ],
)
def test_malformed_requests_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read_request(body, 0)


def test_every_obstacle_has_a_bit_of_its_own() -> None:
    assert set(BARS) == set(Obstacle)
    assert {bar.name for bar in BARS.values()} == {obstacle.name for obstacle in Obstacle}
