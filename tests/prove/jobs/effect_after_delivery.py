"""Planted mistake: the rows are written once the batch is published, and so not at all after a kill between the two."""

from pyspark.sql import DataFrame, SparkSession

from cuesqueue import delivery


def add(batch: DataFrame, batch_id: int) -> None:
    with delivery("sqlite:///cuesqueue.db", "orders", batch_id) as done:
        already = done.already
    if not already:
        batch.write.mode("append").parquet("orders")


spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("cuesqueue").schema("id BIGINT, country STRING, amount INT")
source = source.option("queueUrl", "sqs://orders").option("fileFormat", "json")
orders = source.option("allowedPrefixes", "s3://landing/orders/").load()
query = orders.writeStream.foreachBatch(add).option("checkpointLocation", "checkpoint")
query.start().awaitTermination()
