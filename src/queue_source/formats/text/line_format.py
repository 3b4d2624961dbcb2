"""What the formats of text (csv, json, text) share: from an object's bytes, compressed or not, to blocks of records."""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa

from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import Format, OpenObject, Part, Tables
from queue_source.formats.compression import Pieces, Readable, Stored, codec_of, decompressed
from queue_source.formats.text import blocks
from queue_source.formats.text.blocks import BOM, Block, Separator, line_separator, text_blocks
from queue_source.formats.text.records import RecordReader
from queue_source.options.content import FormatOptions
from queue_source.storage.memory import usual_limit

_AHEAD = 64 << 10
_DECODED_AT_ONCE = 1 << 20
_OF_A_RECORD = 12
"""How many times its size a record that is allowed may take in memory while it is read, with what is around it."""


class TextObject:
    """An open object of a format of text."""

    def __init__(self, source: OpenObject, options: FormatOptions, bad: BadRecords, part: Part) -> None:
        """At the beginning of an object a whole block is read; to know its codec and header takes less."""
        self.uri = source.uri
        self.options = options
        self.bad = bad
        self._file, self._size = source.file, source.size
        first = source.file.read(min(source.size, _AHEAD if part.start else blocks.BLOCK_SIZE))
        self.codec = codec_of(source.uri, first)
        self._stored = Stored(source.file, source.size, first)

    def blocks(self, separator: Separator, part: Part | None = None) -> Iterator[Block]:
        """The records that begin in the part, in blocks."""
        part = part or Part()
        if part.start:
            place = part.start - separator.length
            self._file.seek(place)
            stream: Readable = Stored(self._file, self._size, place=place)
        else:
            stream = self._stream()
        longest = self.options.max_record_bytes
        yield from text_blocks(stream, separator, self.bad, offset=part.start, until=part.end, longest=longest)

    def document(self, longest: int) -> Iterator[Block]:
        """All of the object. One of more than `longest` bytes is a bad record."""
        data = self._stream().read(longest + 1)
        if len(data) > longest:
            self.bad.add(
                0, f"a document of more than {longest} bytes is skipped; a larger maxRecordBytes reads it", data
            )
            return
        yield Block(0, data)

    def _stream(self) -> Readable:
        """The text from its beginning, decompressed and as UTF-8. It can be read once."""
        stream: Readable = self._stored
        if self.codec is not None:
            stream = decompressed(self._stored, self.codec, self._size, self.options.max_expansion)
        return stream if self.options.plain_utf8 else Pieces(_as_utf8(stream, self.options.encoding))


class LineFormat(Format):
    """A format of text whose records are lines, or are delimited as lines are."""

    @abstractmethod
    def reader(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> RecordReader: ...

    @abstractmethod
    def read(self, text: TextObject, part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows of the records that begin in a part. Raises BadObject (`wrong-columns`, `corrupt-object`)."""

    def decode_memory(self, options: FormatOptions) -> int:
        return options.max_decode_memory or max(usual_limit(), _OF_A_RECORD * options.max_record_bytes)

    def splittable(self, options: FormatOptions) -> bool:
        """Whether a record of an uncompressed object can be found from any place in it."""
        in_lines = options.plain_utf8 and not (options.multi_line or options.whole_text)
        return in_lines and line_separator(options).found_from_anywhere

    def may_be_cut(self, uri: str, options: FormatOptions, *, all_or_nothing: bool) -> bool:
        may_fail = options.mode == "FAILFAST"
        return self.splittable(options) and (all_or_nothing or not may_fail) and codec_of(uri, b"") is None

    def open(
        self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions, bad: BadRecords
    ) -> Tables:
        """A compressed object that was cut, because only its first bytes show it, is read with its first part."""
        text = TextObject(source, options, bad, part)
        if text.codec is not None or not self.splittable(options):
            rows = self.read(text, Part(), schema) if part.start == 0 else iter(())
        else:
            rows = self.read(text, part, schema)
        return Tables(rows, may_fail_late=text.codec is not None or bad.fails)

    def combines(self, options: FormatOptions) -> bool:
        return self.splittable(options)

    def combine(self, contents: Sequence[bytes], schema: pa.Schema, options: FormatOptions) -> pa.Table | None:
        filled = [data for data in contents if data]
        if not filled:
            return schema.empty_table()
        reader = self.reader(schema, options, BadRecords(options.mode), "")
        end = b"\n" if options.line_sep is None else options.line_sep.encode()
        lines = self.joinable(reader, filled, end, options)
        if lines is None or reader.only_slowly:
            return None
        return reader.quickly(b"".join(data if data.endswith(end) else data + end for data in lines))

    def joinable(
        self, reader: RecordReader, contents: Sequence[bytes], end: bytes, options: FormatOptions
    ) -> Sequence[bytes] | None:
        """What of the contents is joined; None when the join could be read as other records than they hold."""
        return contents

    def body_as_line(self, body: bytes) -> bytes | None:
        return None if not body or b"\n" in body or b"\r" in body or body.startswith(BOM) else body

    def line_reader(self, schema: pa.Schema, options: FormatOptions) -> RecordReader | None:
        if options.line_sep is not None or not options.plain_utf8 or options.header:
            return None
        return self.reader(schema, options, BadRecords(options.mode), "")


def _as_utf8(stream: Readable, encoding: str) -> Iterator[bytes]:
    """Text of another character set, as UTF-8. What is no text becomes U+FFFD, as in Spark."""
    pieces = iter(lambda: stream.read(_DECODED_AT_ONCE), b"")
    return (text.encode("utf-8", "replace") for text in codecs.iterdecode(pieces, encoding, "replace"))
