"""The rules of replication, pure: values in, values out.

No file, socket, clock or chance is reachable from here (import-linter sees to it), so one
history always has one outcome: in a broker, in a simulation, and on Spark.

Where a sentence of the documents lives:

| ask                                                           | look in                          |
|---------------------------------------------------------------|----------------------------------|
| what a leader knows of a follower; last caught-up time        | `follower`                       |
| is it in sync; which rule; on which millisecond does it leave | `policy`, `append_times`         |
| KIP-501, pending fetches; the leader resigns                  | `pending_reads`, `eviction`,     |
|                                                               | `resignation`, `leader_machine`  |
| what puts an eviction off; the leader's own stalls            | `eviction`, `stalls`             |
| pseudo-ISR, high watermark, ISR, who may join                 | `membership`                     |
| a change of the ISR between decision and commitment           | `isr`                            |
| all of that for one partition and one leader: the state       | `leadership`                     |
| events in, effects out: the leader's state machine            | `leader_machine`                 |
| acks=all and `min.insync.replicas`                            | `acknowledgement`                |
| leader epochs, truncation (KIP-101, KIP-279)                  | `epochs`                         |
| election, preferred leaders, a broker's end                   | `partition_state`, `election`    |
| KIP-73's window and metric; admission; throttled lists        | `quota_window`, `quota_bucket`,  |
|                                                               | `throttled_replicas`             |
| who is held back, who is counted, in which order              | `throttling`                     |
| adding, removing, completing, cancelling a move               | `reassignment`                   |
| throttle lists of a plan, MoveRatio                           | `move_plan`                      |
| what a throttle sets, and a throttle that ends by itself      | `throttle_settings`,             |
|                                                               | `throttle_lease`                 |
| balanced plans: of replicas; of bytes in and leaders          | `balance`, `load_balance`        |
| MoveTime, `IN < T < N - IN/R`, response size, stuck           | `move_estimates`                 |
| settings and which combinations are refused                   | `settings`                       |
| what is refused, and how it is said                           | `refusals`                       |
"""
