"""Snapshots as rows: which shards move from where to where, and what they are made of; up to 1,000 ranges a row.

Both are JSON, column by column, and kept apart: publishing and confirming need the moves only, and when the messages
were sent that announced them. Of the moves the first column is all keys as one hexadecimal text. A snapshot is kept
until no plan can need it again (decision 0032).
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import sqlalchemy as sa

from shard_store.model import Content, Move, Payload, PublishToken, Range, Reference, ShardKey, Snapshot
from shard_store.sql.database import ROWS_PER_STATEMENT, Transaction
from shard_store.sql.schema import snapshots

CHUNK_BYTES = 4 << 20
"""Of the contents in one chunk, about; one content that is larger has a chunk of its own."""
PIECE = 1 << 19
"""Characters of a chunk's contents in one row: MariaDB takes no more than 16 MB in a statement, unless it is set up to,
and what has to be escaped takes several bytes."""
_KEY = 32
_COLUMNS = ("shard_id", "uri", "size", "etag", "queue", "message_id", "receive_count", "group", "payload", "reference")
"""What a chunk has of its contents, in this order; the last one only where there are objects by reference."""


_THESE = sa.and_(
    snapshots.c.pipeline == sa.bindparam("of"),
    snapshots.c.seq > sa.bindparam("after"),
    snapshots.c.seq <= sa.bindparam("until"),
)
_MOVES = sa.select(snapshots.c.seq, snapshots.c.moves).where(_THESE).order_by(snapshots.c.seq, snapshots.c.chunk)
_CONTENTS, _SENT = _MOVES.add_columns(snapshots.c.contents), _MOVES.add_columns(snapshots.c.sent)
_GONE, _WITHOUT_CONTENTS = snapshots.delete().where(_THESE), snapshots.update().where(_THESE).values(contents="")


def write(transaction: Transaction, token: PublishToken, snapshot: Snapshot) -> None:
    """Insert the snapshot, a row for each piece of each chunk of its ranges; a chunk's first row has its moves."""
    fixed = {"pipeline": token.pipeline, "seq": snapshot.seq, "incarnation": token.incarnation}
    insert = snapshots.insert().values(**fixed, created_at=transaction.now())
    number = itertools.count()
    for chunk in _chunks(snapshot.ranges):
        keys = b"".join([r.key for r in chunk])
        moves = json.dumps([keys.hex(), [r.start for r in chunk], [r.end for r in chunk]], separators=(",", ":"))
        text = _contents_text([r.content for r in chunk])
        for start in range(0, len(text), PIECE):
            row = {"chunk": next(number), "moves": "" if start else moves, "contents": text[start : start + PIECE]}
            row["sent"] = None if start else _sent_text(chunk)
            transaction.execute(insert, [row])


def read(transaction: Transaction, pipeline: str, after: int, until: int) -> list[Snapshot]:
    """Return the snapshots with after < seq <= until, in order; those whose contents are forgotten are missing."""
    ranges_of: dict[int, list[Range]] = {}
    rows = transaction.execute(_CONTENTS, [{"of": pipeline, "after": after, "until": until}]).all()
    pieces, first = list[str](), ""
    for place, (seq, moves, contents) in enumerate(rows):
        first = moves or first
        pieces.append(contents)
        if place + 1 == len(rows) or rows[place + 1].moves:
            if text := "".join(pieces):  # else its contents are forgotten
                both = zip(_moves(first), _contents(text), strict=True)
                ranges = [Range(key, content, start, end) for (key, start, end), content in both]
                ranges_of.setdefault(seq, []).extend(ranges)
            pieces = []
    return [Snapshot(seq, tuple(ranges)) for seq, ranges in ranges_of.items()]


def read_moves(transaction: Transaction, pipeline: str, after: int, until: int) -> list[Move]:
    """Return what the snapshots that `read` returns move, one after the other, without their contents."""
    rows = transaction.execute(_MOVES, [{"of": pipeline, "after": after, "until": until}])
    return [move for _, text in rows if text for move in _moves(text)]


def read_planned(
    transaction: Transaction, pipeline: str, after: int, until: int
) -> tuple[list[Move], dict[ShardKey, int]]:
    """Return what `read_moves` does, and when the messages of these shards were sent (microseconds), if known."""
    moves: list[Move] = []
    sent: dict[ShardKey, int] = {}
    for _, text, times in transaction.execute(_SENT, [{"of": pipeline, "after": after, "until": until}]):
        row_moves = _moves(text) if text else []
        moves += row_moves
        if times:
            base, later = json.loads(times)
            both = zip(row_moves, later, strict=True)
            sent |= {move[0]: (base + ms) * 1000 for move, ms in both if ms is not None}
    return moves, sent


