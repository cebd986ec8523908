"""Insync: a replicated log that speaks Kafka's protocol, and says who is in sync and why."""

__version__ = "0.1.0"
