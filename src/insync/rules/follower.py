"""One follower as its leader sees it: the state list of KAFKA-4485 and KIP-501.

A leader knows of a follower only what its fetches say. Each fetch carries the follower's end
(its fetch offset) and is judged against the leader's end captured *just before* the read, so
that an append in the middle of a read is not held against the follower (KIP-16's subtle case).

The one clever field is `caught_up_at_ms`: the latest moment at which the follower provably held
everything the leader held at that moment.

- A fetch at the leader's end proves it for the time of that fetch.
- A fetch at or past where the leader's end was at the *previous* fetch proves it for the time of
  the previous fetch. Under steady writes a follower never asks from the very end, yet it has
  everything the leader had one fetch ago, and that is enough (KAFKA-4485's second problem).

Every policy in `policy.py` reads this one state, so several can be compared on one history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from insync.rules.pending_reads import NO_READS, PendingReads
from insync.rules.stalls import Stall
from insync.rules.values import (
    FIRST_OFFSET,
    NEVER_MS,
    UNKNOWN_INCARNATION,
    UNKNOWN_OFFSET,
    Incarnation,
    Offset,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One follower fetch, read and about to be answered."""

    offset: Offset
    leader_end: Offset  # just before the read started
    at_ms: int  # when the leader began to serve it
    served_at_ms: int  # when the read was done
    log_start: Offset = FIRST_OFFSET
    incarnation: Incarnation = UNKNOWN_INCARNATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """What one leader, in one epoch, knows of one follower."""

    log_start: Offset
    end: Offset  # the offset of its latest served fetch
    incarnation: Incarnation
    fetched_at_ms: int
    leader_end_at_fetch: Offset | None  # None: it has not fetched in this epoch
    caught_up_at_ms: int  # KAFKA-4485
    caught_up_served_at_ms: int  # KIP-501: the same proof, dated when the read was done
    served_at_ms: int
    lag_began_at_ms: int | None  # KIP-16: first fetch short of the end since the last one at it
    reads: PendingReads = NO_READS
    forgiven_ms: int = 0  # stalls of the leader taken off since its last fetch
    is_graced: bool = False  # it was in sync when the leader's latest stall began

    @classmethod
    def member(cls, *, epoch_started_at_ms: int) -> Follower:
        """An ISR member at the start of an epoch: nothing is held against it from before."""
        return cls._unheard(since_ms=epoch_started_at_ms)

    @classmethod
    def outsider(cls) -> Follower:
        """A replica that starts the epoch outside the ISR: it has everything to prove."""
        return cls._unheard(since_ms=NEVER_MS)

    @classmethod
    def _unheard(cls, *, since_ms: int) -> Follower:
        return cls(
            log_start=UNKNOWN_OFFSET,
            end=UNKNOWN_OFFSET,
            incarnation=UNKNOWN_INCARNATION,
            fetched_at_ms=since_ms,
            leader_end_at_fetch=None,
            caught_up_at_ms=since_ms,
            caught_up_served_at_ms=since_ms,
            served_at_ms=since_ms,
            lag_began_at_ms=None,
        )

    def on_fetch(self, fetch: Fetch) -> Follower:
        """A fetch took effect.

        Nothing moves a caught-up time back, except a log that itself went back (a disk was lost):
        lag is where its end is now, and what it once held says nothing about that any more.
        """
        assert fetch.served_at_ms >= fetch.at_ms, "a read cannot end before it began"
        previous_end = self.leader_end_at_fetch
        at_end = fetch.offset >= fetch.leader_end
        at_previous_end = previous_end is not None and fetch.offset >= previous_end
        proof_at_ms = fetch.at_ms if at_end else self.fetched_at_ms if at_previous_end else NEVER_MS
        served_proof_at_ms = fetch.served_at_ms if at_end or at_previous_end else NEVER_MS
        began_at_ms = self.lag_began_at_ms
        # An older fetch whose read finished late does not mean that the log was truncated.
        went_back = fetch.offset < self.end and fetch.at_ms >= self.fetched_at_ms
        # Not by `replace`, which is slower: this runs for every partition of every fetch.
        return Follower(
            log_start=fetch.log_start,
            end=fetch.offset,
            incarnation=fetch.incarnation,
            # Two reads of one follower may finish out of order after a reconnect.
            fetched_at_ms=max(self.fetched_at_ms, fetch.at_ms),
            leader_end_at_fetch=Offset(max(fetch.leader_end, previous_end or 0)),
            caught_up_at_ms=(proof_at_ms if went_back else max(self.caught_up_at_ms, proof_at_ms)),
            caught_up_served_at_ms=(
                served_proof_at_ms
                if went_back
                else max(self.caught_up_served_at_ms, served_proof_at_ms)
            ),
            served_at_ms=max(self.served_at_ms, fetch.served_at_ms),
            lag_began_at_ms=(
                None if at_end else fetch.at_ms if began_at_ms is None else began_at_ms
            ),
            reads=self.reads,
            forgiven_ms=0,
            is_graced=self.is_graced,
        )

    def on_session_fetch(self, *, leader_end: Offset, session_fetched_at_ms: int) -> Follower:
        """Take over the time of its fetch session's latest request, if it is caught up.

        An incremental fetch session does not list an idle partition, so its requests are fetches
        of this partition too. Called when the partition gets an append, is listed again or leaves
        the session: until then an idle partition costs nothing.
        """
        if self.end != leader_end or session_fetched_at_ms <= self.fetched_at_ms:
            return self
        return self.on_fetch(
            Fetch(
                offset=self.end,
                leader_end=leader_end,
                at_ms=session_fetched_at_ms,
                served_at_ms=session_fetched_at_ms,
                log_start=self.log_start,
                incarnation=self.incarnation,
            )
        )

    def on_read_began(
        self,
        *,
        read_id: int,
        connection: int,
        offset: Offset,
        parsed_at_ms: int,
        high_watermark: Offset | None,
    ) -> Follower:
        """`high_watermark` is None for a replica outside the ISR."""
        is_first = self.leader_end_at_fetch is None
        reads = self.reads.begin(
            read_id=read_id,
            connection=connection,
            offset=offset,
            parsed_at_ms=parsed_at_ms,
            holds_from=high_watermark if is_first else self.leader_end_at_fetch,
        )
        return replace(self, reads=reads)

    def on_read_ended(self, read_id: int) -> Follower:
        """The read is over, well or badly; a good one is followed by `on_fetch`."""
        return replace(self, reads=self.reads.end(read_id))

    def on_connection_closed(self, connection: int) -> Follower:
        return replace(self, reads=self.reads.without_connection(connection))

    def on_session_ended(self) -> Follower:
        return replace(self, reads=NO_READS)

    def on_leader_stall(self, stall: Stall, *, forgiven_ms_max: int, was_in_sync: bool) -> Follower:
        """The leader itself did not run: that is not this follower's lag.

        Its times move forward by the stall, but by no more than `forgiven_ms_max` in total since
        its last fetch, so that a follower that died meanwhile still leaves (see `stalls.py`).
        """
        shift_ms = min(stall.length_ms, max(0, forgiven_ms_max - self.forgiven_ms))

        def later(at_ms: int) -> int:
            # What happened after the stall was thought to begin moves no further than its end.
            return at_ms if at_ms == NEVER_MS else min(at_ms + shift_ms, stall.ended_at_ms)

        began_at_ms = self.lag_began_at_ms
        return replace(
            self,
            fetched_at_ms=later(self.fetched_at_ms),
            caught_up_at_ms=later(self.caught_up_at_ms),
            caught_up_served_at_ms=later(self.caught_up_served_at_ms),
            served_at_ms=later(self.served_at_ms),
            lag_began_at_ms=None if began_at_ms is None else later(began_at_ms),
            reads=self.reads.later_by(shift_ms, not_after_ms=stall.ended_at_ms),
            forgiven_ms=self.forgiven_ms + shift_ms,
            is_graced=was_in_sync,
        )

    def lag_ms(self, *, leader_end: Offset, now_ms: int) -> int | None:
        """KAFKA-4485's replica lag; None if it was never caught up in this epoch."""
        if self.end == leader_end:
            return 0
        return None if self.caught_up_at_ms == NEVER_MS else now_ms - self.caught_up_at_ms
