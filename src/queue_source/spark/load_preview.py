"""What `cuesqueue load --dry-run` says: the objects that come next, and the columns that they would be loaded with."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from queue_source.errors import OptionError, QueueError
from queue_source.formats.base import format_of
from queue_source.options import connection_options, parse_reader_options, parse_sink_options
from queue_source.options.sink import SinkOptions
from queue_source.queues import open_queue
from queue_source.schema.ddl import format_columns
from queue_source.schema.location import SchemaLocation
from queue_source.schema.sampling import inferred_columns, named_samples, samples_of
from queue_source.sinks.base import open_target
from queue_source.spark.load import LoadQuery
from shard_store.model import Content

_SHOWN = 10


def preview(query: LoadQuery) -> dict[str, Any]:
    """Return what would be loaded, without a session of Spark. Nothing is acknowledged, and nothing is written."""
    reader, sink = parse_reader_options(query.reading), parse_sink_options(query.writing)
    assert sink.load is not None
    problems: list[str] = []
    samples = list(samples_of(reader, problems))
    return {
        "pipeline": reader.pipeline,
        "into": query.into,
        **({} if query.queue is None else {"messages_waiting": _waiting(reader)}),
        "next_objects": [content.uri for content in samples[:_SHOWN]],
        "columns": _columns(sink, samples, problems),
        "problems": problems,
    }


def _waiting(reader: Any) -> int | None:
    """Return how many messages wait; None where no queue says so."""
    depths = []
    for url in reader.queue.urls:
        with open_queue(url.reveal(), **connection_options(url, reader.queue)) as queue:
            if not queue.capabilities.reports_depth:
                return None
            try:
                depths.append(queue.depth().ready)
            except QueueError:
                return None
    return sum(depths) if depths else None


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
    columns = fixed if kept is None else kept.schema
    if columns is None and location is None:
        columns = _of_table(sink)
    if columns is None:
        columns = inferred_columns(content, named_samples(content.schema) or samples, problems, _nothing)
    return format_columns(columns)


def _of_table(sink: SinkOptions) -> pa.Schema | None:
    """Return the columns of the table, if there is one; a store that does not exist is not made."""
    from shard_store.errors import StoreConfigurationError
    from shard_store.store import open_store

    try:
        with open_store(sink.store.reveal(), create=False) as store:
            return open_target(sink).own_columns(store)
    except StoreConfigurationError:
        return None


def _nothing(tried: str) -> OptionError:
    return OptionError(
        "schema",
        f"is needed: no object is announced or listed to infer the columns from{tried}; "
        "announce one (cuesqueue send), or write --schema 'id BIGINT, ...'",
    )
