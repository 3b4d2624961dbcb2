"""Where Spark finds the format: it registers `DefaultSource` of every module on the path named `pyspark_*`."""

from queue_source.spark.source import CuesqueueSource as DefaultSource

__all__ = ["DefaultSource"]
