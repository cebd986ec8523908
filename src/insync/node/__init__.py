"""One broker put together from a clock, a network, a disk, a store and a source of chance."""
