"""A real cluster for tests, with faults on demand in processes, disks, links and clocks."""
