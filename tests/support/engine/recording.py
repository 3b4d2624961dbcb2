"""A streaming source and sink that write down every call Spark makes: for the tests of what Spark does.

The source counts: offset n stands for n rows; each `latestOffset` offers `step` more, up to `upto`. Options: `log` (the
file that takes one JSON line a call), `step`, `upto`, and in file `fail` the name of a batch's step to fail at.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from queue_source.spark.process import AvailableNow, default_read_limit, driver_identity, is_repeated

Call = dict[str, Any]


def write_down(log: str, call: str, **what: object) -> None:
    line = json.dumps({"call": call, "pid": os.getpid(), "driver": driver_identity(), "at": time.time(), **what})
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{line}\n".encode())  # one write: lines of several processes do not mix
    finally:
        os.close(handle)


def calls(log: Path) -> list[Call]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []


class Rows(InputPartition):
    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class Reader(AvailableNow, DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.log, self.options = options["log"], options
        self.step, self.upto = int(options.get("step", 1)), int(options.get("upto", 1))
        self.given = 0
        self.listening = False
        write_down(self.log, "reader.__init__", options=dict(options))

    def listen(self) -> None:
        if self.listening:
            return
        self.listening = True
        atexit.register(write_down, self.log, "exit")  # it may see its closed connection before Spark's signal

        def handle(number: int, frame: FrameType | None) -> None:
            graceful = self.options.get("graceful") == "true"
            if graceful:  # Spark's second one would interrupt `stop`
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            write_down(self.log, "SIGTERM")
            if graceful:
                raise SystemExit(0)

        signal.signal(signal.SIGTERM, handle)

    def initialOffset(self) -> Call:
        self.listen()
        write_down(self.log, "initialOffset")
        return {"n": 0}

    def latestOffset(self, start: Call | None = None, limit: object = None) -> Call:
        self.listen()
        write_down(self.log, "latestOffset", start=start, limit=None if limit is None else repr(limit))
        top = int(Path(self.options["top"]).read_text()) if "top" in self.options else self.upto
        base = self.given if start is None else start["n"]
        self.given = max(base, min(base + self.step, top))
        return {"n": self.given}

    def getDefaultReadLimit(self) -> Any:
        write_down(self.log, "getDefaultReadLimit")
        return default_read_limit(7)

    def prepareForTriggerAvailableNow(self) -> None:
        write_down(self.log, "prepareForTriggerAvailableNow")

    def reportLatestOffset(self) -> Call:
        return {"seen": self.given}

    def partitions(self, start: Call, end: Call) -> list[InputPartition]:
        self.listen()
        self.given = max(self.given, end["n"])
        write_down(self.log, "partitions", start=start["n"], end=end["n"])
        return [Rows(start["n"], end["n"])] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        write_down(self.log, "read", start=partition.first, end=partition.last, repeated=is_repeated())
        if self.options.get("fails") == "once" and not is_repeated():
            raise RuntimeError("told to fail once")
        wrong = self.options.get("wrong") == "true"
        kind = pa.int32() if wrong else pa.int64()
        yield pa.RecordBatch.from_arrays([pa.array(range(partition.first, partition.last), kind)], names=["n"])

    def commit(self, end: Call) -> None:
        write_down(self.log, "commit", end=end["n"])

    def stop(self) -> None:
        write_down(self.log, "stop")


class Written(WriterCommitMessage):
    pass


class Writer(DataSourceStreamWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.log, self.fail = options["log"], options.get("fail", "")
        self.built_in = os.getpid()
        write_down(self.log, "writer.__init__", options=dict(options))

    def __getstate__(self) -> Call:
        write_down(self.log, "writer.__getstate__")
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        rows = [row.n for row in iterator]
        write_down(self.log, "write", rows=rows, built_in=self.built_in)
        return Written()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        write_down(self.log, "writer.commit", batch=batchId, built_in=self.built_in)
        if self.fail and Path(self.fail).exists():
            raise RuntimeError("told to fail")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        write_down(self.log, "abort", batch=batchId)


class RecordingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "recording"

    def schema(self) -> str:
        return "n BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Reader(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return Writer(self.options)
