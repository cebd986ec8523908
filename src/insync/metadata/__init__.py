"""A tree of small versioned values, shared by the brokers of one cluster.

| ask                                                        | look in    |
|------------------------------------------------------------|------------|
| what a store promises; operations, entries, changes        | `store`    |
| the local copy of the tree every broker reads from         | `view`     |
| several brokers in one process, deterministic              | `memory`   |
| several processes on one host                              | `sqlite`   |
| the file itself: schema, one step as one statement         | `database` |
| who lives: locked files, heartbeats, whose silence counts  | `sessions` |
| where Kafka keeps what                                     | `paths`    |
| what a store refuses                                       | `errors`   |
"""
