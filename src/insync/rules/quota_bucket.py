"""Admission under a replication quota: strict, where KIP-73's own mechanism is optimistic.

The document lets a response through and then looks at the rate, so the first requests may exceed
the quota by their whole size. A bucket decides beforehand instead. It fills at the quota R and
holds at most half a second of it, and it starts empty, so over any 10 s no more than
10 R + R/2 = 1.05 x 10 R can leave it.

- In-sync replicas are never held back (KAFKA-4313). Their bytes are taken all the same and may
  make the bucket negative, down to 10 s of R: beyond that, older keep-up traffic is forgotten.
- A batch is never cut. One larger than the bucket is let go when the bucket is full, and the
  excess is debt that is never forgotten.
- A follower does not know what an answer will bring. It reserves bytes when it asks, asks for no
  more than it reserved, and gets the difference back with the answer: KIP-73's pessimistic
  variant, which the document turned down as too complex and which keeps the throttle strict on
  the receiving side too. What is reserved still counts as being in the bucket, or else waiting
  answers would make room for a second half second.

The bound, for every moment at which a byte that could have been held back is let go: over the
10 s before it, those bytes <= 1.05 x 10 R - in-sync bytes, plus one batch. (Bytes of in-sync
replicas that come later cannot be held against what has already left.)

Amounts are bytes x 1000, so that a millisecond earns exactly R and nothing is ever rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from insync.rules.refusals import BadSetting

BURST_MS: Final = 500
FORGIVEN_AFTER_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The bytes that one broker may still send or fetch, as leader or as follower."""

    bytes_per_s: int
    credit: int = 0  # bytes x 1000; negative is debt
    owed: int = 0  # the part of the debt that batches made: never forgotten
    reserved: int = 0  # bytes x 1000 promised to requests under way
    at_ms: int

    def __post_init__(self) -> None:
        if self.bytes_per_s < 0:
            raise BadSetting(f"a replication throttle of {self.bytes_per_s} B/s has no meaning")
        assert self.reserved >= 0, "reserved less than nothing"

    @property
    def capacity(self) -> int:
        return self.bytes_per_s * BURST_MS

    def at(self, now_ms: int) -> Bucket:
        """The bucket as time has filled it."""
        assert now_ms >= self.at_ms, "time went backwards"
        if now_ms == self.at_ms:
            return self  # called several times per batch
        earned = (now_ms - self.at_ms) * self.bytes_per_s
        # Debt repaid, or room left, but never lowered: reservations may have grown meanwhile.
        room = max(self.credit, self.capacity - self.reserved)
        credit = min(room, self.credit + earned)
        return replace(self, credit=credit, owed=_still_owed(self.owed, credit), at_ms=now_ms)

    def with_rate(self, bytes_per_s: int, *, now_ms: int) -> Bucket:
        """Another quota from now on; keep-up traffic beyond its own horizon is forgotten."""
        if bytes_per_s == self.bytes_per_s:
            return self
        filled = self.at(now_ms)
        lowest = -bytes_per_s * FORGIVEN_AFTER_MS - filled.owed
        credit = min(bytes_per_s * BURST_MS, max(filled.credit, lowest))
        return replace(filled, bytes_per_s=bytes_per_s, credit=credit)

    def admits(self, size_bytes: int, *, now_ms: int) -> bool:
        return self.at(now_ms).credit >= self._needed(size_bytes) and self.bytes_per_s > 0

    def admits_at_ms(self, size_bytes: int) -> int | None:
        """When a held-back batch may go if nothing else happens.

        None: it never may, or not before a reservation is settled.
        """
        needed = self._needed(size_bytes)
        if self.bytes_per_s == 0 or needed > max(self.credit, self.capacity - self.reserved):
            return None
        return self.at_ms + max(0, -((self.credit - needed) // self.bytes_per_s))

    def spend(self, size_bytes: int, *, now_ms: int) -> Bucket:
        """Debit a whole batch, which was admitted."""
        assert self.admits(size_bytes, now_ms=now_ms), "spent without being admitted"
        filled = self.at(now_ms)
        left = filled.credit - size_bytes * 1_000
        return replace(filled, credit=left, owed=max(0, -left))

    def pass_in_sync(self, size_bytes: int, *, now_ms: int) -> Bucket:
        """Count bytes of an in-sync replica, which pass whatever the bucket says."""
        filled = self.at(now_ms)
        # What is reserved may come back; it must not shorten the debt.
        floor = -self.bytes_per_s * FORGIVEN_AFTER_MS - filled.reserved
        lowest = min(filled.credit, floor)
        return replace(filled, credit=max(filled.credit - size_bytes * 1_000, lowest))

    def reserve(
        self, wanted_bytes: int, *, batch_bytes_max: int, leaders: int, now_ms: int
    ) -> tuple[Bucket, int]:
        """Bytes one request may ask for: its share among the leaders, or none yet.

        Never less than the largest batch the answer may begin with, so that no answer exceeds its
        reservation; if even a full bucket is smaller than that, one request at a time gets all of
        it and the excess becomes debt.
        """
        assert wanted_bytes > 0, "a request for nothing needs no reservation"
        assert leaders > 0, "a request goes to a leader"
        filled = self.at(now_ms)
        first_batch = min(wanted_bytes, batch_bytes_max)
        if not filled.admits(first_batch, now_ms=now_ms):
            return filled, 0
        share_bytes = max(first_batch, self.capacity // 1_000 // leaders)
        granted_bytes = max(1, min(wanted_bytes, share_bytes, filled.credit // 1_000))
        granted = granted_bytes * 1_000
        return replace(
            filled, credit=filled.credit - granted, reserved=filled.reserved + granted
        ), granted_bytes

    def settle(self, *, reserved_bytes: int, received_bytes: int, now_ms: int) -> Bucket:
        """An answer came (or none will): give back what it did not use, or owe what it exceeded."""
        filled = self.at(now_ms)
        refund = (reserved_bytes - received_bytes) * 1_000
        reserved = filled.reserved - reserved_bytes * 1_000
        # Reserved under a higher quota, it may be more than the bucket now holds.
        room = max(filled.credit, self.capacity - reserved)
        left = min(room, filled.credit + refund)
        owed = _still_owed(filled.owed + max(0, -refund), left)
        return replace(filled, credit=left, owed=owed, reserved=reserved)

    def _needed(self, size_bytes: int) -> int:
        # 90 % counts as full: constant traffic of in-sync replicas could keep the bucket from ever
        # reaching 100 %, and what is earned between a wake-up and its fetch would be lost.
        full = self.capacity - self.capacity // 10
        return min(size_bytes * 1_000, full)


def _still_owed(owed: int, credit: int) -> int:
    """What is owed is never more than the debt: repaying the debt repays it."""
    return min(owed, max(0, -credit))
