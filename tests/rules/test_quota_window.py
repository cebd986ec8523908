"""KIP-73's window against Kafka's own numbers, and against a mutable ring like Kafka's."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.quota_window import QuotaWindow
from insync.rules.refusals import BadSetting

QUOTA = 100  # bytes per second, in the reference of kafka-facts section 3


def kafkas_window() -> QuotaWindow:
    """10 x 1 s, checked once at 0: where ReplicationQuotaManagerTest begins."""
    return QuotaWindow(samples_max=10).measured(now_ms=0)


def at_2500_ms_with_251_bytes() -> QuotaWindow:
    return kafkas_window().record(151, now_ms=1_500).record(100, now_ms=2_500)


# --- kafka-facts section 3: the reference numbers of ReplicationQuotaManagerTest ---


def test_a_fresh_window_does_not_exceed() -> None:
    assert not kafkas_window().exceeds(QUOTA, now_ms=0)


def test_150_bytes_by_1500_ms_are_exactly_the_quota() -> None:
    one_byte = kafkas_window().record(1, now_ms=1_500)
    assert not one_byte.exceeds(QUOTA, now_ms=1_500)
    at_quota = one_byte.record(149, now_ms=1_500)
    assert at_quota.bytes_per_s(now_ms=1_500) == 100.0
    assert not at_quota.exceeds(QUOTA, now_ms=1_500)


def test_151_bytes_by_1500_ms_exceed() -> None:
    window = kafkas_window().record(150, now_ms=1_500).record(1, now_ms=1_500)
    assert window.bytes_per_s(now_ms=1_500) == pytest.approx(100.67, abs=0.005)
    assert window.exceeds(QUOTA, now_ms=1_500)


def test_the_rate_falls_as_time_passes() -> None:
    window = kafkas_window().record(151, now_ms=1_500)
    assert window.bytes_per_s(now_ms=2_000) == 75.5
    assert not window.exceeds(QUOTA, now_ms=2_000)


def test_250_bytes_by_2500_ms_are_exactly_the_quota_and_251_exceed() -> None:
    at_quota = kafkas_window().record(151, now_ms=1_500).record(99, now_ms=2_500)
    assert at_quota.bytes_per_s(now_ms=2_500) == 100.0
    assert not at_quota.exceeds(QUOTA, now_ms=2_500)
    assert at_quota.record(1, now_ms=2_500).exceeds(QUOTA, now_ms=2_500)


def test_two_seconds_later_it_is_back_below() -> None:
    window = at_2500_ms_with_251_bytes()
    assert window.bytes_per_s(now_ms=4_500) == pytest.approx(55.8, abs=0.05)
    assert not window.exceeds(QUOTA, now_ms=4_500)


# --- kafka-facts section 3: the arithmetic, rule by rule ---


@pytest.mark.parametrize("now_ms", [0, 1, 999, 1_000])
def test_the_first_second_divides_by_a_full_second(now_ms: int) -> None:
    assert QuotaWindow().record(70, now_ms=0).bytes_per_s(now_ms=now_ms) == 70.0


def test_after_the_first_second_it_divides_by_elapsed_time_not_by_the_window() -> None:
    assert QuotaWindow().record(70, now_ms=0).bytes_per_s(now_ms=2_000) == 35.0


def test_a_measurement_before_any_record_starts_the_first_sample() -> None:
    unmeasured = QuotaWindow().record(150, now_ms=1_500)
    assert unmeasured.bytes_per_s(now_ms=1_500) == 150.0
    measured = QuotaWindow().measured(now_ms=0).record(150, now_ms=1_500)
    assert measured.bytes_per_s(now_ms=1_500) == 100.0


def test_a_sample_begins_at_the_next_record_and_not_on_a_grid() -> None:
    """Once the first has aged out, 85 B are divided by the 8.5 s since they began, not by 9 s."""
    window = QuotaWindow(samples_max=10).record(100, now_ms=0).record(85, now_ms=1_500)
    assert window.bytes_per_s(now_ms=10_000) == 10.0


def test_a_sample_is_complete_exactly_when_as_old_as_its_length() -> None:
    """Records at 0 and 999 share a sample, so both outlive the whole window after the first."""
    shared = QuotaWindow(samples_max=2).record(10, now_ms=0).record(10, now_ms=999)
    assert shared.bytes_per_s(now_ms=2_500) == 8.0
    split = QuotaWindow(samples_max=2).record(10, now_ms=0).record(10, now_ms=1_000)
    assert split.bytes_per_s(now_ms=2_500) == pytest.approx(10 / 1.5)


def test_a_sample_is_emptied_when_its_last_record_is_a_whole_window_old() -> None:
    window = QuotaWindow().record(110, now_ms=0)
    assert window.bytes_per_s(now_ms=10_999) == pytest.approx(110 / 10.999)
    assert window.bytes_per_s(now_ms=11_000) == 0.0


def test_an_emptied_sample_starts_over_at_the_measurement() -> None:
    window = QuotaWindow().record(110, now_ms=0).measured(now_ms=20_000)
    assert window.record(60, now_ms=20_500).bytes_per_s(now_ms=22_000) == 30.0


def test_one_sample_more_than_configured_overlaps_the_window() -> None:
    """Three slots for a window of two: the denominator exceeds 2 s, and the fourth replaces."""
    window = QuotaWindow(samples_max=2)
    for now_ms in (0, 900, 1_000, 1_900, 2_000, 2_800):
        window = window.record(10, now_ms=now_ms)
    assert window.bytes_per_s(now_ms=2_800) == pytest.approx(60 / 2.8)
    assert window.record(10, now_ms=3_000).bytes_per_s(now_ms=3_000) == 50 / 2.0


def test_measuring_a_live_window_changes_nothing() -> None:
    window = QuotaWindow().record(5, now_ms=0)
    assert window.measured(now_ms=500) is window


def test_defaults_are_kip_73s_eleven_samples_of_one_second() -> None:
    assert (QuotaWindow().samples_max, QuotaWindow().sample_ms) == (11, 1_000)


def test_a_window_without_samples_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"replication\.quota\.window\.num is 0; .* at least 1"):
        QuotaWindow(samples_max=0)


def test_a_sample_without_length_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"replication\.quota\.window\.size\.seconds .* at least"):
        QuotaWindow(sample_ms=0)


# --- against an oracle ---


@dataclass
class RingSample:
    started_at_ms: int
    last_at_ms: int
    bytes_sum: int = 0

    def reset(self, now_ms: int) -> None:
        self.started_at_ms = self.last_at_ms = now_ms
        self.bytes_sum = 0


@dataclass
class Ring:
    """Kafka's SampledStat under a SimpleRate: mutable slots reused in turn (kafka-facts 3)."""

    samples: int
    sample_ms: int
    slots: list[RingSample] = field(default_factory=list)
    index: int = 0

    def record(self, size_bytes: int, now_ms: int) -> None:
        slot = self._current(now_ms)
        if now_ms - slot.started_at_ms >= self.sample_ms:
            slot = self._advance(now_ms)
        slot.bytes_sum += size_bytes
        slot.last_at_ms = now_ms

    def measure(self, now_ms: int) -> tuple[int, int]:
        """Bytes, and the milliseconds they are divided by."""
        self._current(now_ms)
        for slot in self.slots:
            if now_ms - slot.last_at_ms >= self.samples * self.sample_ms:
                slot.reset(now_ms)
        elapsed_ms = now_ms - min(slot.started_at_ms for slot in self.slots)
        return sum(slot.bytes_sum for slot in self.slots), max(elapsed_ms, self.sample_ms)

    def _current(self, now_ms: int) -> RingSample:
        if not self.slots:
            self.slots.append(RingSample(now_ms, now_ms))
        return self.slots[self.index]

    def _advance(self, now_ms: int) -> RingSample:
        self.index = (self.index + 1) % (self.samples + 1)
        if self.index == len(self.slots):
            self.slots.append(RingSample(now_ms, now_ms))
        self.slots[self.index].reset(now_ms)
        return self.slots[self.index]


