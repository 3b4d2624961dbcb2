"""Rows of `content=reference`: each announced object is one row, from its snapshot. The object is never opened."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from queue_source.formats.metadata import ObjectMetadata
from shard_store.model import Content, Reference, time_of

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
