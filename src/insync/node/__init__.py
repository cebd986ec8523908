"""One broker, built from a clock, a network, a disk, a metadata store and randomness."""
