"""How Spark finds the data source `insync` by itself: it looks into modules called pyspark_*."""

from insync.pipeline.io.source import TelemetrySource as DefaultSource

__all__ = ["DefaultSource"]
