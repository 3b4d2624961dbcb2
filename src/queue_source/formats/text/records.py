"""What the formats of text share: an object's bytes become blocks of records, and these tables. And the format `text`.

A block becomes a table quickly, or piece by piece, or record by record.

A block that pyarrow refuses is cut into pieces, so that one bad record among millions slows down only its own few
kilobytes. The remaining records are read in Python, one at a time: that way reports faults, and is the reference.
"""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from io import StringIO
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import BadRecords, Format, OpenObject, Part, Tables, read_in_pieces
from queue_source.formats.compression import (
    CHUNK,
    TAR_HEADER,
    Expansion,
    Readable,
    Stream,
    archive_of,
    codec_of,
    decompressed,
    may_be_packed,
    refuse_archive,
)
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text import blocks
from queue_source.formats.text.archives import read_members, require_no_versions
from queue_source.formats.text.blocks import (
    BOM,
    Block,
    Lines,
    Separator,
    cut_blocks,
    make_separator,
    unify_lines,
)
from queue_source.formats.text.values import quote_json
from queue_source.formats.types import corrupt_column, is_text, shorten
from queue_source.options.content import FormatOptions
from queue_source.storage.memory import usual_limit
from queue_source.storage.open_files import ObjectFile

SMALLEST_PIECE = 32 << 10
_PIECES = 8
_AHEAD = 64 << 10
_DECODED_AT_ONCE = 1 << 20
_ARCHIVES = (".zip", ".tar", ".tgz")
_MEMORY_FACTOR = 12
"""How many times its size a record that is allowed may take in memory while it is read, with what is around it."""
_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
MAX_CELLS = 8 << 20
"""Rows times columns of a table: tiny records of many columns would take a thousand times their own size."""
MAX_REASONS = 20
"""What is wrong with one record, as far as it is told."""
_TEXTS = 64 << 20  # bytes of the text of one bad record in all its rows; beyond them only the first row has it


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The declared columns: those of the records (`data`), and the two with facts about records."""

    full: pa.Schema
    data: pa.Schema
    corrupt: str | None
    rescued: str | None

    @classmethod
    def of(cls, schema: pa.Schema, options: FormatOptions) -> RecordSchema:
        corrupt = options.column_name_of_corrupt_record
        special = {corrupt, options.rescued_data_column}
        data = pa.schema([field for field in schema if field.name not in special])
        return cls(schema, data, corrupt if corrupt in schema.names else None, options.rescued_data_column)

    def assemble(self, data: pa.Table, facts: dict[str, list[str | None]] | None = None) -> pa.Table:
        """Return the declared table; the columns with facts about records are null where there are no `facts`."""
        if self.data is self.full or len(self.data) == len(self.full):
            return data
        columns = []
        for field in self.full:
            place = self.data.get_field_index(field.name)
            if place >= 0:
                columns.append(data.column(place))
            elif facts is not None:
                columns.append(pa.chunked_array([pa.array(facts[field.name], field.type)]))
            else:
                columns.append(pa.chunked_array([pa.nulls(data.num_rows, field.type)]))
        return pa.Table.from_arrays(columns, schema=self.full)


class Record:
    """One record while it is read: what is wrong with it, and what the value read last has to be rescued."""

    __slots__ = ("reasons", "rescued")

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.rescued: Any = None


class Rows:
    """Rows that were read one by one, with the facts about them."""

    def __init__(self, shape: RecordSchema, bad: BadRecords, uri: str) -> None:
        self._shape = shape
        self._bad = bad
        self._where = f',"_file_path":{quote_json(uri)}' if uri else ""  # a message has no path
        self._empty()

    def _empty(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in self._shape.data]
        self._facts: dict[str, list[str | None]] = {
            name: [] for name in (self._shape.corrupt, self._shape.rescued) if name
        }
        self._count = 0

    def add_record(
        self, values: list[Any], record: Record, offset: int, raw: bytes, rescued: str | None = None
    ) -> None:
        """Add one record; a bad one is counted, and stays or goes as `mode` says."""
        self.add_rows([(values, rescued)], record, offset, raw)

    def add_rows(self, rows: list[tuple[list[Any], str | None]], record: Record, offset: int, raw: bytes) -> None:
        """Add the rows of one record, each with its rescued data."""
        if record.reasons:
            self._bad.add(offset, "; ".join(record.reasons[:MAX_REASONS]), raw)
            if not self._bad.keeps:
                return
        text = raw.decode("utf-8", "replace") if record.reasons and self._shape.corrupt else None
        once = text is not None and len(text) * len(rows) > _TEXTS
        for values, rescued in rows:
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)
            if self._shape.corrupt:
                self._facts[self._shape.corrupt].append(text)
                text = None if once else text
            if self._shape.rescued:
                self._facts[self._shape.rescued].append(rescued)
        self._count += len(rows)

    def make_nulls(self) -> list[Any]:
        """Return the values of an unreadable record."""
        return [None] * len(self._columns)

    def write_rescued(self, rescued: Iterable[tuple[str, str]]) -> str | None:
        """Write the rescued data of a record as JSON: names and JSON texts, and where they were found."""
        written = StringIO()  # a list of a million parts would take twice as much
        before = "{"
        for name, text in rescued:
            written.write(f"{before}{quote_json(name)}:{text}")
            before = ","
        if before == "{":
            return None
        written.write(f"{self._where}}}")
        return written.getvalue()

    @property
    def are_many(self) -> bool:
        """Tell whether they take so much memory that they are to go before more are read."""
        return self._count * (len(self._columns) + 1) >= MAX_CELLS

    def take_table(self) -> pa.Table:
        """Make a table of the rows so far, which are forgotten here."""
        arrays = []
        for field, values in zip(self._shape.data, self._columns, strict=True):
            try:
                arrays.append(pa.array(values, field.type))
            except MemoryError:  # one of them is an ArrowException
                raise
            except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
                raise corrupt_column(field.name, error) from error
        if arrays:
            data = pa.Table.from_arrays(arrays, schema=self._shape.data)
        else:
            data = pa.table({"": pa.nulls(self._count)}).select([])
        table = self._shape.assemble(data, self._facts)
        self._empty()
        return table


class RecordReader(Protocol):
    """A format whose objects are records of text."""

    @property
    def separator(self) -> Separator: ...

    @property
    def only_slowly(self) -> bool:
        """Tell whether nothing of this object can be read quickly: pieces are not tried."""

    def read_quickly(self, data: bytes) -> pa.Table | None:
        """Read the rows in the declared schema; None when anything about them is unusual."""

    def read_slowly(self, block: Block) -> Iterator[pa.Table]:
        """Read the rows one by one. Raises BadObject("corrupt-object") when the first bad one ends the object."""


def has_too_many_cells(lines: int, schema: pa.Schema) -> bool:
    """Tell whether a table of so many lines takes too much memory; then it may be read in pieces."""
    return lines * (len(schema) + 1) > MAX_CELLS


def is_all_null(table: pa.Table) -> bool:
    """Tell whether a table has columns, and no value in any of them."""
    return bool(table.columns) and all(column.null_count == table.num_rows for column in table.columns)


def has_empty_row(table: pa.Table) -> bool:
    """Tell whether a table has columns, and a row without a value: what holds that row may have quite other columns."""
    if not table.columns or any(column.null_count == 0 for column in table.columns):
        return False
    return bool(pc.any(reduce(pc.and_, map(pc.is_null, table.columns))).as_py())


def read_block(reader: RecordReader, block: Block) -> Iterator[pa.Table]:
    """Read the rows of a block, in order."""
    if reader.only_slowly:
        return reader.read_slowly(block)

    def cut(whole: Block) -> list[Block]:
        """Cut it into a few pieces of whole records; a small one stays as it is."""
        data, start, pieces = whole.data, 0, []
        step = max(SMALLEST_PIECE, len(data) // _PIECES + 1)
        while start + step < len(data):
            end = reader.separator.first_end(data, start + step)
            if end < 0 and (end := start + reader.separator.inner_end(data[start : start + step])) == start:
                break
            pieces.append(Block(whole.offset + start, data[start:end]))
            start = end
        if start < len(data):
            pieces.append(Block(whole.offset + start, data[start:]))
        return pieces

    return read_in_pieces(block, lambda piece: reader.read_quickly(piece.data), cut, reader.read_slowly)


class TextObject:
    """An open object of a format of text, or a member of one that is an archive.

    Attributes:
        uri: Of the object; "" is a message's body.
        codec: By which it is compressed as a whole.
        archive: The kind of archive that its first bytes are; one that is compressed shows behind its codec.
    """

    def __init__(
        self,
        uri: str,
        file: ObjectFile | Stream,
        options: FormatOptions,
        bad: BadRecords,
        expansion: Expansion,
        *,
        name: str = "",
        ahead: int = _AHEAD,
        left_out: frozenset[int] | None = frozenset(),
    ) -> None:
        self._left_out = left_out
        self.uri = uri
        self.options = options
        self.bad = bad
        self._file = file
        self._expansion = expansion
        first = file.peek(ahead)
        self.archive = archive_of(first)
        self.codec = None if self.archive else codec_of(name or uri, first, _named(options.encoding, first))

    @classmethod
    def of(cls, source: OpenObject, options: FormatOptions, bad: BadRecords, part: Part) -> TextObject:
        """Read ahead: at the beginning of an object a whole block, elsewhere enough for its codec and header."""
        expansion = Expansion(source.size, options.max_expansion)
        ahead = _AHEAD if part.start else blocks.BLOCK_SIZE
        return cls(source.uri, source.file, options, bad, expansion, ahead=ahead, left_out=source.left_out)

    def members(self) -> Iterator[TextObject]:
        """Yield what is read as an object: the members of an archive, each before the next is opened, or else itself.

        Raises BadObject for an archive that cannot be read, or is none of records, and EarlierVersions.
        """
        if self.codec is not None:
            self.archive = archive_of(self._content.peek(TAR_HEADER))
        if self.archive is None:
            yield self
            return
        if not self.uri:
            raise BadObject("archive", f"a message's body is a {self.archive} archive, of which objects alone are read")
        for member, content in read_members(self.archive, self._content, self._expansion, self._left_out):
            self.bad.member = member
            text = TextObject(self.uri, content, self.options, self.bad, self._expansion, name=member)
            if archive_of(text._content.peek(TAR_HEADER)) is not None:
                raise BadObject("archive", "it is an archive within an archive; unpack it")
            yield text
            while text.stream.read(CHUNK):  # what a record's limit has left: damage is at the end, too
                pass
            self.bad.before += text.stream.tell()
            self.bad.member = None

    def require_no_versions(self) -> None:
        """Raise EarlierVersions where an archive has a name twice; nothing but its headers is looked at."""
        if self.codec is not None:
            self.archive = archive_of(self._content.peek(TAR_HEADER))
        require_no_versions(self.archive, self._content)

    def read_blocks(self, separator: Separator, part: Part | None = None) -> Iterator[Block]:
        """Read the records that begin in the part, in blocks."""
        part = part or Part()
        if part.start:
            assert isinstance(self._file, ObjectFile), "members are read whole"
            self._file.seek(part.start - blocks.bytes_before(separator, part.start))
            stream: Readable = self._file
        else:
            stream = self.stream
        longest = self.options.max_record_bytes
        yield from cut_blocks(stream, separator, self.bad, offset=part.start, until=part.end, longest=longest)

    def first_block(self, separator: Separator, size: int) -> Block | None:
        """Read the first records, about `size` bytes, of an object of which a later part is being read."""
        file = self._file
        assert isinstance(file, ObjectFile), "members are read whole"
        place = file.tell()
        file.seek(0)
        bad = BadRecords("PERMISSIVE")  # those of another part
        block = next(cut_blocks(file, separator, bad, until=size, longest=self.options.max_record_bytes), None)
        file.seek(place)
        return block

    def read_document(self, longest: int) -> Iterator[Block]:
        """Read all of the object. One of more than `longest` bytes is a bad record."""
        data = self.stream.read(longest + 1)
        if len(data) > longest:
            self.bad.add(
                0, f"a document of more than {longest} bytes is skipped; a larger maxRecordBytes reads it", data
            )
            return
        yield Block(0, data)

    @cached_property
    def _content(self) -> ObjectFile | Stream:
        return self._file if self.codec is None else decompressed(self._file, self.codec, self._expansion)

    @cached_property
    def stream(self) -> ObjectFile | Stream:
        """The text from its beginning, decompressed and as UTF-8. It can be read once."""
        content = self._content
        return content if self.options.plain_utf8 else Stream(_decode_pieces(content, self.options.encoding))


def _mark(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeDecodeError | UnicodeEncodeError)
    return "\udcff" if isinstance(error, UnicodeDecodeError) else b"\xff", error.end


codecs.register_error("cuesqueue.mark", _mark)


def _named(encoding: str, first: bytes) -> str:
    """Return the encoding of a text that begins so as Python names it."""
    marks = _MARKS.get(codecs.lookup(encoding).name)
    # without a mark as to Java, where Python refuses it
    return encoding if marks is None or first.startswith(marks) else f"{encoding}-be"


def _decode_pieces(stream: Readable, encoding: str) -> Iterator[bytes]:
    """Decode another character set to UTF-8. What is no text becomes a byte that is none in UTF-8: its record is bad.

    Raises BadObject("corrupt-object") where the decoder itself fails.
    """
    first = stream.read(_DECODED_AT_ONCE)
    encoding = _named(encoding, first)
    try:
        pieces = chain((first,), iter(lambda: stream.read(_DECODED_AT_ONCE), b""))
        for text in codecs.iterdecode(pieces, encoding, "cuesqueue.mark"):
            yield text.encode("utf-8", "cuesqueue.mark")
    except (UnicodeError, LookupError) as error:
        raise BadObject("corrupt-object", f"not {encoding}: {error}") from error


class LineFormat(Format):
    """A format of text whose records are lines, or are delimited as lines are."""

    @abstractmethod
    def reader(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> RecordReader: ...

    @abstractmethod
    def read(self, text: TextObject, part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read the rows of the records that begin in a part. Raises BadObject (`wrong-columns`, `corrupt-object`)."""

    def decode_memory(self, options: FormatOptions) -> int:
        return options.max_decode_memory or max(usual_limit(), _MEMORY_FACTOR * options.max_record_bytes)

    def splittable(self, options: FormatOptions) -> bool:
        """Tell whether a record of an uncompressed object can be found from any place in it."""
        in_lines = options.plain_utf8 and not (options.multi_line or options.whole_text or options.records_path)
        return in_lines and make_separator(options).found_from_anywhere

    def may_be_cut(self, uri: str, options: FormatOptions, *, all_or_nothing: bool) -> bool:
        may_fail = options.mode == "FAILFAST"
        is_plain = codec_of(uri, b"") is None and not uri.lower().endswith(_ARCHIVES)
        return self.splittable(options) and (all_or_nothing or not may_fail) and is_plain

    def open(
        self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions, bad: BadRecords
    ) -> Tables:
        """Read a part of the object.

        A compressed object or an archive that was cut, since only its first bytes show it, is read with its first part.
        """
        text = TextObject.of(source, options, bad, part)
        is_packed = text.codec is not None or text.archive is not None
        if not is_packed and self.splittable(options):
            rows = self._read_members(source, text, part, schema)
        else:
            rows = self._read_members(source, text, Part(), schema) if part.start == 0 else iter(())
        return Tables(rows, may_fail_late=is_packed or bad.fails or options.records_path is not None)

    def _read_members(self, source: OpenObject, text: TextObject, part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read all members of an archive, or the part of another object. An error names its member.

        Where a member is bad, EarlierVersions may say that it does not count.
        """
        bad = text.bad
        try:
            for member in text.members():
                yield from self.read(member, part, schema)
        except (BadObject, NewColumns) as error:
            if bad.member is None:
                raise
            if source.left_out is None:
                source.file.seek(0)
                with suppress(BadObject):  # of the archive itself, behind the bad member
                    TextObject.of(source, text.options, BadRecords("PERMISSIVE"), Part()).require_no_versions()
            if isinstance(error, NewColumns):
                raise
            where = shorten(f"member {bad.member!r}: {error.detail}")
            problem = BadObject(error.cause, where, bad.before + error.offset)
        else:
            return
        raise problem  # here it is not chained to frames that hold the object's content

    def combines(self, options: FormatOptions) -> bool:
        return self.splittable(options)

    def combine(self, contents: Sequence[bytes], schema: pa.Schema, options: FormatOptions) -> pa.Table | None:
        filled = [data for data in contents if data]
        for data in filled:
            refuse_archive(data)
        if not filled:
            return schema.empty_table()
        reader = self.reader(schema, options, BadRecords(options.mode), "")
        end = b"\n" if options.line_sep is None else options.line_sep.encode()
        joinable = self.joinable(reader, filled, end, options)
        if joinable is None or reader.only_slowly:
            return None
        return reader.read_quickly(b"".join(data if data.endswith(end) else data + end for data in joinable))

    def joinable(
        self, reader: RecordReader, contents: Sequence[bytes], end: bytes, options: FormatOptions
    ) -> Sequence[bytes] | None:
        """Return what of the contents is joined; None when that could be read as other records than they hold."""
        return contents

    def body_as_line(self, body: bytes) -> bytes | None:
        is_line = body and not (b"\n" in body or b"\r" in body or body.startswith(BOM) or may_be_packed(body))
        return body if is_line else None

    def line_reader(self, schema: pa.Schema, options: FormatOptions) -> RecordReader | None:
        if options.line_sep is not None or not options.plain_utf8 or options.header or options.records_path:
            return None
        return self.reader(schema, options, BadRecords(options.mode), "")


COLUMNS = pa.schema([("value", pa.string())])
_LARGEST_STRINGS = (1 << 31) - 1


class TextReader:
    """Reads the blocks of one text object (or range). Bytes that are not UTF-8 make a line a bad record."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords) -> None:
        self._encoding = options.encoding
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
                reason = f"not {self._encoding.upper()}: {error.reason} at byte {error.start} of the record"
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
