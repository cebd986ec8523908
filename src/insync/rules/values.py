"""The nouns every rule speaks of, as types that cannot be mistaken for one another.

Times are integer milliseconds of the leader's monotonic clock and carry the suffix `_ms`.
"""

from typing import Final, NewType

BrokerId = NewType("BrokerId", int)
PartitionId = NewType("PartitionId", int)
LeaderEpoch = NewType("LeaderEpoch", int)

Offset = NewType("Offset", int)
"""The position of one record. A log's *end* is the offset its next record will get."""

Incarnation = NewType("Incarnation", int)
"""Which life of a broker this is: a restarted broker is a new incarnation at once."""

FIRST_OFFSET: Final = Offset(0)

UNKNOWN_OFFSET: Final = Offset(-1)
"""The end of a follower that has not fetched in this leader epoch. It is below every real
offset, so such a follower is behind any log and holds any watermark."""

UNKNOWN_INCARNATION: Final = Incarnation(-1)

NEVER_MS: Final = -(2**62)
"""A time before all others. Adding any configured duration to it still gives the distant past,
so "caught up at NEVER_MS" is out of sync under every limit without a special case."""
NO_BROKERS: frozenset[BrokerId] = frozenset()
