"""Snapshots as text: one JSON list a range, up to 1,000 ranges a row of the table."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store.database import chunks
from shard_store.model import Content, Payload, Position, PublishToken, Range, Snapshot, shard_key
from shard_store.schema import pack, snapshots, unpack


def encode(ranges: Iterable[Range]) -> str:
    """The ranges of one chunk; the key is left out, since source and id give it. ASCII, so any id fits anywhere."""
    return json.dumps(
        [
            [
                pack(r.content.shard_id),
                None if r.content.uri == r.content.shard_id else pack(r.content.uri),
                r.content.size,
                None if r.content.etag is None else pack(r.content.etag),
                pack(r.content.queue),
                pack(r.content.message_id),
                r.content.receive_count,
                r.start,
                r.end,
                *_more(r.content),
            ]
            for r in ranges
        ],
        separators=(",", ":"),
    )


def decode(source: str, text: str) -> list[Range]:
    ranges = []
    for packed, uri, size, etag, queue, message_id, receive_count, start, end, *more in json.loads(text):
        shard_id = unpack(packed)
        content = Content(
            shard_id,
            shard_id if uri is None else unpack(uri),
            size,
            None if etag is None else unpack(etag),
            unpack(queue),
            unpack(message_id),
            receive_count,
            *_content_of(*more),
        )
        ranges.append(Range(shard_key(source, shard_id), content, Position(start), Position(end)))
    return ranges


def _more(content: Content) -> list[object]:
    """What few contents have: an ordered group, and the message itself where that is the content."""
    if content.group is None and content.payload is None:
        return []
    group = None if content.group is None else pack(content.group)
    if (payload := content.payload) is None:
        return [group]
    headers = [(pack(name), pack(value)) for name, value in payload.headers]
    value = base64.b64encode(payload.value).decode("ascii")
    return [group, value, pack(payload.key), pack(payload.tag), headers, payload.sent_at]


def _content_of(group: str | None = None, value: str | None = None, *rest: Any) -> tuple[str | None, Payload | None]:
    plain = None if group is None else unpack(group)
    if value is None:
        return plain, None
    key, tag, headers, sent_at = rest
    named = tuple((unpack(name), unpack(text)) for name, text in headers)
    return plain, Payload(base64.b64decode(value), unpack(key), unpack(tag), named, sent_at)


def write(connection: Connection, token: PublishToken, snapshot: Snapshot, now: sa.ColumnElement[int]) -> None:
    """Insert the snapshot, a row for each 1,000 ranges."""
    rows = [
        {"chunk": number, "ranges": encode(chunk)}
        for number, chunk in enumerate(chunks(snapshot.ranges) if snapshot.ranges else [[]])
    ]
    fixed = {"pipeline": token.pipeline, "seq": snapshot.seq, "incarnation": token.incarnation, "created_at": now}
    connection.execute(snapshots.insert().values(**fixed), rows)


def read(connection: Connection, source: str, pipeline: str, after: int, until: int) -> list[Snapshot]:
    """The snapshots with after < seq <= until, in order; pruned ones are missing."""
    query = (
        sa.select(snapshots.c.seq, snapshots.c.ranges)
        .where(snapshots.c.pipeline == pipeline, snapshots.c.seq > after, snapshots.c.seq <= until)
        .order_by(snapshots.c.seq, snapshots.c.chunk)
    )
    found: dict[int, list[Range]] = {}
    for seq, text in connection.execute(query):
        found.setdefault(seq, []).extend(decode(source, text))
    return [Snapshot(seq, tuple(ranges)) for seq, ranges in found.items()]


def flatten(parts: Sequence[Snapshot]) -> list[Range]:
    return [r for snapshot in parts for r in snapshot.ranges]


def mark(entry: Range) -> str:
    """Names one range within the snapshots of a pipeline: a plan keeps the marks of what it leaves out."""
    return f"{entry.key.hex()}:{entry.start}"
