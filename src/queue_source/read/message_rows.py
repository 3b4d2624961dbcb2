"""Rows of `content=message`: each message is one row, unchanged."""

from __future__ import annotations

import pyarrow as pa

from shard_store.model import Content, Payload

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
