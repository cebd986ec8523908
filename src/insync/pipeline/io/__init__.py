"""Reading telemetry into Spark and writing tables: brokers, files, sessions, shards."""
