"""Recorded telemetry of simulated runs, and its contract."""
