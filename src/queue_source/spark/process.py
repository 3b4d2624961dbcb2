"""The Python processes that Spark starts, and the differences between its versions, in one place.

4.0 and 4.1 have neither limits nor AvailableNow sources.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import inspect
import os
import re
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql import SparkSession, datasource
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import StructType

from queue_source.common.local_paths import working_folder
from queue_source.errors import OptionError
from queue_source.options import EVERYTHING, BatchLimits
from shard_store.model import Reading, Runtime

if TYPE_CHECKING:

    class AvailableNow:
        """The mixin that makes Spark call `prepareForTriggerAvailableNow`."""

    ArrowStreamWriter = datasource.DataSourceStreamWriter
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:

        class AvailableNow:
            """Stands for the mixin in Spark before 4.2, which runs AvailableNow as one batch without notice."""

    ArrowStreamWriter = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)

WRITES_ARROW: bool = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether a streaming writer is given Arrow batches (4.1 and later) or rows."""

_ROWS_PER_BATCH = 10_000


def default_read_limit(max_files: int) -> Any:
    """Return the limit that Spark is to give; it asks from 4.2 on, and `Trigger.Once` gives another.

    Spark has none of both files and bytes: the one of bytes stays with the source.
    """
    return importlib.import_module("pyspark.sql.streaming.datasource").ReadMaxFiles(max_files)


