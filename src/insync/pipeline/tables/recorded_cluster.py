"""The cluster as it was at the end of a record: replicas, sizes and rates of partitions, brokers.

- A partition's replicas are those of its last assignment; deleted topics are left out. Bytes of an
  earlier topic of the same name do not count.
- **Its size** is not recorded. It is estimated: the offsets from the log start, which retention
  moves, to the log end, times the mean bytes per offset of its recorded appends, or of its topic's
  where it has none. A compacted log is smaller.
- **A broker is unfit** for more replicas if the record's last rows with it are older than the lag
  limit, and than `SILENT_MS`, or if a replica of it was out of sync at the end: it may be down,
  frozen or slow. Of a broker that has no replicas the record does not say whether it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from insync.pipeline.local.dispatch import F
from insync.pipeline.tables.assignments import TOPIC_PARTITION
from insync.pipeline.words import duration
from insync.rules.move_plan import TopicPartition
from insync.rules.settings import InSyncSettings
from insync.rules.values import BrokerId, PartitionId

SILENT_MS: Final = 10_000  # brokers publish every 2 s: the ends of their rows differ
LAG_LIMIT: Final = "replica.lag.time.max.ms"
RACK: Final = "broker.rack"
_SCOPE: Final = "broker:"
_LATEST: Final = ("leader_epoch", "version", "at_ms")
_CREATED: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("created_ms", LongType()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPartition:
    replicas: tuple[BrokerId, ...]
    leader: BrokerId
    is_moving: bool
    out_of_sync: tuple[BrokerId, ...]
    bytes_written: int
    size_bytes: int | None  # None: nothing of it or of its topic was appended


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCluster:
    partitions: Mapping[TopicPartition, RecordedPartition]
    unfit: Mapping[BrokerId, str]  # why it gets no replicas
    racks: Mapping[BrokerId, str]
    brokers: Sequence[BrokerId]  # with replicas
    unused: Sequence[BrokerId] = ()  # without

    @property
    def replication_factor_max(self) -> int:
        return max(len(each.replicas) for each in self.partitions.values())

    def log_bytes_per_broker(self) -> int:
        """KIP-73's TotalLogSizePerBroker: the mean."""
        every = sum((one.size_bytes or 0) * len(one.replicas) for one in self.partitions.values())
        return every // len(self.brokers)


def recorded_cluster(
    fetches: DataFrame,
    appends: DataFrame,
    assigned: LastAssignments,
    isr: DataFrame,
    configs: DataFrame,
) -> RecordedCluster:
    """Of telemetry tables. What is collected are a few rows per replica: they fit in a process."""
    fetched = _fetched(assigned.of_last_creation(fetches))
    facts = _merged(
        assigned.rows, fetched, _written(assigned.of_last_creation(appends)),
        _in_sync(assigned.of_last_creation(isr)),
    )  # fmt: skip
    partitions = _with_sizes([row for row in facts if row["replicas"]])
    settings = _latest_settings(configs)
    limits = [int(value) for _, value in _named(settings, LAG_LIMIT) if value.isdecimal()]
    silent_ms = max([SILENT_MS, *(limits or [InSyncSettings().replica_lag_time_max_ms])])
    silences = _silences(facts)
    held = {each for one in partitions.values() for each in one.replicas}
    unfit = {
        broker: f"silent for the last {duration(silences[broker])} of the record"
        if broker in silences
        else "not in the record"
        for broker in sorted(held)
        if silences.get(broker, silent_ms + 1) > silent_ms
    }
    out_of_sync = {each for one in partitions.values() for each in one.out_of_sync}
    late = dict.fromkeys(sorted(out_of_sync - set(unfit)), "out of sync at the end of the record")
    known = held | {broker for broker, _, _ in settings}
    return RecordedCluster(
        partitions=partitions,
        unfit=unfit | late,
        racks={broker: value for broker, value in _named(settings, RACK) if value},
        brokers=sorted(held),
        unused=sorted(known - held),
    )


class LastAssignments:
    """The last assignment of each partition, and when its topic was created, if more than once."""

    def __init__(self, assignments: DataFrame) -> None:
        now = F.struct("replicas", "adding", "removing", "leader")
        creations = (
            assignments.groupBy(*TOPIC_PARTITION, "topic_id")
            .agg(F.max_by(now, F.struct(*_LATEST)).alias("now"), F.min("at_ms").alias("created_ms"))
            .select(*TOPIC_PARTITION, "created_ms", "now.*")
            .collect()
        )
        self._spark = assignments.sparkSession
        self.rows: dict[TopicPartition, dict[str, Any]] = {}
        self._created: dict[TopicPartition, int] = {}
        for row in sorted(creations, key=lambda row: row["created_ms"]):
            key = row["topic"], PartitionId(row["partition"])
            if key in self.rows:
                self._created[key] = row["created_ms"]
            self.rows[key] = row.asDict()

    def of_last_creation(self, rows: DataFrame) -> DataFrame:
        """Without rows of earlier topics of the same names."""
        if not self._created:
            return rows
        created = self._spark.createDataFrame(
            [(*key, at_ms) for key, at_ms in self._created.items()],
            _CREATED,
        )
        return (
            rows.join(F.broadcast(created), list(TOPIC_PARTITION), "left")
            .where("at_ms >= coalesce(created_ms, at_ms)")
            .drop("created_ms")
        )


