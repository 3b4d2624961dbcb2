"""A stream in Python that has its rows ready, as Arrow batches in files that are mapped into memory, and a sink for it.

The floor of any source in Python: it receives, parses and checks nothing, and keeps nothing in a database. What its
micro-batch takes is what Spark takes to start tasks in Python, to carry batches to the JVM, and to make rows of them.
The sink writes nothing, and commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

_ROWS_IN_A_BATCH = 10_000
_SUFFIX = ".arrow"


def write(folder: Path, tables: Iterable[pa.Table], partitions: int) -> None:
    """Divide the rows of these tables evenly into one file for each partition."""
    folder.mkdir(parents=True)
    rows = pa.concat_tables(tables)
    each = -(-rows.num_rows // partitions)
    for number in range(partitions):
        part = rows.slice(number * each, each).combine_chunks()
        with pa.OSFile(str(folder / f"{number}{_SUFFIX}"), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(part, _ROWS_IN_A_BATCH)


def stream(spark: SparkSession, folder: Path, ddl: str) -> DataFrame:
    """All rows that were written to the folder, in the first micro-batch; nothing in those after it."""
    spark.dataSource.register(Ready)
    return spark.readStream.format(Ready.name()).schema(ddl).option("folder", str(folder)).load()


class Ready(DataSource):
    """Its first offset is 0 and every later one 1."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ReadyReader(self.options["folder"])

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return NoWriter()


class ReadyReader(DataSourceStreamReader):
    """A partition for each file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if start == end:
            return []
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).glob(f"*{_SUFFIX}"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as mapped:
            file = pa.ipc.open_file(mapped)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


class NoWriter(DataSourceStreamWriter):
    """Takes all rows."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        return None
