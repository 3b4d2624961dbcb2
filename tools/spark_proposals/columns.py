import statistics
import tempfile
import time

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

ROWS, BATCHES = 10_000, 128
SCHEMA = "id BIGINT, amount DOUBLE, quantity INT, name STRING, country STRING"


class InMemory(DataSource):
    """Arrow batches that are there already: no reading, no parsing."""

    @classmethod
    def name(cls):
        return "in-memory"

    def schema(self):
        return SCHEMA

    def reader(self, schema):
        return InMemoryReader()


class InMemoryReader(DataSourceReader):
    def partitions(self):
        return [InputPartition(number) for number in range(2)]

    def read(self, partition):
        ids = range(ROWS)
        columns = [
            pa.array(ids, pa.int64()),
            pa.array([0.37 * number for number in ids]),
            pa.array([number % 17 for number in ids], pa.int32()),
            pa.array([f"customer-{number:07}" for number in ids]),
            pa.array([("DE", "FR", "US", "JP")[number % 4] for number in ids]),
        ]
        batch = pa.RecordBatch.from_arrays(columns, ["id", "amount", "quantity", "name", "country"])
        for _ in range(BATCHES // 2):
            yield batch


spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
spark.dataSource.register(InMemory)
with tempfile.TemporaryDirectory() as folder:
    batches = spark.read.format("in-memory").load()
    batches.write.parquet(f"{folder}/files")
    files = spark.read.parquet(f"{folder}/files")
    for name, table in (("Arrow batches from memory", batches), ("Parquet files", files)):
        taken = []
        for _ in range(12):
            began = time.perf_counter()
            table.write.format("noop").mode("overwrite").save()
            taken.append(time.perf_counter() - began)
        print(f"{name}: {ROWS * BATCHES:,} rows, least {min(taken):.2f} s, median {statistics.median(taken[4:]):.2f} s")
