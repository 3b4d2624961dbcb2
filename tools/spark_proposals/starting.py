import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


class Nothing(DataSource):
    """A stream that has nothing after its first offset."""

    @classmethod
    def name(cls):
        return "nothing"

    def schema(self):
        return "id BIGINT"

    def streamReader(self, schema):
        return NothingReader()


class NothingReader(DataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}

    def latestOffset(self, start=None, limit=None):
        return {"at": 0}

    def partitions(self, start, end):
        return [InputPartition(0)]

    def read(self, partition):
        yield from ()


spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.dataSource.register(Nothing)
with tempfile.TemporaryDirectory() as folder:
    landing = Path(folder, "landing")
    landing.mkdir()
    streams = {
        "Python source": spark.readStream.format("nothing").load(),
        "file stream": spark.readStream.schema("id BIGINT").json(str(landing)),
    }
    taken = {name: [] for name in streams}
    for number in range(7):
        for name, stream in streams.items():
            writer = stream.writeStream.format("noop").trigger(availableNow=True)
            began = time.perf_counter()
            writer.option("checkpointLocation", f"{folder}/{name}").start().awaitTermination()
            taken[name].append(time.perf_counter() - began)
for name, seconds in taken.items():
    print(f"{name}: median of the last five runs {statistics.median(seconds[2:]):.2f} s")
