import statistics
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class One(DataSource):
    """One row, in one partition."""

    @classmethod
    def name(cls):
        return "one"

    def schema(self):
        return "id BIGINT"

    def reader(self, schema):
        return OneReader()


class OneReader(DataSourceReader):
    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        yield (1,)


unix = "unix" in sys.argv
settings = {"spark.python.unix.domain.socket.enabled": str(unix).lower()}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
spark.dataSource.register(One)
table = spark.read.format("one").load()
taken = []
for _ in range(60):
    began = time.perf_counter()
    table.collect()
    taken.append(1000 * (time.perf_counter() - began))
print(f"{'unix' if unix else 'tcp'}: least {min(taken[20:]):.0f} ms, median {statistics.median(taken[20:]):.0f} ms")
