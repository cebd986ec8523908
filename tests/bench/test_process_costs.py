from __future__ import annotations

import os
import time

import pytest

from bench.processes import cpu_s, cpu_ticks, memory_mb, resident_bytes

# proc(5): 14 is utime and 15 stime, in ticks; 16 and 17 are those of children it waited for.
STAT = "42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 310 25 9000 8000 20 0 7 0 1000 4096 77"
STATUS = "Name:\tjava\nVmPeak:\t  900 kB\nVmRSS:\t  2500 kB\nRssAnon:\t  1 kB\n"


def test_a_name_with_blanks_and_brackets_does_not_shift_the_fields() -> None:
    assert cpu_ticks(STAT) == 310 + 25


def test_resident_memory() -> None:
    assert resident_bytes(STATUS) == 2_500 * 1_024
    with pytest.raises(ValueError, match="it has ended"):
        resident_bytes("Name:\tzombie\n")


def test_the_measured_costs_of_this_process_agree_with_python() -> None:
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    assert cpu_s([os.getpid()]) == pytest.approx(time.process_time(), abs=0.05)
    once = memory_mb([os.getpid()])
    assert 5 < once < 5_000
    assert memory_mb([os.getpid()] * 3) == pytest.approx(once, rel=0.05), "per process, not a sum"
