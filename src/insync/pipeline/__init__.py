"""Recorded telemetry on Spark: tables of lag, episodes, what-if and throttles."""
