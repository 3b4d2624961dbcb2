"""Read orders until somebody stops it: what the queue announces becomes rows in Parquet files of the same bucket."""

import os

from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.log.level", "WARN").getOrCreate()
orders = (
    spark.readStream.format("cuesqueue")
    .schema("id STRING, total DOUBLE")
    .option("queueUrl", "sqs://orders")
    .option("allowedPrefixes", "s3://landing/orders/")
    .option("fileFormat", "json")
    .option("visibilityTimeout", "30s")  # what a killed reader had received comes again so soon, and not after 5m
    .option("storeUrl", "env:CUESQUEUE_STORE")
    .load()
)
query = (
    orders.writeStream.format("cuesqueue")
    .option("pipeline", "orders")
    .option("storeUrl", "env:CUESQUEUE_STORE")
    .option("checkpointLocation", f"{os.environ['CHECKPOINTS']}/checkpoint")
    .start("s3://landing/published/orders")
)
query.awaitTermination()
