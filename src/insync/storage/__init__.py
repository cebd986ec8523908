"""Log files: segments, indexes, checkpoints, recovery, retention. Bytes and offsets in and out."""
