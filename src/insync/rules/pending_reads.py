"""KIP-501, solution 1: a fetch that is still being read keeps its follower in the ISR.

A slow disk under the leader used to push healthy followers out: their fetches had arrived, but
were not answered, so their state grew old. While such a fetch is *pending* its follower is not
evicted. Three limits keep this honest:

- It holds only if it asks for at least what the leader held at the follower's previous fetch of
  this epoch. The first fetch in an epoch has no previous one: that of a member of the ISR holds if
  it asks for at least the high watermark, so that a failover onto a slow disk evicts no follower.
- It blocks eviction and never admits: joining is judged without it.
- It ends with the read, with an error, with its connection and with its broker's session.

Every read is timed, holding or not, because solution 2 (`resignation.py`) asks how long the
leader has been at it. The time starts when the request is parsed: waiting for a reader thread
is the leader's slowness too. A stall of the leader itself is left out of that time, unless
`follower.fetch.process.time.include.stalls` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from insync.rules.values import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One fetch of one partition between being parsed and being answered."""

    read_id: int  # unique among this follower's reads under way
    connection: int
    offset: Offset
    parsed_at_ms: int  # stalls of the leader since then are left out: they move it forward
    began_at_ms: int  # the same with stalls counted
    holds: bool  # keeps its follower in the ISR


@dataclass(frozen=True, slots=True)
class PendingReads:
    """The reads under way for one follower of one partition, oldest first."""

    reads: tuple[Read, ...] = ()

    @property
    def hold(self) -> bool:
        return any(read.holds for read in self.reads)

    @property
    def oldest_parsed_at_ms(self) -> int | None:
        return min((read.parsed_at_ms for read in self.reads), default=None)

    @property
    def oldest_began_at_ms(self) -> int | None:
        return min((read.began_at_ms for read in self.reads), default=None)

    def begin(
        self,
        *,
        read_id: int,
        connection: int,
        offset: Offset,
        parsed_at_ms: int,
        holds_from: Offset | None,
    ) -> PendingReads:
        """`holds_from`: the offset from which on it keeps its follower in the ISR; None: none."""
        assert all(read.read_id != read_id for read in self.reads), "read id in use"
        holds = holds_from is not None and offset >= holds_from
        read = Read(
            read_id=read_id,
            connection=connection,
            offset=offset,
            parsed_at_ms=parsed_at_ms,
            began_at_ms=parsed_at_ms,
            holds=holds,
        )
        return PendingReads((*self.reads, read))

    def find(self, read_id: int) -> Read | None:
        return next((read for read in self.reads if read.read_id == read_id), None)

    def end(self, read_id: int) -> PendingReads:
        """Remove a read that was served or failed; does nothing if it is removed already."""
        return PendingReads(tuple(read for read in self.reads if read.read_id != read_id))

    def without_connection(self, connection: int) -> PendingReads:
        return PendingReads(tuple(read for read in self.reads if read.connection != connection))

    def later_by(self, shift_ms: int, *, not_after_ms: int) -> PendingReads:
        """The same reads, had they been parsed later: a stall of the leader is no slow read."""
        return PendingReads(
            tuple(
                replace(read, parsed_at_ms=min(read.parsed_at_ms + shift_ms, not_after_ms))
                for read in self.reads
            )
        )


NO_READS: Final = PendingReads()
