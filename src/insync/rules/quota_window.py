"""KIP-73's sampled window: the rate a broker reports, and whether it exceeds its quota.

The arithmetic is Apache Kafka's, sample by sample, so that a dashboard reads the same on both:

- rate = sum of the samples / max(now - start of the oldest sample, one sample's length).
- A sample is complete once it is as old as its length; the next begins at the next *record*, not
  on a grid.
- A sample whose last record is a whole window old is emptied and starts over now.
- There is one more sample than configured, for the one that overlaps the window's edge.
- The first measurement or record, whichever comes first, starts the first sample.

Admission does not use this: one response may overshoot it by its whole size. See
`quota_bucket.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from insync.rules.refusals import BadSetting

SAMPLES_DEFAULT = 11  # replication.quota.window.num
SAMPLE_MS_DEFAULT = 1_000  # replication.quota.window.size.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    started_at_ms: int
    last_at_ms: int
    bytes_sum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindow:
    """Bytes recorded lately; the newest sample is the last."""

    samples_max: int = SAMPLES_DEFAULT
    sample_ms: int = SAMPLE_MS_DEFAULT
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        if self.samples_max < 1:
            raise BadSetting(
                f"replication.quota.window.num is {self.samples_max}; it must be at least 1"
            )
        if self.sample_ms < 1:
            raise BadSetting("replication.quota.window.size.seconds must be at least 1")

    def record(self, size_bytes: int, *, now_ms: int) -> QuotaWindow:
        samples = self.samples or (_empty(now_ms),)
        newest = samples[-1]
        if now_ms - newest.started_at_ms >= self.sample_ms:
            samples = (*samples[-self.samples_max :], _empty(now_ms))
            newest = samples[-1]
        grown = replace(newest, last_at_ms=now_ms, bytes_sum=newest.bytes_sum + size_bytes)
        return replace(self, samples=(*samples[:-1], grown))

    def measured(self, *, now_ms: int) -> QuotaWindow:
        """The window as a measurement leaves it: started if it was not, and aged."""
        samples = self.samples or (_empty(now_ms),)
        window_ms = self.samples_max * self.sample_ms
        aged = tuple(
            _empty(now_ms) if now_ms - sample.last_at_ms >= window_ms else sample
            for sample in samples
        )
        return self if aged == self.samples else replace(self, samples=aged)

    def exceeds(self, bytes_per_s: int, *, now_ms: int) -> bool:
        """Exact: compared without dividing. Keep `measured()` too, as Kafka's measuring does."""
        bytes_sum, span_ms = self._sum_and_span_ms(now_ms)
        return bytes_sum * 1_000 > bytes_per_s * span_ms

    def bytes_per_s(self, *, now_ms: int) -> float:
        bytes_sum, span_ms = self._sum_and_span_ms(now_ms)
        return bytes_sum * 1_000 / span_ms

    def _sum_and_span_ms(self, now_ms: int) -> tuple[int, int]:
        samples = self.measured(now_ms=now_ms).samples
        bytes_sum = sum(sample.bytes_sum for sample in samples)
        oldest_at_ms = min(sample.started_at_ms for sample in samples)
        return bytes_sum, max(now_ms - oldest_at_ms, self.sample_ms)


def _empty(now_ms: int) -> Sample:
    return Sample(started_at_ms=now_ms, last_at_ms=now_ms)
