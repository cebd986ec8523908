"""Leader epochs: which leader wrote what, and where a follower must truncate its log.

Each leader stamps its records with its epoch, and each replica remembers where every epoch began
in its log. Two logs that hold the same epoch hold the same records of it up to the shorter end,
because one leader wrote them. So instead of trusting a watermark, a follower asks the leader
where an epoch ended *there* and removes what it has beyond (KIP-101). If the leader does not know
the follower's latest epoch it answers with an older one, and if the follower in turn does not
know that one, it truncates to what it does know and asks again (KIP-279): each round goes down at
least one epoch, so it ends, at the very record where the two logs part.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

from insync.rules.values import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class EpochStart:
    epoch: LeaderEpoch
    start: Offset


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where an epoch ends in some log: the start of the next one, or the log's end."""

    epoch: LeaderEpoch
    end: Offset


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of one log, oldest first; epochs and starts both strictly grow."""

    entries: tuple[EpochStart, ...] = ()

    @property
    def latest(self) -> LeaderEpoch | None:
        return self.entries[-1].epoch if self.entries else None

    def assign(self, epoch: LeaderEpoch, start: Offset) -> EpochHistory:
        """Records from `start` on are of `epoch`. Saying the same again changes nothing.

        An epoch that wrote nothing leaves no entry once its successor starts at the same offset,
        and no entry of a truncated log survives past its end.
        """
        latest = self.latest
        if latest is not None and epoch == latest:
            return self
        assert latest is None or epoch > latest, "epochs only grow"
        kept = tuple(entry for entry in self.entries if entry.start < start)
        return EpochHistory((*kept, EpochStart(epoch, start)))

    def epoch_at(self, offset: Offset) -> LeaderEpoch | None:
        """The epoch of the record at `offset`; None if it lies before all that is known."""
        index = bisect_right(self.entries, offset, key=attrgetter("start"))
        return self.entries[index - 1].epoch if index else None

    def end_of(self, epoch: LeaderEpoch, *, log_end: Offset) -> EpochEnd | None:
        """Where `epoch`, or the closest one before it that this log knows, ends here.

        None for an epoch newer than any known: this log cannot say. One older than all known ends
        where the oldest begins.
        """
        if self.latest is None or epoch > self.latest:
            return None
        index = bisect_right(self.entries, epoch, key=attrgetter("epoch"))
        end = self.entries[index].start if index < len(self.entries) else log_end
        return EpochEnd(self.entries[index - 1].epoch if index else epoch, end)

    def truncate_end(self, log_end: Offset) -> EpochHistory:
        """The history of this log truncated to `log_end`."""
        return EpochHistory(tuple(entry for entry in self.entries if entry.start < log_end))

    def truncate_start(self, log_start: Offset) -> EpochHistory:
        """The history once everything below `log_start` was deleted by retention."""
        index = bisect_right(self.entries, log_start, key=attrgetter("start"))
        if index == 0:
            return self
        oldest = EpochStart(self.entries[index - 1].epoch, log_start)
        return EpochHistory((oldest, *self.entries[index:]))


def divergence(
    leader: EpochHistory,
    *,
    leader_log_end: Offset,
    fetch_offset: Offset,
    last_fetched_epoch: LeaderEpoch,
) -> EpochEnd | None:
    """What the leader answers instead of records when the follower's log parted from its own.

    None: the follower's log is a prefix of the leader's, so its fetch may be served. The caller
    has checked that `last_fetched_epoch` is no newer than the leader's own.
    """
    known = leader.end_of(last_fetched_epoch, log_end=leader_log_end)
    assert known is not None, "a follower ahead of its leader's epoch is refused before this"
    if known.epoch < last_fetched_epoch or known.end < fetch_offset:
        return known
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    to: Offset
    is_final: bool  # False: truncate, then ask again about the epoch that is now the latest


def truncation(
    follower: EpochHistory, *, log_end: Offset, high_watermark: Offset, leader_says: EpochEnd | None
) -> Truncation:
    """The offset at which a follower truncates, from the end offset of an epoch on its leader.

    A leader that cannot say (it lost its history) leaves only the watermark to go by.
    """
    if leader_says is None:
        return Truncation(to=min(high_watermark, log_end), is_final=True)
    own = follower.end_of(leader_says.epoch, log_end=log_end)
    if own is None:
        return Truncation(to=min(leader_says.end, log_end), is_final=True)
    to = Offset(min(leader_says.end, own.end, log_end))
    return Truncation(to=to, is_final=own.epoch == leader_says.epoch)
