"""Memory that is there before something is measured.

A virtual machine's host hands out memory when a page is first touched, and takes back what has been
free for some seconds. A broker that writes to a page which the host has yet to find pays for that:
seen here, 1.4 to 3 s of its processor time for each GB, against 0.25 s where the page is there. It
is more than all that a broker does with the bytes, it changes from minute to minute, and it is the
host's. So whatever is about to be used is touched and let go just before; what was freed last is
handed out first.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from bench.processes import KIBIBYTE

HUGE_PAGE: Final = 2 << 20


def back(size_bytes: float) -> None:
    """Touch this much memory, though never more than half of what is free."""
    size = min(int(size_bytes), available_bytes() // 2) // HUGE_PAGE * HUGE_PAGE
    if size <= 0:
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIBIBYTE
    return 0
