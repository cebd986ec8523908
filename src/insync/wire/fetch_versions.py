"""What each version of Fetch added.

4 the first with record batches   5 log start   7 sessions   9 leader epoch   11 rack
12 flexible, last fetched epoch   13 topic ids instead of names   15 replica state as a tag
16 node endpoints   17 directory id, 18 high watermark of the follower (both for KRaft: ignored)
"""

from __future__ import annotations

from typing import Final

LOG_START_FROM: Final = 5
SESSION_FROM: Final = 7
LEADER_EPOCH_FROM: Final = 9
RACK_FROM: Final = 11
FLEXIBLE_FROM: Final = 12
TOPIC_ID_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
