"""The only package that imports pyspark. No logic: each method is a call or two."""

from queue_source.common.logs import end_idle_without_trace

end_idle_without_trace()  # each worker that Spark uses for us imports this package
