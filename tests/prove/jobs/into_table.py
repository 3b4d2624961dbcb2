"""A job without a mistake: its arguments are the options of its sink, as NAME=VALUE."""

import sys

from pyspark.sql import SparkSession

options = dict(argument.split("=", 1) for argument in sys.argv[1:])
spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("cuesqueue").schema("id BIGINT, country STRING, amount INT")
source = source.options(queueUrl="sqs://orders", fileFormat="json", allowedPrefixes="s3://landing/orders/")
sink = source.load().writeStream.format("cuesqueue").option("pipeline", "orders").options(**options)
sink.start(checkpointLocation="s3://lake/checkpoint").awaitTermination()
