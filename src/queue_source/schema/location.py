"""`schemaLocation`: a folder with inferred schemas, `_schemas/VERSION-HASH.json`, never overwritten.

The store only has to write an object whole, and there may be several writers: a file's name identifies its content (the
hash is of its columns), so writing it twice is writing it once; and the kept columns are all columns of all versions,
each in its first type or in a wider one, so no driver removes what another added.

Columns that the stream's schema lacks (`schemaEvolutionMode`, as in Auto Loader) are noticed in executors: the reader
of an object raises `NewColumns`; the schema is widened and kept, and the query ends with `SchemaChanged`. Nothing of
the batch was published then: the same plan is read again with the wider schema.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
from pyarrow import fs as pafs

from queue_source.errors import BadObject, ObjectStoreError, OptionError, SchemaChanged
from queue_source.formats.base import OpenObject, format_of
from queue_source.formats.new_columns import NewColumns, no_data
from queue_source.formats.text.json_values import infer_records
from queue_source.options import ContentOptions
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.schema.columns import format_columns, merged, news, parse_columns, parse_fields, widened, with_hints
from queue_source.storage.fetching import LEAST, WHOLE, Fetcher, Requested
from queue_source.storage.files import resolve
from queue_source.storage.memory import BoundedMemory
from queue_source.storage.open_files import InMemory, ObjectFile, is_local
from shard_store.model import Content
from shard_store.redaction import redact_text

_FOLDER = "_schemas"
_NAME = re.compile(r"([0-9]{1,9})-[0-9a-f]{12}\.json")
_FORM = "cuesqueue schema 1"
_NAMED = 20  # columns in a message


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a location: the number of its newest version, the columns of all versions, those of the first."""

    version: int
    schema: pa.Schema
    first: pa.Schema


