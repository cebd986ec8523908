"""Every figure, the trial that yields it, and its target."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from bench.ratios import AtLeast, AtMost, JustShown, RatioAtLeast, RatioAtMost, Reach, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    key: str
    trial: str
    title: str
    unit: str
    reach: Reach
    summary: Summary  # of all that was seen in all pairs


def _of(
    trial: str, key: str, title: str, unit: str, reach: Reach, *, summary: Summary = median
) -> Figure:
    return Figure(key=key, trial=trial, title=title, unit=unit, reach=reach, summary=summary)


def _size_figures(size: str, title: str, *, has_restart: bool) -> tuple[Figure, ...]:
    """What many partitions cost: only shown, except what must not grow with them."""
    shown = [
        ("create", "until all are served", "s"),
        ("memory", "  memory per partition and broker", "KiB"),
        ("cpu-idle", "  CPU of all, idle", "% core"),
        ("metadata", "  Metadata of one topic, p50", "ms"),
        ("metadata-all", "  Metadata of all topics", "ms"),
        ("describe", "  describe all topics", "ms"),
        ("busy-cpu", "  one is busy: CPU of all per message", "ms"),
        ("busy-p50", "    latency, p50", "ms"),
        ("busy-p99", "    latency, p99", "ms"),
    ]
    if has_restart:
        shown += [("stop", "  clean stop", "s"), ("start", "  start until all are served", "s")]
        shown += [("delete", "  delete all", "s")]
    else:
        shown += [
            ("replicas", "  insync replicas", "s"),
            ("failover", "  all led elsewhere after kill -9", "s"),
        ]
    return tuple(
        _of(
            "size",
            f"size-{size}-{key}",
            f"{title}, {name}" if key == "create" else name,
            unit,
            JustShown(),
        )
        for key, name, unit in shown
    )


FIGURES = (
    _of("idle", "start", "three brokers serving after start", "s", AtMost(1, "s")),
    _of("idle", "memory-idle", "memory per broker, idle", "MB", AtMost(80, "MB")),
    _of("idle", "memory-1000", "memory per broker, 1000 partitions", "MB", AtMost(150, "MB")),
    _of("idle", "cpu-idle-1000", "CPU of all, 1000 partitions, idle", "% core", AtMost(5, "%")),
    _of("produce", "produce", "produce, 1 KiB", "MB/s", RatioAtLeast(1.2)),
    _of("produce", "produce-cpu", "  CPU of all brokers", "s/GB", RatioAtMost(0.5)),
    _of("produce", "consume", "consume, 1 KiB", "MB/s", RatioAtLeast(1)),
    _of("produce", "consume-cpu", "  CPU of all brokers", "s/GB", RatioAtMost(1)),
    _of("small-batches", "small-batches", "produce, batches of 16 kB", "MB/s", RatioAtLeast(2)),
    _of("small-messages", "small-messages", "produce, 100 B", "k/s", RatioAtLeast(1.1)),
    _of("small-messages", "small-messages-cpu", "  CPU of all brokers", "s/GB", RatioAtMost(0.5)),
    _of("catch-up", "catch-up", "catch-up of 1 GB, from process start", "s", RatioAtMost(0.5)),
    _of("latency", "latency-p50", "latency at 1 MB/s, p50", "ms", JustShown()),
    _of("latency", "latency-p99", "latency at 1 MB/s, p99", "ms", RatioAtMost(0.2)),
    _of("failover", "failover", "next answer after kill -9 of the leader", "s", AtMost(1, "s")),
    _of(
        "eviction",
        "eviction-min",
        "stopped follower out, least",
        "limits",
        JustShown(),
        summary=min,
    ),
    _of("eviction", "eviction", "stopped follower out, median", "limits", AtMost(1.05, "limits")),
    _of(
        "eviction", "eviction-max", "stopped follower out, most", "limits", JustShown(), summary=max
    ),
    _of(
        "throttle", "throttle-mean", "throttled move, mean rate", "quotas", AtLeast(0.95, "quotas")
    ),
    _of("throttle", "throttle-1s", "  worst second", "quotas", JustShown()),
    _of("throttle", "throttle-10s", "  worst 10 s", "quotas", AtMost(1.06, "quotas")),
    _of("throttle", "throttle-time", "  time taken", "ideal", AtMost(1.15, "ideal")),
    *(
        _of("impact", f"impact-{phase}-{key}", f"{title}, {words}", unit, JustShown())
        for phase, words in (
            ("none", "no move"),
            ("throttled", "throttled move"),
            ("unthrottled", "unthrottled move"),
            ("many", "throttled, 100 partitions"),
        )
        for key, title, unit in (
            ("produce", "produce", "MB/s"),
            ("p50", "  latency p50", "ms"),
            ("p99", "  latency p99", "ms"),
            ("lag", "  consumer lag p99", "ms"),
        )
    ),
    _of("impact", "impact-quota", "throttle that --max-impact says", "MB/s", JustShown()),
    _of("impact", "impact-many-quota", "  the same, 100 partitions", "MB/s", JustShown()),
    _of("impact", "impact-asked", "  produce lost, at most, as asked", "%", JustShown()),
    _of("impact", "impact-throttled-loss", "  produce lost, throttled move", "%", AtMost(30, "%")),
    _of("impact", "impact-many-loss", "  the same, 100 partitions", "%", AtMost(30, "%")),
    _of("impact", "impact-unthrottled-loss", "  produce lost, unthrottled move", "%", JustShown()),
    _of(
        "unthrottled",
        "unthrottled-cpu",
        "produce, CPU of all, no throttle",
        "s/GB",
        RatioAtMost(1.02),
    ),
    _of(
        "telemetry", "telemetry-cpu", "produce, CPU of all, telemetry on", "s/GB", RatioAtMost(1.05)
    ),
    _of("trees", "trees-cpu", "produce, CPU of all, TREE_A", "s/GB", JustShown()),
    *_size_figures("100", "1 broker, 100 partitions", has_restart=True),
    *_size_figures("1000", "1 broker, 1 000 partitions", has_restart=True),
    *_size_figures("10000", "1 broker, 10 000 partitions", has_restart=True),
    *_size_figures("3x", "3 brokers, 5 000 each", has_restart=False),
    _of("what-if", "what-if", "what-if, 20 M fetches, warm", "M/s", RatioAtLeast(5)),
    _of(
        "what-if",
        "what-if-cold",
        "  from process start to end, compiled before",
        "M/s",
        RatioAtLeast(0.5),
    ),
    _of("what-if", "what-if-40", "  40 scenarios", "x one", AtMost(4, "x")),
    _of("what-if", "what-if-crowd", "  over 100 000 replicas", "x 1000", AtMost(2, "x")),
    _of("what-if", "what-if-frames", "  from DataFrames", "s", AtMost(10, "s")),
    _of("what-if-large", "what-if-large", "what-if, 100 M fetches, warm", "M/s", RatioAtLeast(8)),
    _of(
        "what-if-large",
        "what-if-large-cold",
        "  from process start to end, compiled before",
        "M/s",
        RatioAtLeast(2),
    ),
    _of("what-if-large", "what-if-large-memory", "  memory, everything", "GB", AtMost(4, "GB")),
    _of("what-if-large", "what-if-double", "  as against 50 M", "x", AtMost(2.1, "x")),
)
