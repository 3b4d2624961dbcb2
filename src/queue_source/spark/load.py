"""`cuesqueue.load`: a query that loads announced objects into files or a table; and what it would load."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from queue_source.common.local_paths import absolute_path
from queue_source.errors import OptionError, QueueNotFound, QueueUnavailable
from queue_source.formats.base import format_of
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.options import ReaderOptions, connection_options, parse_reader_options, parse_sink_options
from queue_source.options.content import (
    INFERRED_FORMATS,
    MOST_SAMPLES,
    ContentOptions,
    SchemaOptions,
)
from queue_source.options.declaring import options_of
from queue_source.options.places import ALIASES, READER, SINK, SPARK_OWN, nearest
from queue_source.options.sink import SinkOptions
from queue_source.queues import open_queue
from queue_source.queues.base import administered, transactional
from queue_source.schema.columns import format_columns, widened
from queue_source.schema.location import SchemaLocation
from queue_source.schema.sampling import (
    announced_contents,
    inferred_columns,
    named_samples,
    not_loaded,
    samples_of,
)
from queue_source.sinks.base import open_sink, open_target
from queue_source.spark.bytecode import archive_of, compile_archive
from queue_source.spark.java import require_java
from queue_source.spark.own_java import QUIET_SETTINGS, SETTINGS
from queue_source.spark.process import arrow_schema, driver_folder, is_remote
from queue_source.storage.files import check_place
from queue_source.storage.open_files import AZURE_SCHEMES, S3_SCHEMES, is_local
from shard_store.model import Content

if TYPE_CHECKING:
    from shard_store.store import ShardStore

_PARTS = f"{METADATA_COLUMN} STRUCT<file_block_start: BIGINT, file_block_length: BIGINT>"
_COLUMNS = f"uri STRING, size BIGINT, etag STRING, version STRING, {_PARTS}"
_DELTA = "delta:"
_CHECKPOINTS = "cuesqueue-checkpoints"
_SCHEMAS = "cuesqueue-schemas"


def load(
    queue: str | Sequence[str] | None,
    into: str,
    *,
    format: str,
    prefixes: str | Sequence[str],
    schema: str | StructType | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
    available_now: bool = True,
    **options: object,
) -> StreamingQuery:
    """Start a query that loads the objects that a queue announces into files or a table, each once.

    Args:
        queue: URL of the queue, or of several, as in the option `queueUrl`; None to list the prefixes alone.
        into: A folder for Parquet files (a path or a URI), an Iceberg table (`db.orders`), or a Delta table
            (`delta:s3://lake/orders`).
        format: Format of the objects, as in the option `fileFormat`.
        prefixes: Where the objects may be, as in the option `allowedPrefixes`.
        schema: Columns of the objects, as DDL or as Spark's; None: those of the table, or inferred ones, to which
            new ones are added.
        store: SQLAlchemy URL of the store; None: the file `cuesqueue.db` in Spark's working folder.
        spark: The session; None: the active one, or a new one on this machine.
        available_now: Load what is there and end; False: go on until the query is stopped.
        options: Options of reader and sink (names with a dot as `**{"aws.region": "eu-central-1"}`), and
            `checkpointLocation` and `queryName` of Spark. Without `checkpointLocation` there is one for each pipeline
            and store in `cuesqueue-checkpoints/` in Spark's working folder; a lost one makes nothing come twice. With
            Spark Connect it has to be named.

    Returns:
        The running query; with `available_now` wait for it with `awaitTermination()`.

    Raises:
        OptionError: An option is unknown, or contradicts another one; before anything is started.

    Process:
        The driver's script.
    """
    query = LoadQuery.of(queue, into, format, prefixes, schema, store, options)
    spark = spark or SparkSession.getActiveSession()
    if spark is None:
        require_java()
        spark = SparkSession.builder.master("local[*]").config(map=dict(SETTINGS)).getOrCreate()
    return query.start(spark, available_now=available_now)


@dataclass(frozen=True, slots=True)
class LoadQuery:
    """What a call of `load` asks for: the options of its reader, of its sink, and of Spark, known to be right."""

    queue: str | None
    into: str
    pipeline: str
    reading: dict[str, str]
    writing: dict[str, str]
    of_spark: dict[str, str]

    @classmethod
    def of(
        cls,
        queue: str | Sequence[str] | None,
        into: str,
        format: str,
        prefixes: str | Sequence[str],
        schema: str | StructType | None,
        store: str | None,
        options: Mapping[str, object],
    ) -> LoadQuery:
        """Divide the arguments of `load` by where they act. Raises OptionError for wrong ones; starts nothing."""
        reading = {"content": "reference", "fileFormat": format, "allowedPrefixes": _listed(prefixes)}
        writing = {"load": format}
        if into.startswith(_DELTA):
            writing["delta"] = into.removeprefix(_DELTA)
        else:
            writing["path" if "/" in into or "\\" in into else "table"] = into
        of_spark: dict[str, str] = {}
        aliases = {alias.lower(): own.lower() for alias, own in ALIASES.items()}
        urls = None if queue is None else _listed(queue)
        if urls is None:
            reading["backfillPrefixes"] = reading["allowedPrefixes"]
        else:
            reading["queueUrl"] = urls
        if store is not None:
            reading["storeUrl"] = writing["storeUrl"] = store
        if schema is not None:
            writing["schema"] = schema if isinstance(schema, str) else format_columns(arrow_schema(schema))
        for name, value in options.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if own := next((own for own in SPARK_OWN if own.lower() == name.lower()), None):
                of_spark[own] = text
                continue
            acts_as = aliases.get(name.lower(), name.lower()).removeprefix("cloudfiles.")
            places = [place for place in (READER, SINK) if any(o.name.lower() == acts_as for o in place.options)]
            if acts_as.startswith("catalog.") or acts_as in _AT_THE_SINK:
                places = [SINK]
            elif acts_as in _ONLY_READER:
                places = [READER]
            if not places:
                raise OptionError(name, f"is unknown to load; {nearest(name, (*READER.options, *SINK.options))}")
            for place in places:
                (reading if place is READER else writing)[name] = text
        pipeline = writing["pipeline"] = parse_reader_options(reading).pipeline
        is_said = {name.lower() for name in writing} & {"schemalocation", "schema"}
        if not is_said and format in INFERRED_FORMATS:
            own = f"{_SCHEMAS}/{pipeline}"
            is_there = Path(own).exists()  # of an earlier run, whatever is named now
            writing["schemaLocation"] = own if is_there else _beside(of_spark.get("checkpointLocation"), own)
            query = cls(urls, into, pipeline, reading, writing, of_spark)
            if "path" in writing or query.content.schema.adds_columns:
                return query
            del writing["schemaLocation"]  # the table itself keeps them
        parse_sink_options(writing)
        return cls(urls, into, pipeline, reading, writing, of_spark)

    @property
    def content(self) -> ContentOptions:
        """How the objects are read."""
        load = parse_sink_options(self.writing).load
        assert load is not None
        return load.content

    def sampling_more(self) -> LoadQuery:
        """Return the query with twice the sample of objects with new columns: so each start brings more of them.

        Else an object of which each record has another new column, or a folder of which each file has, would take a
        start for each.
        """
        format, schema = self.content.format, self.content.schema
        assert format is not None
        option, size = "schemaSampleFiles", min(2 * schema.schema_sample_files, MOST_SAMPLES)
        if format.is_of_records:
            option, size = "schemaSampleBytes", 2 * schema.schema_sample_bytes
        others = {name: text for name, text in self.writing.items() if not name.lower().endswith(option.lower())}
        return replace(self, writing={**others, option: str(size)})

    def start(self, spark: SparkSession, *, available_now: bool) -> StreamingQuery:
        """Start the query. What it keeps beside the store is in Spark's working folder, unless options say more.

        Raises OptionError where options have to say more: the folder of a server of Spark Connect is not known here.
        """
        folder, writing, own = Path(driver_folder()), dict(self.writing), f"{_SCHEMAS}/{self.pipeline}"
        if is_remote(spark):  # folders of a machine that is perhaps not this one are not chosen here
            missing = [] if "checkpointLocation" in self.of_spark else ["checkpointLocation"]
            if writing.get("schemaLocation") == own:
                writing["schemaLocation"] = _beside(self.of_spark.get("checkpointLocation"), own)
                missing += ["schemaLocation"] if writing["schemaLocation"] == own else []
            if missing:
                raise OptionError(
                    missing[0],
                    "is needed with Spark Connect, whose server is perhaps another machine; write "
                    f"load(..., {missing[0]}='s3a://lake/checkpoints/orders'), or any absolute path or URI of the "
                    "server",
                )
        if writing.get("schemaLocation") == own:  # ours; another one may be a URI
            writing["schemaLocation"] = str(folder / own)
        # the shown URL: it has no password, which may change
        of_store = hashlib.sha256(str(parse_sink_options(writing).store).encode()).hexdigest()[:8]
        checkpoint = (folder / _CHECKPOINTS / f"{self.pipeline}-{of_store}").as_uri()
        rows = spark.readStream.format("cuesqueue").schema(_COLUMNS).options(**self.reading).load()
        of_spark = {"checkpointLocation": checkpoint, **self.of_spark}
        writer = rows.writeStream.format("cuesqueue").options(**writing, **of_spark)
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()


JAVA_GONE = (Py4JNetworkError, ConnectionError)
"""What a call to a session raises whose Java process has ended."""


def quiet_session(master: str) -> SparkSession:
    """Return a session of its own, which logs nothing: what ends a query is in its exception."""
    builder = SparkSession.builder.master(master).config(map=dict(QUIET_SETTINGS))
    if master.startswith("local"):  # the workers are on this machine, where `python3` may be another Python
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # bytecode beside sources, as Python itself writes it; who may not, is advised by the log
        archive = archive_of(os.environ.get("SPARK_HOME"))
        with suppress(OSError):
            if archive is not None and not sys.dont_write_bytecode:
                compile_archive(archive)
    return builder.getOrCreate()


_AT_THE_SINK = {option.name.lower() for option in options_of(ContentOptions, SchemaOptions)}
"""Options of the reader that act where the objects are read."""
_ONLY_READER = {"queueurl", "queueshares"}


def _beside(checkpoint: str | None, otherwise: str) -> str:
    """Return the checkpoint's folder, to keep columns in, where it can be reached without Spark: it is one that stays.

    Spark leaves alone what else is in it.
    """
    scheme, colon, _ = (checkpoint or ":").partition(":")
    is_ours = not colon or scheme.lower() in ("file", "gs", *S3_SCHEMES, *AZURE_SCHEMES)
    return checkpoint if checkpoint and is_ours else otherwise


def _listed(texts: str | Sequence[str]) -> str:
    return texts if isinstance(texts, str) else ",".join(texts)


_SHOWN = 10
_A_MOMENT = 2.0  # seconds


def check(query: LoadQuery, store: ShardStore) -> None:
    """Raise what would surely end the query, before a session of Spark is started: it takes longer than all else.

    A queue that does not answer is left to the query, which waits for it.

    Raises:
        OptionError: A package is not installed, or a place cannot be written to.
        QueueConfigurationError: A queue is not there, or refuses us.
    """
    reader, writing = parse_reader_options(query.reading), parse_sink_options(query.writing)
    sink = open_sink(writing)
    if writing.load is not None and writing.load.content.format is not None:
        format_of(writing.load.content.format).require_installed()
    sink.check_target(store)
    location = query.content.schema.schema_location
    checkpoint = query.of_spark.get("checkpointLocation", _CHECKPOINTS)
    if _beside(checkpoint, "") and is_local(place := absolute_path(checkpoint)):  # Spark reaches others by its own ways
        check_place("checkpointLocation", place, writing.storage)
    if location is not None:
        check_place("schemaLocation", location, writing.storage)
    _waiting(reader)


def preview(query: LoadQuery) -> dict[str, Any]:
    """Return what would be loaded, without a session of Spark. Nothing is acknowledged, and nothing is written."""
    reader, sink = parse_reader_options(query.reading), parse_sink_options(query.writing)
    assert sink.load is not None
    problems: list[str] = []
    waiting = None if query.queue is None else _waiting(reader)
    most = max(_SHOWN, sink.load.content.schema.schema_sample_files)
    # a depth may be out of date
    announced = announced_contents(reader, most, problems, _A_MOMENT if waiting == 0 else math.inf)
    return {
        "pipeline": reader.pipeline,
        "into": query.into,
        **({} if query.queue is None else {"messages_waiting": waiting}),
        "next_objects": [content.uri for content in not_loaded(reader, announced, _SHOWN, problems)],
        "columns": _columns(sink, list(samples_of(reader, problems, announced)), problems),
        "problems": problems,
    }


def _waiting(reader: ReaderOptions) -> int | None:
    """Return how many messages wait; None where a queue does not say so. Asks each queue, also after such a one."""
    depths: list[int | None] = []
    for url in reader.queue.urls:
        with open_queue(url.reveal(), **connection_options(url, reader.queue)) as queue:
            manager = administered(queue) if transactional(queue) else None
            try:
                if manager is not None and not manager.exists():  # a queue in SQL would be made by looking at it
                    raise QueueNotFound(queue.name, "it does not exist; send to it, or correct its URL")
                depths.append(queue.depth().ready if queue.capabilities.reports_depth else None)
            except QueueUnavailable:
                depths.append(None)
    return sum(depth for depth in depths if depth is not None) if depths and None not in depths else None


def _columns(sink: SinkOptions, samples: list[Content], problems: list[str]) -> str:
    """Return the columns that the first batch would have, as DDL."""
    load = sink.load
    assert load is not None
    content = load.content
    assert content.format is not None
    if load.columns is not None:
        return load.columns
    fixed, location = format_of(content.format).fixed_schema, content.schema.schema_location
    kept = None if location is None else SchemaLocation(location, content.storage).latest()
    columns, own = fixed if kept is None else kept.schema, None
    if fixed is None:  # those of the table, if there is one; a store is not made for that
        from shard_store.errors import StoreConfigurationError
        from shard_store.store import open_store

        with suppress(StoreConfigurationError), open_store(sink.store.reveal(), create=False) as store:
            own = open_target(sink).own_columns(store)
    if own is not None and (location is None or not samples):
        columns = own if columns is None else columns
    if columns is None:

        def nothing(tried: str) -> OptionError:
            return OptionError(
                "schema",
                f"is needed: no object is announced or listed to infer the columns from{tried}; "
                "announce one (cuesqueue send), or write --schema 'id BIGINT, ...'",
            )

        columns = inferred_columns(content, named_samples(content.schema) or samples, problems, nothing)
    return format_columns(columns if own is None else widened(own, columns))
