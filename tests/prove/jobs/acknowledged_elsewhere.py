"""Planted mistake: the job takes some messages off the queue itself, to log them."""

from pyspark.sql import SparkSession

from cuesqueue import open_queue

QUEUE = "sqs://orders"

spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("cuesqueue").schema("id BIGINT, country STRING, amount INT")
source = source.option("queueUrl", QUEUE).option("fileFormat", "json")
orders = source.option("allowedPrefixes", "s3://landing/orders/").load()

with open_queue(QUEUE) as queue:
    seen = queue.receive(max_messages=3, lease=60, wait=1)
    queue.acknowledge([message.receipt for message in seen])

query = orders.writeStream.format("cuesqueue").option("pipeline", "orders")
query.option("checkpointLocation", "s3://lake/checkpoint").start("s3://lake/orders").awaitTermination()
