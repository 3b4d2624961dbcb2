"""Planted mistake: foreachBatch appends, and nothing tells a batch that comes again."""

from pyspark.sql import DataFrame, SparkSession


def add(batch: DataFrame, batch_id: int) -> None:
    batch.write.mode("append").parquet("orders")


spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("cuesqueue").schema("id BIGINT, country STRING, amount INT")
source = source.option("queueUrl", "sqs://orders").option("fileFormat", "json")
orders = source.option("allowedPrefixes", "s3://landing/orders/").load()
query = orders.writeStream.foreachBatch(add).option("checkpointLocation", "s3://lake/checkpoints/orders")
query.trigger(processingTime="1 minute").start().awaitTermination()
