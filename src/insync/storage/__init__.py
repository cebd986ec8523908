"""Log files, and nothing else touches them.

| what | module |
|---|---|
| one log: append as leader or follower, open, close | `log.py` |
| its segments: read, roll, flush, check | `local_log.py` |
| truncation, retention, its inventory and damage | `truncatable_log.py` |
| a log file with its indexes | `segment.py`, `index.py`, `scan.py` |
| opening after a stop of any kind | `recovery.py`, `segment_check.py` |
| a data directory | `directory.py`; its logs and damage `open_logs.py`, flushes `upkeep.py` |
| small files of a data directory | `offset_checkpoints.py`, `replica_checkpoint.py`, `owner.py` |
| the disk, real or in memory | `disk.py`, `memory_disk.py` |
"""
