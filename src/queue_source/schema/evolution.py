"""Handles columns that the stream's schema lacks (`schemaEvolutionMode`, as in Auto Loader). Runs in executors.

The reader of an object with new columns raises `NewColumns`; here the schema is widened and kept, and the query ends
with `SchemaChanged`. Nothing of the batch was published then: the same plan is read again with the wider schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from queue_source.errors import BadObject, ObjectStoreError, SchemaChanged
from queue_source.formats.base import OpenObject, format_of
from queue_source.formats.new_columns import NewColumns, no_data
from queue_source.formats.text.json_values import infer_record, infer_records
from queue_source.options import ContentOptions
from queue_source.options.content import FormatOptions
from queue_source.schema.ddl import parse_fields
from queue_source.schema.location import SchemaLocation
from queue_source.schema.merging import merged, news, widened, with_hints
from queue_source.storage.files import ObjectFile, open_object
from queue_source.storage.memory import BoundedMemory
from queue_source.storage.open_files import InMemory
from shard_store.model import Content

_NAMED = 20  # columns in a message


def schema_changed(
    noticed: NewColumns, schema: pa.Schema, content: ContentOptions, contents: Sequence[Content]
) -> SchemaChanged:
    """Return the error that ends the query; where the mode adds columns, once the wider schema is kept.

    `contents` is all that the task reads: sampled within the limits, the one with the new column first, so that one
    restart brings more than one new column. May run many times, in many tasks: it only adds columns.
    """
    format = content.format
    assert format is not None
    declared = pa.schema([field for field in schema if field.name != format.rescued_data_column])
    options = content.schema
    if not options.adds_columns:
        wide = widened(declared, _new_columns(noticed, content, format, []), no_data(format))
        return SchemaChanged(
            f"objects have columns that the schema lacks: {_listed(news(declared, wide))}; schemaEvolutionMode is "
            "failOnNewColumns: add them to the schema, or remove the objects, and start the query again"
        )
    assert options.schema_location is not None
    location = SchemaLocation(options.schema_location, content.storage)
    kept = location.latest()
    base = declared if kept is None else kept.schema
    contents = sorted(
        contents, key=lambda content_of_task: noticed.where not in (content_of_task.uri, content_of_task.shard_id)
    )
    types = options.widens_types
    wide = widened(base, _new_columns(noticed, content, format, contents), no_data(format), types=types)
    # whatever the samples have, and whether they have types, the next start has room for what was noticed
    columns = noticed.found if noticed.record is None else infer_record(noticed.record)
    if columns is not None:
        wide = widened(wide, columns, no_data(format), types=types)
    wide = with_hints(wide, parse_fields(options.schema_hints), adds=True, wider=types)
    recorded = location.record(wide, types=types)
    names = news(declared, widened(declared, recorded.schema, no_data(format), types=types))
    return SchemaChanged(
        f"objects have columns that the schema of this stream lacks: {_listed(names)}; version {recorded.version} in "
        f"schemaLocation {options.schema_location} has them: load and start the query again, and it goes on with them "
        "where it stopped; nothing of this micro-batch was published"
    )


def _new_columns(
    noticed: NewColumns, content: ContentOptions, format: FormatOptions, unread: Iterable[Content]
) -> pa.Schema:
    """Return the columns of the content with the new one, from a larger part of it and from unread contents."""
    textual = format_of(format).values_are_text
    samples = list(_samples(unread, content, format))
    if noticed.record is not None:
        samples.append(_noticed_columns(noticed, content))
    elif noticed.found is not None:
        names = {name for sample in samples for name in sample.names}
        # a header has only names: the types are those of the samples
        samples.append(pa.schema([field for field in noticed.found if not textual or field.name not in names]))
    if textual:
        return merged(samples, textual=True)
    wide = pa.schema([])
    for sample in samples:  # of types that differ between files, the first
        wide = widened(wide, sample)
    return wide


def _noticed_columns(noticed: NewColumns, content: ContentOptions) -> pa.Schema:
    """Return the columns of the file, or of the record, that was noticed."""
    if noticed.record is not None:
        return infer_records([dict(noticed.record)], types=content.schema.infer_column_types)
    return pa.schema([]) if noticed.found is None else noticed.found


def _samples(unread: Iterable[Content], content: ContentOptions, format: FormatOptions) -> Iterator[pa.Schema]:
    options = content.schema
    limit = max(1, options.schema_sample_bytes // options.schema_sample_files)
    for _, item in zip(range(options.schema_sample_files), unread, strict=False):
        with suppress(BadObject, ObjectStoreError, ValueError):  # reported when it is read, at the next start
            yield infer_content(item, content, format, limit)


def infer_content(item: Content, content: ContentOptions, format: FormatOptions, limit: int) -> pa.Schema:
    """Infer the columns of an object, or of a message. Raises as `Format.infer`."""
    types = content.schema.infer_column_types
    of_format = format_of(format)
    memory = BoundedMemory(of_format.decode_memory(format))
    if item.payload is not None:
        value = item.payload.value
        body = OpenObject(item.shard_id, ObjectFile(item.shard_id, InMemory(value)), len(value))
        with memory:
            return of_format.infer(body, format, limit, types=types)
    with open_object(item.uri, content.storage) as file:
        source = OpenObject(item.uri, file, file.size())
        with memory:
            return of_format.infer(source, format, limit, types=types)


def _listed(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:_NAMED])
    return listed if len(names) <= _NAMED else f"{listed} and {len(names) - _NAMED} more"
