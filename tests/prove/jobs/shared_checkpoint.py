"""Planted mistake: two queries, and one checkpoint for both."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
queries = []
for name in ("orders", "returns"):
    source = spark.readStream.format("cuesqueue").schema("id BIGINT, country STRING, amount INT")
    source = source.option("queueUrl", f"sqs://{name}").option("fileFormat", "json")
    rows = source.option("allowedPrefixes", f"s3://landing/{name}/").load()
    sink = rows.writeStream.format("cuesqueue").option("pipeline", name)
    queries.append(sink.option("checkpointLocation", "s3://lake/checkpoint").start(f"s3://lake/{name}"))
for query in queries:
    query.awaitTermination()
