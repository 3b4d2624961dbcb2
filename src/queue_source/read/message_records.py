"""Messages that hold records: their bodies are read as objects of `fileFormat` would be (`content=message`).

Small bodies come by the thousand, and a reader for each would take longer than its parsing: bodies that are one record
each are joined, a line each, and parsed at once. Where that fails, some body among them is unusual: they are halved and
halved again, and that one is read alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords, data_schema, format_of, halves, neighbours, read_in_pieces
from queue_source.formats.metadata import METADATA_COLUMN, ObjectMetadata, metadata_column
from queue_source.formats.new_columns import NewColumns
from queue_source.options.content import FormatOptions
from queue_source.storage.memory import BoundedMemory
from shard_store.model import Payload

TOGETHER = 16 << 20
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
    for numbered in neighbours(sized, TOGETHER, _ROWS):
        for batches in read_in_pieces(numbered, reader.together, _halves, reader.one_by_one):
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
        if table is None or table.num_rows != len(numbered):
            return None
        return self._batches(table, [metadata for _, (_, metadata) in numbered])

    def one_by_one(self, numbered: Sequence[Numbered]) -> Iterator[Iterator[pa.RecordBatch]]:
        return (self._alone(message, place) for place, message in numbered)

    def _alone(self, message: Message, place: int) -> Iterator[pa.RecordBatch]:
        payload, metadata = message
        problems = BadRecords(self.options.mode)
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


def _halves(numbered: Sequence[Numbered]) -> Sequence[Sequence[Numbered]]:
    return halves(numbered) if len(numbered) > _ALONE else [numbered]
