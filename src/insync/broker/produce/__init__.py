"""Produce and InitProducerId."""
