"""Rows with fixed columns, for which no object is read: messages as they are, and objects by reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.metadata import METADATA_COLUMN, ObjectMetadata, check_metadata_field, metadata_column
from queue_source.options import ContentOptions
from shard_store.model import Content, Payload, Reference, time_of

MESSAGE_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("queue", pa.string()),
        ("sent_at", pa.timestamp("us", tz="UTC")),
        ("receive_count", pa.int32()),
    ]
)


def message_value(name: str, content: Content) -> object:
    """Return the value of a column of a message, whose body came with the plan."""
    payload = content.payload or Payload(b"", "")
    if name in ("queue", "receive_count"):
        return getattr(content, name)
    if name == "headers":
        return list(payload.headers)
    if name == "sent_at":
        return None if payload.sent_at is None else round(payload.sent_at * 1_000_000)
    return getattr(payload, name)


REFERENCE_SCHEMA = pa.schema(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("version", pa.string()),
        ("last_modified", pa.timestamp("us", tz="UTC")),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("queue", pa.string()),
        ("message_id", pa.string()),
        ("tag", pa.string()),
        ("receive_count", pa.int32()),
    ]
)
_ANNOUNCED = {"version": "version", "last_modified": "modified", "event_time": "event_time", "tag": "tag"}
_NOTHING = Reference()  # of objects announced while their content was still read


def reference_value(name: str, content: Content) -> object:
    """Return the value of a column of an object; null if it was unknown when the object was announced."""
    if name in _ANNOUNCED:
        return getattr(content.reference or _NOTHING, _ANNOUNCED[name])
    return getattr(content, name)


def as_file(content: Content, metadata: ObjectMetadata) -> ObjectMetadata:
    """Return the metadata of a row with the facts about its object as a file."""
    modified = (content.reference or _NOTHING).modified
    return replace(
        metadata,
        file_path=content.uri,
        file_name=content.uri.rpartition("/")[2],
        file_size=content.size,
        file_modification_time=None if modified is None else time_of(modified),
    )


_ROWS = 1_000  # in an Arrow batch: messages may have 1 MB each

Row = tuple[Content, ObjectMetadata]


@dataclass(frozen=True, slots=True)
class FixedRows:
    """Rows of one kind.

    Attributes:
        subject: What a row is, in errors.
        schema: All columns; a user's schema may leave some out, in any order, and add `_metadata`.
        value: The value of the column of this name.
        metadata: Adds the facts about the content to those about its message.
    """

    subject: str
    schema: pa.Schema
    value: Callable[[str, Content], object]
    metadata: Callable[[Content, ObjectMetadata], ObjectMetadata]

    def check(self, declared: pa.Schema) -> None:
        """Refuse columns that do not exist. Runs in the driver; raises OptionError with the column."""
        check_metadata_field(declared)
        for field in declared:
            if field.name == METADATA_COLUMN:
                continue
            if field.name not in self.schema.names:
                columns = ", ".join(self.schema.names)
                raise OptionError("schema", f"{self.subject} has no column {field.name!r}; its columns are {columns}")
            own = self.schema.field(field.name).type
            if not _same(field.type, own):
                raise OptionError("schema", f"column {field.name!r} of {self.subject} is {own}, not {field.type}")

    def batches(self, rows: Sequence[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield one row for each content, in their order.

        Runs in an executor worker; `schema` passed `check`, and the contents `check_begun`.
        """
        for start in range(0, len(rows), _ROWS):
            chunk = rows[start : start + _ROWS]
            columns = [
                metadata_column(field.type, [self.metadata(*row) for row in chunk], len(chunk))
                if field.name == METADATA_COLUMN
                else pa.array([self.value(field.name, content) for content, _ in chunk], field.type)
                for field in schema
            ]
            yield pa.record_batch(columns, schema=schema)


PARTS = pa.struct([("file_block_start", pa.int64()), ("file_block_length", pa.int64())])
"""The fields of `_metadata` by which a row names a part of an object, for a sink that loads it."""

_MESSAGES = FixedRows("a message", MESSAGE_SCHEMA, message_value, metadata=lambda _, metadata: metadata)
_REFERENCES = FixedRows("an object by reference", REFERENCE_SCHEMA, reference_value, metadata=as_file)


def fixed_rows(content: ContentOptions) -> FixedRows | None:
    """Return the rows where no object is read; None where a format defines them."""
    if not content.kind.is_read:
        return _REFERENCES
    return _MESSAGES if content.format is None else None


def default_columns(content: ContentOptions) -> pa.Schema | None:
    """Return the columns where the user declares none; None where a format defines them.

    References whose format is known have their parts: a sink may load a large object in several tasks.
    """
    if (fixed := fixed_rows(content)) is None:
        return None
    if content.kind.is_read or content.format is None:
        return fixed.schema
    return fixed.schema.append(pa.field(METADATA_COLUMN, PARTS))


def names_parts(declared: pa.Schema) -> bool:
    """Tell whether rows with these columns name the part of an object that they stand for."""
    if METADATA_COLUMN not in declared.names:
        return False
    kind = declared.field(METADATA_COLUMN).type
    if not pa.types.is_struct(kind):
        return False
    return all(kind.get_field_index(field.name) >= 0 and kind.field(field.name).type == field.type for field in PARTS)


def check_begun(options: ContentOptions, contents: Iterable[Content]) -> None:
    """Raise OptionError for a message where objects are announced, and for an object where messages are the content.

    The start of a reader refuses its own; those taken over from other pipelines are refused here.
    """
    is_announced = options.kind.is_announced
    if other := next((content for content in contents if (content.payload is None) is not is_announced), None):
        raise OptionError(
            "content",
            f"was another one than {options.content} when {other.shard_id[:300]!r} was announced; run the query as it "
            "was until nothing is left (trigger availableNow), or give the new one another 'pipeline'",
        )


def _same(declared: pa.DataType, own: pa.DataType) -> bool:
    """Tell whether the types are the same for Spark, which writes strings, binaries and maps in several Arrow forms."""
    if pa.types.is_map(declared) and pa.types.is_map(own):
        return _same(declared.key_type, own.key_type) and _same(declared.item_type, own.item_type)
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary(), pa.int32(): pa.int64()}
    return bool(declared == own or declared == large.get(own))