def _written(appends: DataFrame) -> list[Row]:
    return (
        appends.groupBy(*TOPIC_PARTITION)
        .agg(
            F.sum("bytes").alias("bytes"),
            F.sum(F.col("end_offset") - F.col("base_offset")).alias("offsets"),
            F.max("end_offset").alias("end_offset"),
            F.max(F.struct("at_ms", "leader")).alias("appended"),
        )
        .collect()
    )


def _fetched(fetches: DataFrame) -> list[Row]:
    by_follower = fetches.groupBy(*TOPIC_PARTITION, "leader", "follower").agg(
        F.max("log_start").alias("log_start"), F.max("last_at_ms").alias("at_ms")
    )
    return (
        by_follower.groupBy(*TOPIC_PARTITION)
        .agg(
            F.max("log_start").alias("log_start"),
            F.collect_list(F.struct("leader", "follower", "at_ms")).alias("fetched"),
        )
        .collect()
    )


def _in_sync(isr: DataFrame) -> list[Row]:
    latest = F.max_by("isr_after", F.struct(*_LATEST)).alias("isr")
    return isr.groupBy(*TOPIC_PARTITION).agg(latest).collect()


_UNKNOWN: Final = (
    "replicas", "bytes", "offsets", "end_offset", "appended", "log_start", "fetched", "isr",
)  # fmt: skip


def _merged(
    assigned: Mapping[TopicPartition, Mapping[str, Any]], *others: Sequence[Row]
) -> list[dict[str, Any]]:
    """A row of facts per partition; what is not known of it is None."""
    facts = {key: dict.fromkeys(_UNKNOWN) | dict(row) for key, row in assigned.items()}
    for rows in others:
        for row in rows:
            key = row["topic"], PartitionId(row["partition"])
            facts.setdefault(key, dict.fromkeys(_UNKNOWN)).update(row.asDict())
    return [facts[key] for key in sorted(facts)]


def _silences(facts: Sequence[Mapping[str, Any]]) -> dict[BrokerId, int]:
    """For how long before the record's end no row is of a broker, as leader or as follower."""
    last: dict[BrokerId, int] = {}
    for row in facts:
        for each in row["fetched"] or ():
            for broker in (each["leader"], each["follower"]):
                last[broker] = max(last.get(broker, 0), each["at_ms"])
        if row["appended"] is not None:
            leader = row["appended"]["leader"]
            last[leader] = max(last.get(leader, 0), row["appended"]["at_ms"])
    end_ms = max(last.values(), default=0)
    return {broker: end_ms - at_ms for broker, at_ms in last.items()}


def _with_sizes(rows: Sequence[Mapping[str, Any]]) -> dict[TopicPartition, RecordedPartition]:
    of_topics: dict[str, tuple[int, int]] = {}
    for row in rows:
        size, offsets = of_topics.get(row["topic"], (0, 0))
        of_topics[row["topic"]] = size + (row["bytes"] or 0), offsets + (row["offsets"] or 0)
    return {
        (row["topic"], PartitionId(row["partition"])): _partition(row, of_topics[row["topic"]])
        for row in rows
    }


def _partition(row: Mapping[str, Any], of_topic: tuple[int, int]) -> RecordedPartition:
    size, offsets = (row["bytes"], row["offsets"]) if row["offsets"] else of_topic
    kept = None if row["end_offset"] is None else row["end_offset"] - (row["log_start"] or 0)
    adding, removing = row["adding"] or (), row["removing"] or ()
    isr = row["isr"]
    stays = [each for each in row["replicas"] if each not in adding]
    return RecordedPartition(
        replicas=tuple(map(BrokerId, row["replicas"])),
        leader=BrokerId(row["leader"]),
        is_moving=bool(adding or removing),
        out_of_sync=() if isr is None else tuple(BrokerId(b) for b in stays if b not in isr),
        bytes_written=row["bytes"] or 0,
        size_bytes=None if kept is None or not offsets else max(0, kept) * size // offsets,
    )


Setting = tuple[BrokerId, str, str]


def _latest_settings(configs: DataFrame) -> list[Setting]:
    rows = (
        configs.where(F.col("name").isin(LAG_LIMIT, RACK))
        .groupBy("scope", "name")
        .agg(F.max_by("value", "at_ms").alias("value"))
        .collect()
    )
    return [
        (BrokerId(int(number)), row["name"], row["value"] or "")
        for row in rows
        if (number := row["scope"].removeprefix(_SCOPE)).isdecimal()
    ]


def _named(settings: Sequence[Setting], name: str) -> list[tuple[BrokerId, str]]:
    return [(broker, value) for broker, each, value in settings if each == name]
