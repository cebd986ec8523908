"""`insync topics --elect-damaged`: give leaderless partitions a leader in spite of lost records.

If every replica that may lead is damaged, the partition has no leader. An operator who cannot
restore a replica's files elects the best one that is left; the output says what that loses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from insync.cli.replica_words import offline_text
from insync.client.admin import Admin, Partition, Topic
from insync.client.replica_lag import FollowerKey, ReplicaLag
from insync.wire.describe_replicas import OfflineSeen

Reports = Mapping[FollowerKey, OfflineSeen]


async def elect_damaged(admin: Admin, topics: Sequence[Topic]) -> tuple[object, str]:
    """Elect a leader of every partition of these topics that has none because of damage."""
    names = {topic.name for topic in topics}
    replica_lag = ReplicaLag(
        admin.connections,
        clock_ms=lambda: time.monotonic_ns() // 1_000_000,
        is_included=names.__contains__,
    )
    reports = (await replica_lag.measure(topics)).offline
    waiting = [
        (topic.name, partition.number)
        for topic in topics
        for partition in topic.partitions
        if partition.leader is None and _damage(reports, topic.name, partition)
    ]
    if not waiting:
        return {"elected": []}, "No partition waits for a damaged replica.\n"
    refused = await admin.elect_unclean(waiting)
    after = {
        (topic.name, partition.number): partition
        for topic in await admin.topics()
        for partition in topic.partitions
    }
    rows = [_row(key, after.get(key), reports, refused.get(key)) for key in waiting]
    return {"elected": rows}, "".join(f"{row['text']}\n" for row in rows)


def _damage(reports: Reports, topic: str, partition: Partition) -> dict[int, OfflineSeen]:
    return {
        broker: report
        for broker in partition.replicas
        if (report := reports.get((topic, partition.number, broker))) and report.is_damaged
    }


def _row(
    key: tuple[str, int], partition: Partition | None, reports: Reports, refusal: str | None
) -> dict[str, Any]:
    name = f"{key[0]}-{key[1]}"
    leader = None if partition is None else partition.leader
    damage = {} if partition is None else _damage(reports, key[0], partition)
    committed = max((report.high_watermark for report in damage.values()), default=0)
    report = None if leader is None else damage.get(leader)
    if refusal is not None or leader is None:
        text = f"{name}: no leader: {refusal or 'its leader is changing'}"
    elif report is None:
        text = (
            f"{name}: broker {leader} leads, out of sync but intact; what it lacks up to offset "
            f"{committed} is lost"
        )
    elif report.end < committed:
        text = (
            f"{name}: broker {leader} leads; LOST offsets {report.end} to {committed - 1}; "
            f"{offline_text(report)}"
        )
    else:
        text = f"{name}: broker {leader} leads; its log reaches the high watermark {committed}"
    return {
        "topic": key[0],
        "partition": key[1],
        "leader": leader,
        "log_end_offset": None if report is None else report.end,
        "high_watermark": committed,
        "error": refusal,
        "text": text,
    }
