"""Figures of our own parts, and of the whole beside Apache Kafka."""
