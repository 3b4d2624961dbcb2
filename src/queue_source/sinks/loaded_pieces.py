"""Finds the pieces of a plan that the rows of a task name, and checks that each is loaded once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.base import may_be_cut
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.options import ContentOptions
from queue_source.read.fixed_rows import PARTS, names_parts
from queue_source.read.partitions import Piece
from shard_store.model import BEGINNING, Position, ShardKey, is_end, offset_of, position_at


class LoadedPiece(NamedTuple):
    """What a task has loaded: a range of its plan, by its place, or a part of one. `planned`: shard and whole range."""

    place: int
    start: Position
    end: Position
    uri: str
    planned: tuple[ShardKey, Position, Position]

    @classmethod
    def of(cls, piece: Piece) -> LoadedPiece:
        key, _, start, end = piece.planned[:4]
        return cls(piece.place, piece.start, piece.end, piece.content.uri, (key, start, end))


class _Named(NamedTuple):
    """An object, or a part of one, as a row names it. Of a part: its first byte, and how many it has."""

    uri: str
    etag: str | None
    size: int | None
    version: str | None
    start: int | None = None
    length: int | None = None


def chosen_pieces(planned: Sequence[Piece], rows: Iterable[pa.RecordBatch], options: ContentOptions) -> list[Piece]:
    """Return the pieces that the rows name, each once, in the order of the plan.

    Runs in an executor. Raises OptionError for rows that name something else: they were changed.
    """
    by_object: dict[tuple[str, str | None, int | None], list[Piece]] = {}
    for piece in planned:
        content = piece.content
        by_object.setdefault((content.uri, content.etag, content.size), []).append(piece)
    chosen: dict[tuple[int, Position], Piece] = {}
    for named in itertools.chain.from_iterable(map(_named, rows)):
        for piece in _matching(by_object.get((named.uri, named.etag, named.size), []), named):
            if not _is_all(piece) and not may_be_cut(piece.content.uri, options):
                raise OptionError(
                    "load",
                    f"reads objects such as {named.uri!r} as a whole by the options of this sink, and the reader has "
                    "cut this one into parts; give both the same options about formats",
                )
            chosen[piece.place, piece.start] = piece
    return [chosen[key] for key in sorted(chosen)]


def check_once(pieces: Iterable[LoadedPiece]) -> None:
    """Raise OptionError where two tasks have loaded the same: the query has repeated rows, and brought them apart."""
    for piece, following in itertools.pairwise(sorted(pieces)):
        if piece.place == following.place and following.start < piece.end:
            raise OptionError(
                "load",
                f"was given {piece.uri!r} by two tasks of a batch: a join, a union or a repartitioning has repeated "
                "its row; nothing of this batch is published: send the rows of the reader to the sink as they are, or "
                "filtered",
            )


def loaded_ranges(pieces: Iterable[LoadedPiece]) -> frozenset[tuple[ShardKey, Position]]:
    """Return the ranges of which the tasks have loaded all parts: the others are left out, at least in part."""
    until: dict[int, Position] = {}
    loaded = set[tuple[ShardKey, Position]]()
    for piece in sorted(pieces):
        key, start, end = piece.planned
        if piece.start == until.get(piece.place, start):
            until[piece.place] = piece.end
            if is_end(piece.end) or piece.end == end:
                loaded.add((key, start))
    return frozenset(loaded)


def _named(rows: pa.RecordBatch) -> Iterator[_Named]:
    columns = [rows.column(name).to_pylist() for name in ("uri", "etag", "size")]
    has_version = "version" in rows.schema.names
    columns.append(rows.column("version").to_pylist() if has_version else [None] * rows.num_rows)
    if names_parts(rows.schema):
        metadata = rows.column(METADATA_COLUMN)
        columns += [metadata.field(PARTS.field(place).name).to_pylist() for place in range(PARTS.num_fields)]
    for values in zip(*columns, strict=True):
        if values[0] is None:
            raise OptionError("load", "was given a row whose column 'uri' is null; leave such rows out of the query")
        yield _Named(*values)


def _matching(pieces: Sequence[Piece], named: _Named) -> list[Piece]:
    """Return the pieces of the object, or the part of one that the row names. Raises OptionError without any."""
    matching = list(pieces)
    if named.version is not None:  # where versions have numbers and no ETag
        matching = [p for p in pieces if p.content.reference is None or p.content.reference.version == named.version]
    if named.start is not None and named.length is not None:
        matching = [part for piece in matching if (part := _part(piece, named.start, named.length)) is not None]
    if not matching:
        raise OptionError(
            "load",
            f"was given {named.uri!r}, which is no object of this batch as it was announced: leave the columns uri, "
            "size, etag and _metadata of the rows as they are, and keep none of them for a later batch, as "
            "aggregations and joins of streams do",
        )
    return matching


def _part(piece: Piece, start: int, length: int) -> Piece | None:
    """Return the part of the piece; None where it is not within it."""
    first, end = offset_of(piece.start), offset_of(piece.end)
    if not (first <= start and start + length <= end):
        return None
    return piece._replace(
        start=piece.start if start == first else position_at(start),
        end=piece.end if start + length == end else position_at(start + length),
    )


def _is_all(piece: Piece) -> bool:
    return piece.start == BEGINNING and is_end(piece.end)
