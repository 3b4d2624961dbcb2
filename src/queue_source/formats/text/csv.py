"""CSV as a format: where its header is, small objects as one block, and the columns of its objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.csv_lines import CsvReader
from queue_source.formats.text.line_format import LineFormat, TextObject
from queue_source.formats.text.records import RecordReader, read_block
from queue_source.formats.text.values import TextColumn, list_meanings
from queue_source.options.file_format import FormatOptions


class Csv(LineFormat):
    name = "csv"
    values_are_text = True
    has_bad_records = True

    def not_fillable(self, kind: pa.DataType) -> str | None:
        return str(kind) if pt.is_nested(kind) else super().not_fillable(kind)

    def reader(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> CsvReader:
        return CsvReader(schema, options, bad, uri)

    def read(self, text: TextObject, part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
        reader = self.reader(schema, text.options, text.bad, text.uri)
        if text.options.header and part.start:
            behind = next(_behind_header(reader, text.blocks(reader.separator)), None)
            if behind is None or (part.end is not None and behind.offset >= part.end):
                return  # blank lines, or the header, are all of this part
            part = Part(max(part.start, behind.offset), part.end)
        found = text.blocks(reader.separator, part)
        if text.options.header and not part.start:
            found = _behind_header(reader, found)
        for block in found:
            yield from read_block(reader, block)
            del block  # it is not held while the next one is read

    def joinable(
        self, reader: RecordReader, contents: Sequence[bytes], end: bytes, options: FormatOptions
    ) -> Sequence[bytes] | None:
        """Without their headers, which have to be the same."""
        assert isinstance(reader, CsvReader)
        if not options.header:
            return contents
        try:
            rest = reader.take_header(Block(0, contents[0]))
        except (BadObject, NewColumns):
            return None
        header = b"" if rest is None else contents[0][: rest.offset]
        if not header.endswith(end) or not all(data.startswith(header) for data in contents):
            return None
        return [data[len(header) :] for data in contents if len(data) > len(header)]

    def infer(self, source: OpenObject, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
        """The columns of the header, or `_c0`, `_c1` ... without one.

        Types are those that all values of a column may have.
        """
        reader = self.reader(pa.schema([]), options, BadRecords("PERMISSIVE"), source.uri)
        blocks = TextObject(source, options, BadRecords("PERMISSIVE"), Part()).blocks(reader.separator, Part(0, limit))
        lines = (line for block in blocks for line in reader.lines(block.data))
        names = reader.names(next(lines, b"")) if options.header else None
        meanings = list_meanings(options) if types else []
        columns = [TextColumn(meanings) for _ in names or ()]
        for fields in map(reader.fields, lines):
            if names is None:
                columns += [TextColumn(meanings) for _ in fields[len(columns) :]]
            for column, (value, quoted) in zip(columns, fields, strict=False):
                if value != options.null_value and (value or (quoted and options.empty_value)):
                    column.add_text(value)
        names = [f"_c{at}" for at in range(len(columns))] if names is None else names
        kinds = [column.infer_type() if types else pa.string() for column in columns]
        return pa.schema(list(zip(names, kinds, strict=True)))


def _behind_header(reader: CsvReader, blocks: Iterator[Block]) -> Iterator[Block]:
    """The blocks without the header, which the reader takes."""
    for block in blocks:
        rest = reader.take_header(block)
        if rest is not None:
            yield rest
            break
    yield from blocks


CSV = Csv()
