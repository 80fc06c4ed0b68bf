"""Where Spark looks for data sources: packages named `pyspark_...`, with a `DefaultSource`."""

from ringdove.spark.source import RingdoveSource as DefaultSource

__all__ = ["DefaultSource"]
