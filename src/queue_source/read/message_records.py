"""Messages that hold records: their bodies are read as objects of `fileFormat` would be (`content=message`).

Small bodies come by the thousand, and a reader for each would take longer than its parsing: bodies that are one record
each are put together, a line each, and parsed at once. Where that fails, some body among them is unusual: they are
halved and halved again, and that one is read alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.formats.bad_records import Problems
from queue_source.formats.base import FormatOptions, data_schema
from queue_source.formats.compression import codec_of
from queue_source.formats.metadata import METADATA_COLUMN, ObjectMetadata, metadata_column, metadata_rows
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.csv_lines import CsvReader
from queue_source.formats.text.json_lines import JsonReader
from queue_source.formats.text.json_rows import decode
from queue_source.formats.text.lines import TextReader
from queue_source.formats.text.records import RecordReader
from queue_source.read.objects import Part, open_tables
from queue_source.storage.files import ObjectFile
from shard_store.model import Payload

TOGETHER = 16 << 20
"""Bytes of bodies that are parsed at once."""
_ROWS = 65_536
_BOM = b"\xef\xbb\xbf"
_ALONE = 16  # bodies that are not worth another try together
_SMALL = 64 << 10  # bytes of JSON that Python has read before pyarrow has begun
_BREAKS = bytes.maketrans(b"\r\n", b"\t\t")

Message = tuple[Payload, ObjectMetadata]
Finished = Callable[[int, Problems, BadObject | None], None]
"""Told of every message (by its place) with bad records in it, or that is bad as a whole."""


def parsed_messages(
    messages: Sequence[Message], schema: pa.Schema, options: FormatOptions, finished: Finished
) -> Iterator[pa.RecordBatch]:
    """The rows of all messages, in their order, in batches of exactly `schema`. Executor worker.

    No row of a message leaves that is bad as a whole. Raises what `finished` raises, and NewColumns.
    """
    reader = _Bodies(schema, options, finished)
    start = size = 0
    for place, (payload, _) in enumerate(messages):
        if place > start and (size + len(payload.value) > TOGETHER or place - start >= _ROWS):
            yield from reader.read(messages[start:place], start)
            start, size = place, 0
        size += len(payload.value)
    yield from reader.read(messages[start:], start)


@dataclass(slots=True)
class _Bodies:
    schema: pa.Schema
    options: FormatOptions
    finished: Finished

    def read(self, messages: Sequence[Message], first: int) -> Iterator[pa.RecordBatch]:
        """The rows of some messages, the first of which has the place `first`."""
        if not messages:
            return
        table = self._together(messages) if len(messages) > _ALONE else None
        if table is not None:
            metadata = [metadata for _, metadata in messages]
            yield from self._batches(table, metadata)
        elif len(messages) > _ALONE:
            half = len(messages) // 2
            yield from self.read(messages[:half], first)
            yield from self.read(messages[half:], first + half)
        else:
            for place, message in enumerate(messages, first):
                yield from self._alone(message, place)

    def _together(self, messages: Sequence[Message]) -> pa.Table | None:
        """A row a message, or None where that cannot be had."""
        reader = self._record_reader()
        bodies = [payload.value for payload, _ in messages]
        if reader is None or reader.only_slowly:
            return None
        if self.options.file_format == "json":  # line breaks in texts stay what they are there: bad
            bodies = [body.strip().translate(_BREAKS) for body in bodies]
        if not all(map(self._is_a_record, bodies)):
            return None
        table = reader.quickly(b"\n".join(bodies))
        return table if table is not None and table.num_rows == len(messages) else None

    def _is_a_record(self, body: bytes) -> bool:
        """Whether a body may be one line among others.

        A JSON object that ends in `}` cannot go on in a line that begins with `{`: so none of them leans on another.
        """
        if not body or b"\n" in body or b"\r" in body or body.startswith(_BOM):
            return False
        return self.options.file_format != "json" or (body.startswith(b"{") and body.endswith(b"}"))

    def _record_reader(self) -> RecordReader | None:
        """A reader of lines, where a body may be one."""
        options, problems = self.options, Problems(self.options.mode)
        if options.line_sep is not None or not options.plain_utf8:
            return None
        schema = data_schema(self.schema, options)
        if options.file_format == "json":
            return JsonReader(schema, options, problems, "")
        if options.file_format == "csv" and not options.header:
            return CsvReader(schema, options, problems, "")
        return TextReader(schema, options, problems) if options.file_format == "text" else None

    def _alone(self, message: Message, place: int) -> Iterator[pa.RecordBatch]:
        payload, metadata = message
        problems = Problems(self.options.mode)
        try:
            tables = list(self._tables(payload.value, problems))
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

    def _tables(self, body: bytes, problems: Problems) -> Iterator[pa.Table]:
        options, schema = self.options, data_schema(self.schema, self.options)
        if not body:
            return iter(())
        if options.file_format == "json":
            # an object in several lines, which no body of a record a line can be taken for
            document = options.multi_line or _is_document(body)
            if options.plain_utf8 and len(body) <= _SMALL and codec_of("", body) is None:
                reader, block = JsonReader(schema, options, problems, ""), Block(0, body.removeprefix(_BOM))
                return iter([reader.whole(block) if document else reader.slowly(block)])
            if document:
                options = replace(options, multi_line=True, line_sep=None)
        file = ObjectFile("", pa.BufferReader(body))
        # as a part: of a single record nobody asks whether it has any of the declared columns
        tables, _ = open_tables("", file, len(body), schema, options, problems, Part(0, len(body)))
        return tables

    def _batches(self, table: pa.Table, metadata: Sequence[ObjectMetadata]) -> Iterator[pa.RecordBatch]:
        """The declared columns; `metadata` is that of each row, or one for all of them."""
        if METADATA_COLUMN in self.schema.names:
            place = self.schema.get_field_index(METADATA_COLUMN)
            kind = self.schema.field(place).type
            told = (
                metadata_rows(kind, metadata)
                if len(metadata) == table.num_rows
                else metadata_column(kind, metadata[0], table.num_rows)
            )
            columns = list(table.columns)
            columns.insert(place, pa.chunked_array([told]))
            table = pa.Table.from_arrays(columns, schema=self.schema)
        for batch in table.to_batches(max_chunksize=_ROWS):
            if batch.num_rows:
                yield batch


def _is_document(body: bytes) -> bool:
    if b"\n" not in body and b"\r" not in body:
        return False
    try:
        decode(body.decode("utf-8"))
    except ValueError:
        return False
    return True