def forget(transaction: Transaction, pipeline: str, after: int, until: int, *, keep_moves: bool) -> None:
    """Remove the snapshots with after < seq <= until, which no plan needs again, or all of them but the moves."""
    gone = _WITHOUT_CONTENTS if keep_moves else _GONE
    transaction.execute(gone, [{"of": pipeline, "after": after, "until": until}])


def flatten(parts: Sequence[Snapshot]) -> list[Range]:
    """Return the ranges of the snapshots. What two of them begin with was opened again in between: the later counts."""
    ranges = [r for snapshot in parts for r in snapshot.ranges]
    return ranges if len(parts) < 2 else list({(r.key, r.start): r for r in ranges}.values())


def created_at(transaction: Transaction, pipeline: str, after: int, until: int) -> dict[int, int]:
    """Return when each snapshot with after < seq <= until was written, in microseconds by the database's clock."""
    times = sa.select(snapshots.c.seq, sa.func.min(snapshots.c.created_at)).where(_THESE).group_by(snapshots.c.seq)
    rows = transaction.execute(times, [{"of": pipeline, "after": after, "until": until}])
    return {seq: at for seq, at in rows}  # noqa: C416 - rows are no pairs to mypy


def as_kept(entry: Range) -> Range:
    """Return the range without what is for opening alone, and comes back from no snapshot."""
    return entry._replace(content=entry.content._replace(sequence=None, named=True, sent_at=None, announced=None))


def mark(entry: Range | Move) -> str:
    """Return the name of one range within the snapshots of a pipeline: a plan keeps the marks of what it leaves out."""
    return f"{entry.key.hex()}:{entry.start}"


def _chunks(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Yield at least one chunk, also of no ranges; a content that is larger than a chunk has one for itself."""
    chunk: list[Range] = []
    size = 0
    for entry in ranges:
        added = _size(entry.content)
        if chunk and (len(chunk) == ROWS_PER_STATEMENT or size + added > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += added
    if chunk or not ranges:
        yield chunk


def _size(content: Content) -> int:
    """Return about how many bytes its text takes: more than that, unless its names are full of control characters."""
    names = 4 * (len(content.shard_id) + len(content.uri) + len(content.message_id))
    payload, reference = content.payload, content.reference
    if reference is not None:
        names += 4 * (len(reference.version or "") + len(reference.tag or ""))
    if payload is None:
        return names
    headers = sum([len(name) + len(text) for name, text in payload.headers])
    return names + 4 * (headers + len(payload.key) + len(payload.tag)) + len(payload.value) * 4 // 3


def _sent_text(ranges: Sequence[Range]) -> str | None:
    """Return the first time in milliseconds, and how much later each is: short, since it is read by each publish."""
    times = [r.content.sent_at for r in ranges]
    if not (known_times := [time for time in times if time is not None]):
        return None
    base = min(known_times) // 1000
    later = [None if time is None else time // 1000 - base for time in times]
    return json.dumps([base, later], separators=(",", ":"))


def _moves(text: str) -> list[Move]:
    joined, starts, ends = json.loads(text)
    keys = bytes.fromhex(joined)
    return [
        Move(ShardKey(keys[place * _KEY : (place + 1) * _KEY]), start, end)
        for place, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _contents_text(contents: Sequence[Content]) -> str:
    """Return the contents as JSON, with any Unicode as it is: the column's type makes the database take it."""
    columns = [
        [c.shard_id for c in contents],
        [None if c.uri == c.shard_id else c.uri for c in contents],
        [c.size for c in contents],
        [c.etag for c in contents],
        [c.queue for c in contents],
        [c.message_id for c in contents],
        [c.receive_count for c in contents],
        [c.group for c in contents] if any(c.group is not None for c in contents) else None,
        None,
    ]
    if any(c.payload is not None for c in contents):
        payloads = [c.payload for c in contents]
        columns[-1] = [p and [base64.b64encode(p.value).decode("ascii"), *p[1:]] for p in payloads]
    if any(c.reference is not None for c in contents):
        columns.append([c.reference for c in contents])
    return json.dumps(columns, separators=(",", ":"), ensure_ascii=False)


def _contents(text: str) -> list[Content]:
    columns: dict[str, Any] = dict(zip(_COLUMNS, json.loads(text), strict=False))
    uris = zip(columns["shard_id"], columns["uri"], strict=True)
    columns["uri"] = [shard_id if uri is None else uri for shard_id, uri in uris]
    columns["group"] = columns["group"] or repeat(None)
    columns["payload"] = [
        p and Payload(base64.b64decode(p[0]), p[1], p[2], tuple((name, text) for name, text in p[3]), p[4])
        for p in columns["payload"] or [None] * len(columns["uri"])
    ]
    references = columns.pop("reference", None) or [None] * len(columns["shard_id"])
    return [
        content if fields is None else content._replace(reference=Reference(*fields))
        for content, fields in zip(map(Content, *columns.values()), references, strict=True)
    ]
