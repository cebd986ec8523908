"""Other people's clients and tools against our brokers: `make test-interop`."""
