"""Replicas as the metadata store says: led, followed, and their ISR."""
