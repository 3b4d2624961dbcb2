"""Many small objects, or the bodies of many messages, read as one block: opening a parser costs more than parsing each.

Only faultless rows are returned here. Where the block as a whole is not read quickly (a bad record, a missing or
replaced object, a compressed one, another header), it is cut until the unusual objects are alone; `read_object` reads
those, and reports the fault and its object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.formats.base import BadRecords, data_schema, format_of, halves, neighbours, read_in_pieces
from queue_source.formats.compression import codec_of
from queue_source.formats.metadata import METADATA_COLUMN, ObjectMetadata, metadata_column
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text.blocks import BOM
from queue_source.formats.text.records import has_empty_row
from queue_source.options.content import FormatOptions
from queue_source.read.objects import ExpectedObject, Opener, check_unchanged
from queue_source.storage.memory import BoundedMemory
from shard_store.model import Payload

SMALL = 256 << 10
"""Bytes of the largest object that is read together with others."""
TOGETHER = 4 << 20
"""Bytes of the objects that are held and read at once."""

Content = tuple[int, bytes | None]
"""The place of an object among those that are read, and its text; None where it is not plain text."""


def may_be_joined(schema: pa.Schema, options: FormatOptions) -> bool:
    """Tell whether rows of several objects may be read at once: no column depends on the object of a row."""
    return format_of(options).combines(options) and len(data_schema(schema, options)) == len(schema)


def read_together(
    objects: Sequence[ExpectedObject], openers: Sequence[Opener], schema: pa.Schema, options: FormatOptions
) -> Iterator[pa.Table | int]:
    """Yield, in the order of `objects`, the rows of some of them, or the place of one that has to be read alone.

    Runs in an executor worker. Raises nothing of its own: a refused object is requested again when it is read alone.
    """
    contents = [_content(expected, opener) for expected, opener in zip(objects, openers, strict=True)]
    format = format_of(options)
    numbered: Sequence[Content] = list(enumerate(contents))

    def read(some: Sequence[Content]) -> pa.Table | None:
        bodies = [data for _, data in some if data is not None]
        if len(bodies) < len(some) or (len(some) == 1 and bodies[0] and not format.combines_alone):
            return None
        try:
            with BoundedMemory(format.decode_memory(options)):
                return format.combine(bodies, schema, options)
        except BadObject:  # one of them is too large, or all together are
            return None

    yield from read_in_pieces(numbered, read, halves, lambda alone: (place for place, _ in alone))


def _content(expected: ExpectedObject, opener: Opener) -> bytes | None:
    """Read all of an object as it is stored; None when it is not plain text as announced, or was replaced."""
    try:
        with opener() as file:
            uri, size = file.uri, file.size()
            check_unchanged(uri, file, expected)
            data = file.read(size) if size <= SMALL else b""
            if not file.version.is_pinned and not file.is_same():
                return None
    except (BadObject, ObjectStoreError):
        return None
    if len(data) != size or codec_of(uri, data) is not None:
        return None
    return data.removeprefix(BOM)


MESSAGES_TOGETHER = 16 << 20
"""Bytes of bodies that are parsed at once."""
_ROWS = 65_536
_ALONE = 16  # bodies that are not worth another try together

Message = tuple[Payload, ObjectMetadata]
Numbered = tuple[int, Message]
"""A message and its place."""
Finished = Callable[[int, BadRecords, BadObject | None], None]
"""Called for every message (by its place) with bad records in it, or that is bad as a whole."""


def parsed_messages(
    messages: Sequence[Message], schema: pa.Schema, options: FormatOptions, finished: Finished
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all messages, in their order, in batches of exactly `schema`. Runs in an executor worker.

    No row of a message that is bad as a whole is returned. Raises what `finished` raises, and NewColumns.
    """
    reader = _Bodies(schema, options, finished)
    sized = [((place, message), len(message[0].value)) for place, message in enumerate(messages)]
    for numbered in neighbours(sized, MESSAGES_TOGETHER, _ROWS):
        for batches in read_in_pieces(
            numbered, reader.together, lambda some: halves(some) if len(some) > _ALONE else [some], reader.one_by_one
        ):
            yield from batches


@dataclass(slots=True)
class _Bodies:
    schema: pa.Schema
    options: FormatOptions
    finished: Finished

    def together(self, numbered: Sequence[Numbered]) -> Iterator[pa.RecordBatch] | None:
        """Read the bodies as one text, a row a message; None where that is impossible."""
        if len(numbered) <= _ALONE:
            return None
        format = format_of(self.options)
        reader = format.line_reader(data_schema(self.schema, self.options), self.options)
        if reader is None or reader.only_slowly:
            return None
        lines = [line for _, (payload, _) in numbered if (line := format.body_as_line(payload.value)) is not None]
        if len(lines) < len(numbered):
            return None
        try:
            with BoundedMemory(format.decode_memory(self.options)):
                table = reader.read_quickly(b"\n".join(lines))
        except BadObject:  # one of them is too large, or all together are
            return None
        if table is None or table.num_rows != len(numbered) or has_empty_row(table):
            return None
        return self._batches(table, [metadata for _, (_, metadata) in numbered])

    def one_by_one(self, numbered: Sequence[Numbered]) -> Iterator[Iterator[pa.RecordBatch]]:
        return (self._alone(message, place) for place, message in numbered)

    def _alone(self, message: Message, place: int) -> Iterator[pa.RecordBatch]:
        payload, metadata = message
        problems = BadRecords(self.options.mode, of_message=True)
        try:
            schema = data_schema(self.schema, self.options)
            format = format_of(self.options)
            with BoundedMemory(format.decode_memory(self.options)):
                tables = list(format.read_body(payload.value, schema, self.options, problems)) if payload.value else []
        except NewColumns as noticed:
            noticed.where = metadata.shard_id
            raise
        except BadObject as error:
            self.finished(place, problems, error)
            return
        if problems.count:
            self.finished(place, problems, None)
        for table in tables:
            yield from self._batches(table, [metadata])

    def _batches(self, table: pa.Table, metadata: Sequence[ObjectMetadata]) -> Iterator[pa.RecordBatch]:
        """Yield the declared columns; `metadata` is that of each row, or one for all of them."""
        if METADATA_COLUMN in self.schema.names:
            place = self.schema.get_field_index(METADATA_COLUMN)
            kind = self.schema.field(place).type
            table = table.add_column(
                place, self.schema.field(place), pa.chunked_array([metadata_column(kind, metadata, table.num_rows)])
            )
        for batch in table.to_batches(max_chunksize=_ROWS):
            if batch.num_rows:
                yield batch
