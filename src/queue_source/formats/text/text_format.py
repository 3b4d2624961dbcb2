"""Text: a line a row, or (`wholeText`) an object a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.base import BadRecords, Part
from queue_source.formats.text.blocks import Block, Lines, make_separator, unify_lines
from queue_source.formats.text.records import LineFormat, TextObject, has_too_many_cells, read_block
from queue_source.formats.types import is_text
from queue_source.options.content import FormatOptions

COLUMNS = pa.schema([("value", pa.string())])
_LARGEST_STRINGS = (1 << 31) - 1


class TextReader:
    """Reads the blocks of one text object (or range). Bytes that are not UTF-8 make a line a bad record."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords) -> None:
        self._schema = schema
        self._bad = bad
        self._separator_text = options.line_sep
        self.separator = make_separator(options)
        self.only_slowly = False

    def read_quickly(self, data: bytes) -> pa.Table | None:
        text = unify_lines(data, self._separator_text, blank=None)
        if text is None or len(text) > _LARGEST_STRINGS or has_too_many_cells(Lines.of(text).newlines, self._schema):
            return None
        characters = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(characters == ord("\n"))
        if not text.endswith(b"\n"):
            ends = np.append(ends, len(text))
        # the lines without their ends, and where each begins in them: no line is touched one by one
        joined = np.delete(characters, ends[ends < len(text)])
        offsets = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int32)
        strings = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(joined))
        return self._make_table(strings)

    def read_slowly(self, block: Block) -> Iterator[pa.Table]:
        yield self._decode_lines(self.separator.split(block.data), block.offset)

    def read_whole(self, block: Block) -> pa.Table:
        """Read the object as one row."""
        return self._decode_lines([(0, block.data)], block.offset)

    def _decode_lines(self, lines: Iterable[tuple[int, bytes]], start: int) -> pa.Table:
        texts = []
        for offset, line in lines:
            try:
                texts.append(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                reason = f"not UTF-8: {error.reason} at byte {error.start} of the record"
                self._bad.add(start + offset, reason, line)
                if self._bad.keeps:
                    texts.append(line.decode("utf-8", "replace"))
        return self._make_table(pa.array(texts, pa.string()))

    def _make_table(self, strings: pa.Array) -> pa.Table:
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
            yield from map(reader.read_whole, text.read_document(text.options.max_record_bytes))
            return
        for block in text.read_blocks(reader.separator, part):
            yield from read_block(reader, block)
            del block  # it is not held while the next one is read


TEXT = Text()
