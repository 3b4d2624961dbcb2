"""Rows of `content=message`: each message is one row, as it came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.metadata import METADATA_COLUMN, ObjectMetadata, check_metadata_field, metadata_column
from shard_store.model import Payload

_ROWS = 1_000  # in an Arrow batch: messages may have 1 MB each

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
"""All columns of a message; a user's schema may leave some out, in any order, and add `_metadata`."""


def check_message_schema(schema: pa.Schema) -> None:
    """Refuse columns that a message does not have. Driver; raises OptionError naming the column."""
    check_metadata_field(schema)
    for field in schema:
        if field.name == METADATA_COLUMN:
            continue
        if field.name not in MESSAGE_SCHEMA.names:
            known = ", ".join(MESSAGE_SCHEMA.names)
            raise OptionError("schema", f"a message has no column {field.name!r}; its columns are {known}")
        own = MESSAGE_SCHEMA.field(field.name).type
        if not _same(field.type, own):
            raise OptionError("schema", f"column {field.name!r} of a message is {own}, not {field.type}")


def message_batches(messages: Sequence[tuple[Payload, ObjectMetadata]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One row a message, in their order. Executor worker; `schema` passed `check_message_schema`."""
    for start in range(0, len(messages), _ROWS):
        chunk = messages[start : start + _ROWS]
        yield pa.record_batch([_column(field, chunk) for field in schema], schema=schema)


def _column(field: pa.Field, messages: Sequence[tuple[Payload, ObjectMetadata]]) -> pa.Array:
    if field.name == METADATA_COLUMN:
        return metadata_column(field.type, [metadata for _, metadata in messages], len(messages))
    return pa.array([_value(field.name, payload, metadata) for payload, metadata in messages], field.type)


def _value(name: str, payload: Payload, metadata: ObjectMetadata) -> object:
    if name in ("queue", "receive_count"):
        return getattr(metadata, name)
    if name == "headers":
        return list(payload.headers)
    if name == "sent_at":
        return None if payload.sent_at is None else round(payload.sent_at * 1_000_000)
    return getattr(payload, name)


def _same(declared: pa.DataType, own: pa.DataType) -> bool:
    """Spark writes strings, binaries and maps in more than one Arrow form."""
    if pa.types.is_map(declared) and pa.types.is_map(own):
        return _same(declared.key_type, own.key_type) and _same(declared.item_type, own.item_type)
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary(), pa.int32(): pa.int64()}
    return bool(declared == own or declared == large.get(own))
