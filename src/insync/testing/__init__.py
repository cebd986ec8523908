"""A real cluster for tests, with faults on demand: brokers killed, stopped and restarted."""