def given_limits(limit: object, own: BatchLimits) -> BatchLimits:
    """Return the limits of a batch: Spark's, and the source's `own` where Spark gives none."""
    if type(limit).__name__ == "ReadAllAvailable":
        return EVERYTHING
    return BatchLimits(getattr(limit, "max_files", own.files), getattr(limit, "max_bytes", own.bytes))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow form that Spark requires for a source's batches: timestamps in UTC.

    OptionError if there is none.
    """
    knows_utc = "timestamp_utc" in inspect.signature(arrow_types.to_arrow_schema).parameters
    how: dict[str, Any] = {} if knows_utc else {"timezone": "UTC"}
    try:
        return arrow_types.to_arrow_schema(schema, **how)
    except PySparkTypeError:
        for field in schema:
            try:
                arrow_types.to_arrow_schema(StructType([field]), **how)
            except PySparkTypeError as error:
                kind = field.dataType.simpleString()
                raise OptionError(
                    "schema", f"column {field.name!r} is of type {kind}, which cannot leave Spark as Arrow; cast it"
                ) from error
        raise


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns of an Arrow schema as Spark's."""
    return arrow_types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def as_batches(iterator: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the input of a streaming writer as batches in the Arrow form of `schema`."""
    target = arrow_schema(schema)
    if WRITES_ARROW:
        for batch in iterator:
            yield _conform(batch, target)
        return
    rows = iter(iterator)
    while chunk := list(islice(rows, _ROWS_PER_BATCH)):
        for batch in LocalDataToArrowConversion.convert(chunk, schema, False).to_batches():
            yield _conform(batch, target)


def _conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Conform a batch of Spark's, which has timestamps in the session's time zone, and may have large strings."""
    if batch.schema.equals(target):
        return batch
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


pyspark_version = tuple(int(number) for number in re.findall(r"\d+", pyspark.__version__)[:2])


def driver_identity() -> str:
    """Return a text that is the same in every Python process of one driver (JVM), and another for every other driver.

    Spark gives its Python processes the driver's block manager folders, which have random names; the user's script is
    none of them, and asks the JVM. Empty where a version does not tell: then the check that uses it is skipped.
    """
    folders = _block_manager_folders()
    return hashlib.sha256(folders.encode()).hexdigest() if folders else ""


def presence_folder() -> Path | None:
    """Return a folder that all Python processes of this driver share, deleted with it; None where Spark does not tell.

    For the processes on the driver's machine: the reader's, the sink's, the user's script. None also on Windows, which
    has no locks of the kind that readers hold.
    """
    if os.name == "nt":
        return None
    first = _block_manager_folders().split(",")[0]
    return Path(first) / "cuesqueue" if first else None


def _block_manager_folders() -> str:
    """Return the driver's block manager folders; none where Spark does not tell."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    if "blockmgr-" not in folders:
        folders = _folders_by_the_jvm()
    return folders if "blockmgr-" in folders else ""


def _folders_by_the_jvm() -> str:
    """Read the folders by SparkEnv's field.

    Py4J would inspect all methods of that class, and some name classes that are absent.
    """
    context: Any = SparkContext._active_spark_context
    if context is None:
        return ""
    field = (
        context._jsc.getClass().getClassLoader().loadClass("org.apache.spark.SparkEnv").getDeclaredField("blockManager")
    )
    field.setAccessible(True)
    folders = field.get(context._jsc.sc().env()).diskBlockManager().localDirs()
    return ",".join(folder.getPath() for folder in folders)


def driver_folder() -> Path:
    """Return the folder from which relative paths count in a query's options: the JVM's, whatever the script's is now.

    Raises ValueError, as `working_folder`.
    """
    context: Any = SparkContext._active_spark_context
    if context is None:
        return working_folder()
    return Path(context._jvm.java.lang.System.getProperty("user.dir"))


def is_remote(spark: SparkSession) -> bool:
    """Tell whether the session is one of Spark Connect, whose files are those of its server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def runtime() -> Runtime:
    """Describe this reader process for operators."""
    from importlib.metadata import PackageNotFoundError, version  # here: executors import this module as well

    try:
        ours: str | None = version("cuesqueue")
    except PackageNotFoundError:  # its code came with `--py-files`
        ours = None
    return Runtime(socket.gethostname(), pyspark.__version__, ours)


def is_repeated() -> bool:
    """Tell whether the task of this process may have run before.

    A stage that runs again because its shuffle files were lost counts its tasks from 0: Spark does not tell that here.
    """
    context = TaskContext.get()
    return context is None or context.attemptNumber() > 0


def reading() -> Reading | None:
    """Return the task attempt of this process, by Spark's numbers; None where Spark does not tell."""
    context = TaskContext.get()
    if context is None:
        return None
    return Reading(context.stageId(), context.partitionId(), context.taskAttemptId(), context.attemptNumber() > 0)


def task_name() -> str:
    """Return the name of this process's task: its micro-batch and its number there, the same at every attempt.

    Empty where Spark does not tell.
    """
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    return "" if context is None or batch is None else f"{batch}.{context.partitionId()}"


def session_time_zone() -> str | None:
    """Return the zone of the query's session, in a task of it; None where it has none.

    Spark sends a session's settings to its tasks, and to no other Python process.
    """
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("spark.sql.session.timeZone")


def stop_on_sigterm() -> None:
    """Turn the SIGTERM with which Spark ends a reader process into `reader.stop()`.

    Spark sends it twice within milliseconds and calls `stop()` only if a handler raises SystemExit: so the first one
    ignores those that follow before it raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may set handlers; Spark's reader process calls us there

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, handle)


def end_without_trace() -> None:
    """Have what this process still writes to Spark end it, if SIGTERM has.

    Spark has closed the socket by then, and PySpark's answer would fail with a trace on the terminal. Not earlier: a
    broken connection of a queue would end the process before it has given its messages back.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # by `stop_on_sigterm`
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def advice() -> list[str]:
    """Return sentences on how to make the Python processes of this Spark faster."""
    sentences = []
    if pyspark_version >= (4, 1) and os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() != "true":
        sentences.append(
            "Spark reaches its Python workers over TCP: set spark.python.unix.domain.socket.enabled to true, which "
            "saves tens of milliseconds in each micro-batch"
        )
    if ".zip/" in pyspark.__file__ and pyspark.__file__.endswith(".py"):
        sentences.append(
            "each Python process compiles PySpark anew: run 'cuesqueue setup pyspark' once where driver and executors "
            "have it, which saves most of a second at each start of a query"
        )
    return sentences


def keep_loaded() -> None:
    """Exclude the loaded modules from the collector of cycles, once in each process.

    PySpark's daemon runs the collector after each task (`gc.collect()`), which takes a core for 45 ms with our modules
    and their dependencies, while the JVM commits the micro-batch. Loaded modules are never garbage.
    """
    _freeze(os.getpid())


@lru_cache(maxsize=1)
def _freeze(process: int) -> None:
    """Freeze once for each process: a forked one has another id than the cached one."""
    gc.freeze()
