"""Third-party clients and tools against Insync's brokers: `make test-interop`."""