MEASURE = None


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int | None]]]:
    """A window, and records and measurements with gaps around its own lengths."""
    samples, sample_ms = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    window_ms = samples * sample_ms
    edges_ms = [0, 1, sample_ms - 1, sample_ms, sample_ms + 1, window_ms - 1, window_ms]
    gaps_ms = st.sampled_from(edges_ms) | st.integers(0, sample_ms)
    sizes = st.just(MEASURE) | st.integers(0, 1_000)
    return samples, sample_ms, draw(st.lists(st.tuples(gaps_ms, sizes), min_size=10, max_size=60))


@pytest.mark.property
@given(history=histories())
def test_the_window_agrees_with_kafkas_ring_at_every_measurement(
    history: tuple[int, int, list[tuple[int, int | None]]],
) -> None:
    samples, sample_ms, steps = history
    window, ring = QuotaWindow(samples_max=samples, sample_ms=sample_ms), Ring(samples, sample_ms)
    now_ms = 0
    for gap_ms, size_bytes in [*steps, (0, MEASURE)]:
        now_ms += gap_ms
        if size_bytes is not MEASURE:
            window = window.record(size_bytes, now_ms=now_ms)
            ring.record(size_bytes, now_ms)
            continue
        bytes_sum, span_ms = ring.measure(now_ms)
        assert window.bytes_per_s(now_ms=now_ms) == bytes_sum * 1_000 / span_ms
        just_under = bytes_sum * 1_000 // span_ms
        is_whole = bytes_sum * 1_000 % span_ms == 0
        assert window.exceeds(just_under, now_ms=now_ms) is not is_whole
        assert not window.exceeds(just_under + 1, now_ms=now_ms)
        window = window.measured(now_ms=now_ms)
