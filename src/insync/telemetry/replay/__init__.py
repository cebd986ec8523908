"""The tables replayed through `rules`, one event after the other: the slow definitions.

- `contract.py`: by the policy that was in force. The tables are complete if this gives the
  leader's own decisions.
- `what_if.py`: the `histories.py` of partitions by the policy of a `scenario.py`. The compiled
  what-if (`insync.pipeline.replay`) is held to it, verdict by verdict.

Both read rows by column name and need no Spark.
"""
