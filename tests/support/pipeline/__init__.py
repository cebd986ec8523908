"""Telemetry for the pipeline, and oracles of its tables."""
