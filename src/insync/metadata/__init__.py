"""A tree of small versioned values, shared by the brokers of one cluster.

| module     | what is in it                                               |
|------------|-------------------------------------------------------------|
| `store`    | the interface of a store: operations, entries, changes      |
| `view`     | the local copy of the tree that every broker reads from     |
| `memory`   | a store for several brokers in one process, deterministic   |
| `sqlite`   | a store for several processes on one host                   |
| `database` | the SQLite file: schema, one step as one statement          |
| `sessions` | live brokers: locked files, heartbeats, session timeouts    |
| `paths`    | the paths of the tree, Kafka's where Kafka has one          |
| `errors`   | what a store refuses                                        |
"""
