"""Planted mistake: a sink of one's own adds the rows of every commit, and does not look at the batch id."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

FILE = str(Path.cwd() / "adding.db")


@dataclass
class Written(WriterCommitMessage):
    rows: list[tuple[int, str]]


class AddingWriter(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return Written([(row.id, row.country) for row in iterator])

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        connection = sqlite3.connect(FILE, timeout=30)
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER, country TEXT)")
            for message in messages:
                assert isinstance(message, Written)
                connection.executemany("INSERT INTO orders VALUES (?, ?)", message.rows)
        connection.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class Adding(DataSource):
    @classmethod
    def name(cls) -> str:
        return "adding"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return AddingWriter()


spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(Adding)
source = spark.readStream.format("cuesqueue").schema("id BIGINT, country STRING, amount INT")
source = source.option("queueUrl", "sqs://orders").option("fileFormat", "json")
orders = source.option("allowedPrefixes", "s3://landing/orders/").load()
query = orders.writeStream.format("adding").option("checkpointLocation", "checkpoint")
query.start().awaitTermination()
