"""Partition states, and a model of a partition with whole logs."""
