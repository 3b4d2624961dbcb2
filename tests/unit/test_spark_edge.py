"""Whatever a library raises, only errors of ours leave the methods that Spark calls, and they can be pickled."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

from queue_source.errors import CuesqueueError, SinkFailed
from queue_source.options import parse_reader_options, parse_sink_options, parse_view_options
from queue_source.options.types import SecretUrl
from queue_source.read.partitions import PlanStore
from queue_source.read.task import Work
from queue_source.sinks.base import Batch
from queue_source.spark.reader import CuesqueueStreamReader, WorkPartition
from queue_source.spark.source import CuesqueueSource
from queue_source.spark.views import CuesqueueViewReader, ViewPartition
from queue_source.spark.writer import CuesqueueStreamWriter, TaskWritten
from shard_store.model import PlanIdentity, PublishToken

URL = "postgresql://me:geheim@host/db"


class SeveralArguments(Exception):
    """Cannot be made again from its text, as those of botocore and of REST clients."""

    def __init__(self, operation: str, place: str) -> None:
        super().__init__(f"{operation} is\nnot allowed at {place}")


class HoldsALock(OSError):
    def __init__(self) -> None:
        super().__init__(f"not allowed at {URL}")
        self.lock = threading.Lock()


class HoldsAResponse(RuntimeError):
    def __init__(self) -> None:
        super().__init__(f"not allowed at {URL}")
        self.response = SimpleNamespace(read=lambda: b"")


class Failing:
    """Raises an error when it is called, and when a method of it is."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *arguments: object, **named: object) -> NoReturn:
        raise self.error

    def __getattr__(self, name: str) -> Failing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self) -> Iterator[object]:
        raise self.error


NAMED = {"storeUrl": "sqlite:///none.db", "pipeline": "p"}
READS = {**NAMED, "queueUrl": "sim://q", "fileFormat": "json", "allowedPrefixes": "s3://b/"}
PLAN = PlanIdentity("p", PublishToken("p", 1), 0, 1, "hash")
STORE = PlanStore(SecretUrl("sqlite:///none.db"), "id")


def reader() -> CuesqueueStreamReader:
    return CuesqueueStreamReader(parse_reader_options(READS), StructType())


def work() -> WorkPartition:
    return WorkPartition(Work(PLAN, [], parse_reader_options(READS).content, STORE))


def writer() -> CuesqueueStreamWriter:
    return CuesqueueStreamWriter(parse_sink_options({**NAMED, "path": "/rows"}), StructType())


def view() -> CuesqueueViewReader:
    return CuesqueueViewReader(parse_view_options({**NAMED, "view": "shards"}), StructType())


def running(failing: Failing) -> CuesqueueStreamReader:
    made, anything = reader(), cast("Any", failing)
    made._coordinator = anything
    return made


def writing(failing: Failing) -> CuesqueueStreamWriter:
    made, anything = writer(), cast("Any", failing)
    made._batch, made._sink = Batch((PLAN,)), anything
    return made


