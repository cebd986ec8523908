"""What the kernel says about a process: the processor time it took, the memory it holds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from insync.rules.refusals import Refusal

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KIBIBYTE = 1024
MEGABYTE = 1_000_000
GIGABYTE = 1_000_000_000


def cpu_ticks(stat: str) -> int:
    """User and system time in a `/proc/<pid>/stat` line, of every thread."""
    # The second field is the program's name in brackets, and may hold blanks and brackets.
    fields = stat[stat.rindex(")") + 1 :].split()
    user, system = fields[11], fields[12]  # fields 14 and 15, counted from 1 over the whole line
    return int(user) + int(system)


def resident_bytes(status: str) -> int:
    """`VmRSS` in the text of `/proc/<pid>/status`: what `ps` shows as RSS."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIBIBYTE
    raise ValueError("a process without memory: it has ended")


class HasEnded(Refusal):
    """What was to be measured is not there any more."""


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds that these processes have taken since they began."""
    try:
        ticks = sum(cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) for pid in pids)
    except OSError:
        raise HasEnded("a process that is measured has ended") from None
    return ticks / TICKS_PER_S


def memory_mb(pids: Iterable[int]) -> float:
    """Resident memory per process, in MB of a million bytes."""
    each = [resident_bytes(Path(f"/proc/{pid}/status").read_text()) for pid in pids]
    return sum(each) / len(each) / MEGABYTE
