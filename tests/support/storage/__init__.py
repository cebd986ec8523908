"""Batches, and a model of a log."""
