"""The formats that are text (csv, json, text): from an object's bytes, packed or not, to tables."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import pyarrow as pa

from queue_source.formats.bad_records import Problems
from queue_source.formats.base import FormatOptions
from queue_source.formats.compression import Readable, Stored, codec_of, decompressed
from queue_source.formats.text.blocks import BLOCK_SIZE, LONGEST_RECORD, Block, text_blocks
from queue_source.formats.text.csv_lines import CsvReader
from queue_source.formats.text.json_lines import JsonReader
from queue_source.formats.text.lines import TextReader
from queue_source.formats.text.records import read_block
from queue_source.storage.files import ObjectFile

_AHEAD = 64 << 10
_BOM = b"\xef\xbb\xbf"


class TextObject:
    """An open object of a text format."""

    def __init__(
        self, uri: str, file: ObjectFile, size: int, options: FormatOptions, problems: Problems, start: int
    ) -> None:
        """`start` is where reading will begin: what is read ahead here is more than a header only at the beginning."""
        self._uri = uri
        self._file = file
        self._size = size
        self._options = options
        self._problems = problems
        self._first = file.read(min(size, _AHEAD if start else BLOCK_SIZE))
        self._codec = codec_of(uri, self._first)
        self.may_fail_late = self._codec is not None or problems.fails

    def tables(self, schema: pa.Schema, start: int = 0, end: int | None = None) -> Iterator[pa.Table]:
        """The rows of the records that begin in [start, end). Raises BadObject (`wrong-columns`, `corrupt-object`).

        A packed object that was cut into ranges, because nothing but its first bytes tells that it is packed, is
        read as a whole with its first range.
        """
        if self._codec is not None:
            if start == 0:
                yield from self._read(schema, decompressed(self._whole(), self._codec, self._size), 0, None)
            return
        if not self._options.splittable:
            if start == 0:
                yield from self._read(schema, self._whole(), 0, None)
            return
        yield from self._read(schema, self._whole(), start, end)

    def stream(self) -> Readable:
        """The text from its beginning, unpacked and as UTF-8."""
        packed = self._whole()
        stream = packed if self._codec is None else decompressed(packed, self._codec, self._size)
        return stream if self._options.plain_utf8 else _Decoded(stream, self._options.encoding)

    def document(self) -> Iterator[Block]:
        """The text as one record."""
        return self._one_block(self.stream())

    def _whole(self) -> Stored:
        return Stored(self._file, self._size, self._first)

    def _read(self, schema: pa.Schema, stream: Readable, start: int, end: int | None) -> Iterator[pa.Table]:
        options = self._options
        if not options.plain_utf8:
            stream = _Decoded(stream, options.encoding)
        if options.file_format == "csv":
            yield from self._csv(CsvReader(schema, options, self._problems, self._uri), stream, start, end)
        elif options.file_format == "json":
            yield from self._json(JsonReader(schema, options, self._problems, self._uri), schema, stream, start, end)
        else:
            text = TextReader(schema, options, self._problems)
            if options.whole_text:
                yield from map(text.whole, self._one_block(stream))
            else:
                for block in text_blocks(
                    self._at(stream, start, text.separator.length),
                    text.separator,
                    self._problems,
                    offset=start,
                    until=end,
                ):
                    yield from read_block(text, block)

    def _csv(self, reader: CsvReader, stream: Readable, start: int, end: int | None) -> Iterator[pa.Table]:
        header_missing = self._options.header
        if header_missing and start:
            for block in text_blocks(stream, reader.separator, self._problems):
                if reader.take_header(block) is not None:
                    header_missing = False
                    break
        stream = self._at(stream, start, reader.separator.length)
        for block in text_blocks(stream, reader.separator, self._problems, offset=start, until=end):
            if header_missing:
                rest = reader.take_header(block)
                if rest is None:
                    continue
                header_missing = False
                if not rest.data:
                    continue
                yield from read_block(reader, rest)
            else:
                yield from read_block(reader, block)

    def _json(
        self, reader: JsonReader, schema: pa.Schema, stream: Readable, start: int, end: int | None
    ) -> Iterator[pa.Table]:
        if self._options.multi_line:
            yield from map(reader.whole, self._one_block(stream))
            return
        unseen = start == 0 and end is None
        stream = self._at(stream, start, reader.separator.length)
        for block in text_blocks(stream, reader.separator, self._problems, offset=start, until=end):
            for table in read_block(reader, block):
                if unseen and table.num_rows:
                    if all(column.null_count == table.num_rows for column in table.columns):
                        reader.require_a_column(block)
                    unseen = False
                yield table

    def _at(self, stream: Readable, start: int, before: int) -> Readable:
        if start == 0:
            return stream
        self._file.seek(start - before)
        return Stored(self._file, self._size, place=start - before)

    def _one_block(self, stream: Readable) -> Iterator[Block]:
        """The object as one record."""
        data = stream.read(LONGEST_RECORD + 1)
        if len(data) > LONGEST_RECORD:
            reason = f"a document of more than {LONGEST_RECORD} bytes is passed over"
            self._problems.add(0, reason, data)
            return
        yield Block(0, data[len(_BOM) :] if data.startswith(_BOM) else data)


class _Decoded:
    """Text of another character set, as UTF-8. What is no text becomes U+FFFD, as in Spark."""

    def __init__(self, stream: Readable, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = self._stream.read(size)
            self._rest += self._decoder.decode(data, final=not data).encode("utf-8", "replace")
            if not data:
                break
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
