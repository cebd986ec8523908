"""A real cluster for tests, with faults on demand: processes, disks, links and clocks."""
