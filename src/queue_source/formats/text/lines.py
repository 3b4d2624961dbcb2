"""Text: a line a row, or (`wholeText`) an object a row. Bytes that are not UTF-8 make a line a bad record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import Part
from queue_source.formats.text.blocks import Block, count_newlines, is_utf8, line_separator, unified
from queue_source.formats.text.line_format import LineFormat, TextObject
from queue_source.formats.text.records import are_too_many, read_block
from queue_source.formats.types import is_text
from queue_source.options.content import FormatOptions

COLUMNS = pa.schema([("value", pa.string())])
_LARGEST_STRINGS = (1 << 31) - 1


class TextReader:
    """Reads the blocks of one text object (or range)."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords) -> None:
        self._schema = schema
        self._bad = bad
        self._separator_text = options.line_sep
        self.separator = line_separator(options)
        self.only_slowly = False

    def quickly(self, data: bytes) -> pa.Table | None:
        lines = unified(data, self._separator_text, blank=None) if is_utf8(data) else None
        if lines is None or len(lines) > _LARGEST_STRINGS or are_too_many(count_newlines(lines), self._schema):
            return None
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
        if not lines.endswith(b"\n"):
            ends = np.append(ends, len(lines))
        # the lines without their ends, and where each begins in them: no line is touched one by one
        kept = np.delete(np.frombuffer(lines, np.uint8), ends[ends < len(lines)])
        offsets = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int32)
        strings = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(kept))
        return self._table(strings)

    def slowly(self, block: Block) -> Iterator[pa.Table]:
        yield self._read(self.separator.split(block.data), block.offset)

    def whole(self, block: Block) -> pa.Table:
        """The object as one row."""
        return self._read([(0, block.data)], block.offset)

    def _read(self, lines: Iterable[tuple[int, bytes]], start: int) -> pa.Table:
        texts = []
        for offset, line in lines:
            try:
                texts.append(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                reason = f"not UTF-8: {error.reason} at byte {error.start} of the record"
                self._bad.add(start + offset, reason, line)
                if self._bad.keeps:
                    texts.append(line.decode("utf-8", "replace"))
        return self._table(pa.array(texts, pa.string()))

    def _table(self, strings: pa.Array) -> pa.Table:
        column = strings.cast(self._schema.field(0).type)
        return pa.Table.from_arrays([column], schema=self._schema)


class Text(LineFormat):
    name = "text"
    fixed_schema = COLUMNS
    combines_alone = True

    def check_columns(self, schema: pa.Schema) -> None:
        if len(schema) != 1 or not is_text(schema.field(0).type):
            raise OptionError("schema", "text has one column of type STRING: declare value STRING")

    def reader(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> TextReader:
        return TextReader(schema, options, bad)

    def read(self, text: TextObject, part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
        reader = self.reader(schema, text.options, text.bad, text.uri)
        if text.options.whole_text:
            yield from map(reader.whole, text.document(text.options.max_record_bytes))
            return
        for block in text.blocks(reader.separator, part):
            yield from read_block(reader, block)
            del block  # it is not held while the next one is read


TEXT = Text()
