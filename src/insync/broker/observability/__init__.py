"""Metrics, counters and telemetry of this broker."""
