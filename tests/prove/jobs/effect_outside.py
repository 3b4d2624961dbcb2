"""Planted mistake: the function uses `delivery`, and writes by a connection of its own."""

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from cuesqueue import delivery

STORE = "postgresql+psycopg://app:secret@db.example/orders"
warehouse = sa.create_engine("sqlite:////var/lib/warehouse.db")
orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.BigInteger), sa.Column("country", sa.String(2)))
orders.create(warehouse, checkfirst=True)


def add(batch: DataFrame, batch_id: int) -> None:
    rows = [row.asDict() for row in batch.select("id", "country").collect()]
    with delivery(STORE, "orders", batch_id) as done:
        if rows and not done.already:
            with warehouse.begin() as connection:
                connection.execute(orders.insert(), rows)


spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("cuesqueue").schema("id BIGINT, country STRING, amount INT")
source = source.option("queueUrl", "sqs://orders").option("fileFormat", "json").option("storeUrl", STORE)
read = source.option("allowedPrefixes", "s3://landing/orders/").load()
query = read.writeStream.foreachBatch(add).option("checkpointLocation", "/var/lib/checkpoints/orders")
query.start().awaitTermination()