class SchemaLocation:
    """The versions of one location. Driver and executors all need access to it."""

    def __init__(self, uri: str, storage: StorageOptions) -> None:
        self._uri = uri
        self._folder = f"{uri}/{_FOLDER}"
        self._storage = storage

    def latest(self) -> Recorded | None:
        """Return the kept schema; None if there is none. Raises OptionError for a file without a schema."""
        filesystem, folder = resolve(self._folder, self._storage)
        with self._mapped(self._folder):
            try:
                infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
            except FileNotFoundError:  # another driver made it between pyarrow's two requests
                infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        numbers = {info.base_name: int(name[1]) for info in infos if (name := _NAME.fullmatch(info.base_name))}
        if not numbers:
            return None
        names = sorted(numbers, key=lambda name: (numbers[name], name))
        versions = []
        for name in names:
            with self._mapped(f"{self._folder}/{name}"), filesystem.open_input_stream(f"{folder}/{name}") as stream:
                data = stream.read()
            try:
                held = json.loads(data)
                if held["form"] != _FORM:
                    raise ValueError(f"it is of the form {held['form']!r}, and this version reads {_FORM!r}")
                versions.append(parse_columns(", ".join(held["columns"])))
            except (ValueError, KeyError, TypeError) as error:
                raise OptionError(
                    "schemaLocation",
                    f"{self._folder}/{name} holds no schema ({error}); remove it, or name another folder",
                ) from error
        return Recorded(numbers[names[-1]], reduce(partial(widened, types=True), versions), versions[0])

    def record(self, schema: pa.Schema, *, types: bool = False) -> Recorded:
        """Keep the columns that are not kept yet, in a next version; idempotent, and safe for any number of callers.

        `types`: whether to keep wider types, too.
        """
        latest = self.latest()
        if latest is not None:
            schema = widened(latest.schema, schema, types=types)
            if not news(latest.schema, schema):
                return latest
        version = 0 if latest is None else latest.version + 1
        columns = [format_columns([field]) for field in schema]
        text = json.dumps({"form": _FORM, "columns": columns}, ensure_ascii=False, indent=1)
        name = f"{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        filesystem, folder = resolve(self._folder, self._storage)
        with self._mapped(f"{self._folder}/{name}"):
            final = draft = f"{folder}/{name}"
            if is_local(self._folder):  # elsewhere an object exists only when it is complete
                filesystem.create_dir(folder, recursive=True)
                draft = f"{folder}/.{name}.{uuid.uuid4().hex}"
            with filesystem.open_output_stream(draft) as stream:
                stream.write(text.encode())
            if draft != final:
                filesystem.move(draft, final)
        return self.latest() or Recorded(version, schema, schema)

    @contextmanager
    def _mapped(self, uri: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            raise ObjectStoreError(
                f"schemaLocation: {uri!r} cannot be read or written: {redact_text(str(error))}"
            ) from None


def added(before: Recorded | None, after: Recorded | None) -> list[str]:
    """Return the columns that a location has got, with their types; where it was empty, since they were inferred."""
    if after is None:
        return []
    if before is not None:
        return news(before.schema, after.schema)
    return news(after.first if after.version else pa.schema([]), after.schema)


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
            f"objects have columns that the schema lacks: {listed(news(declared, wide))}; schemaEvolutionMode is "
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
    columns = noticed.found if noticed.record is None else infer_records([noticed.record])
    if columns is not None:
        wide = widened(wide, columns, no_data(format), types=types)
    wide = with_hints(wide, parse_fields(options.schema_hints), adds=True, wider=types)
    recorded = location.record(wide, types=types)
    names = news(declared, widened(declared, recorded.schema, no_data(format), types=types))
    return SchemaChanged(
        f"objects have columns that the schema of this stream lacks: {listed(names)}; version {recorded.version} in "
        f"schemaLocation {options.schema_location} has them: load and start the query again, and it goes on with them "
        "where it stopped; nothing of this micro-batch was published"
    )


def _new_columns(
    noticed: NewColumns, content: ContentOptions, format: FormatOptions, unread: Iterable[Content]
) -> pa.Schema:
    """Return the columns of the content with the new one, from a larger part of it and from unread contents."""
    textual = format_of(format).values_are_text
    samples, options = [], content.schema
    limit = max(1, options.schema_sample_bytes // options.schema_sample_files)
    sampled = infer_each([*itertools.islice(unread, options.schema_sample_files)], content, format, limit)
    samples += [sample for sample in sampled if isinstance(sample, pa.Schema)]  # reading reports bad ones
    if noticed.record is not None:
        samples.append(infer_records([dict(noticed.record)], types=content.schema.infer_column_types))
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


def infer_each(
    items: Sequence[Content], content: ContentOptions, format: FormatOptions, limit: int
) -> Iterator[pa.Schema | BadObject | ObjectStoreError | ValueError]:
    """Yield the columns of each object, or message, or the error for which there are none (as `Format.infer` says)."""
    types, of_format = content.schema.infer_column_types, format_of(format)
    memory = BoundedMemory(of_format.decode_memory(format))
    start, whole = (None, WHOLE) if of_format.has_footer else (0, min(max(limit, LEAST), WHOLE))
    named = [item for item in items if item.payload is None]
    requested = [Requested(item.uri, item.size, start, whole) for item in named]
    limits = {"requests": content.max_concurrent_requests, "ahead": content.read_ahead_bytes}
    with Fetcher(requested, content.storage, **limits) as fetcher:
        places = itertools.count()
        for item in items:
            try:
                if item.payload is not None:
                    body = item.payload.value
                    source = OpenObject(item.shard_id, ObjectFile(item.shard_id, InMemory(body)), len(body))
                    with memory:
                        yield of_format.infer(source, format, limit, types=types)
                    continue
                place = next(places)
                with fetcher.open(place) as file:
                    source = OpenObject(item.uri, file, file.size())
                    with memory:
                        columns = of_format.infer(source, format, limit, types=types)
                fetcher.leave([place])
                yield columns
            except (BadObject, ObjectStoreError, ValueError) as error:
                yield error


def listed(columns: Sequence[str]) -> str:
    """List columns in one line, whatever their names have in them; the first of many."""
    text = ", ".join(repr(column)[1:-1] for column in columns[:_NAMED])
    return text if len(columns) <= _NAMED else f"{text} and {len(columns) - _NAMED} more"