ROOT = "queue_source.spark"
STARTED = f"{ROOT}.reader.CuesqueueStreamReader._started"
READER_OPTIONS = f"{ROOT}.source.parse_reader_options"
KEPT = "shard_store.store.kept_store"
# class and method: what fails inside of it ("" for what the call itself brings), and the call
CALLS: dict[tuple[type, str], tuple[str, Callable[[Failing], object]]] = {
    (CuesqueueStreamReader, "initialOffset"): (STARTED, lambda _: reader().initialOffset()),
    (CuesqueueStreamReader, "latestOffset"): (STARTED, lambda _: reader().latestOffset()),
    (CuesqueueStreamReader, "getDefaultReadLimit"): (STARTED, lambda _: reader().getDefaultReadLimit()),
    (CuesqueueStreamReader, "prepareForTriggerAvailableNow"): (
        STARTED,
        lambda _: reader().prepareForTriggerAvailableNow(),
    ),
    (CuesqueueStreamReader, "partitions"): (STARTED, lambda _: reader().partitions({}, {})),
    (CuesqueueStreamReader, "commit"): (STARTED, lambda _: reader().commit({})),
    (CuesqueueStreamReader, "reportLatestOffset"): ("", lambda failing: running(failing).reportLatestOffset()),
    (CuesqueueStreamReader, "stop"): ("", lambda failing: running(failing).stop()),
    (CuesqueueStreamReader, "read"): (f"{ROOT}.reader.read_work", lambda _: list(reader().read(work()))),
    (CuesqueueStreamWriter, "__getstate__"): (KEPT, lambda _: pickle.dumps(writer())),
    (CuesqueueStreamWriter, "write"): ("", lambda failing: writing(failing).write(iter([]))),
    (CuesqueueStreamWriter, "commit"): (
        KEPT,
        lambda _: writer().commit([TaskWritten(Batch((PLAN,)), [], None)], 0),
    ),
    (CuesqueueSource, "__init__"): (READER_OPTIONS, lambda _: CuesqueueSource(READS)),
    (CuesqueueSource, "schema"): (READER_OPTIONS, lambda _: source(READS).schema()),
    (CuesqueueSource, "streamReader"): (READER_OPTIONS, lambda _: source(READS).streamReader(StructType())),
    (CuesqueueSource, "streamWriter"): (
        f"{ROOT}.source.parse_sink_options",
        lambda _: source(NAMED).streamWriter(StructType(), False),
    ),
    (CuesqueueSource, "reader"): (
        f"{ROOT}.source.parse_view_options",
        lambda _: source(NAMED).reader(StructType()),
    ),
    (CuesqueueViewReader, "partitions"): (f"{ROOT}.views.open_store", lambda _: view().partitions()),
    (CuesqueueViewReader, "read"): (
        "shard_store.store.open_store",
        lambda _: list(view().read(ViewPartition(STORE))),
    ),
}
CANNOT_FAIL = {(CuesqueueStreamWriter, "abort"), (CuesqueueSource, "name"), (CuesqueueSource, "writer")}
BASES = {
    CuesqueueStreamReader: DataSourceStreamReader,
    CuesqueueStreamWriter: DataSourceStreamWriter,
    CuesqueueSource: DataSource,
    CuesqueueViewReader: DataSourceReader,
}


def source(options: dict[str, str]) -> CuesqueueSource:
    """Make it as Spark does in other processes, without a call of `__init__`."""
    made = CuesqueueSource.__new__(CuesqueueSource)
    made.options = options
    made._inferred = made._has_given_columns = False
    return made


def test_each_method_that_spark_calls_is_tried() -> None:
    called = {(ours, name) for ours, base in BASES.items() for name in vars(ours) if name in dir(base)}
    assert {place for place in called if not place[1].startswith("_")} <= {*CALLS, *CANNOT_FAIL}


@pytest.mark.parametrize("error", [SeveralArguments("CommitTable", URL), HoldsALock(), HoldsAResponse()], ids=type)
@pytest.mark.parametrize("place", CALLS, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_an_error_of_a_library_leaves_as_text_in_one_of_ours(
    place: tuple[type, str], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, run = CALLS[place]
    failing = Failing(error)
    if where:
        monkeypatch.setattr(where, failing)
    with pytest.raises(CuesqueueError, match=f"{type(error).__name__}: .*not allowed at") as caught:
        run(failing)
    serializer: Any = CloudPickleSerializer  # without types
    again = pickle.loads(serializer().dumps(caught.value))
    assert type(again) is (SinkFailed if place[1] == "__getstate__" else CuesqueueError)
    assert str(again) == str(caught.value)
    assert "\n" not in str(again)
    trace = "".join(traceback.format_exception(caught.value))
    assert "geheim" not in trace
    assert "test_spark_edge.py" in trace  # where it was raised
