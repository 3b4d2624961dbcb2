"""JSON: blocks of lines to Arrow, an object a line; or (`multiLine`) one document, an object or an array of them.

pyarrow parses. Where it fails, or cannot read a type at all (maps), `json_values.py` reads the same lines in Python: it
says exactly which record and column is wrong, or reads what Spark reads and pyarrow does not (a number into a STRING).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.new_columns import KnownNames, more
from queue_source.formats.text.blocks import (
    BLOCK_SIZE,
    BOM,
    Block,
    LineEnds,
    Lines,
    make_separator,
    unify_lines,
)
from queue_source.formats.text.json_parser import (
    MAX_DEPTH,
    SHALLOW,
    as_text,
    decode,
    dump,
    has_long_number,
    has_more_values,
    items_as_lines,
    nesting,
    parse_objects,
)
from queue_source.formats.text.json_values import Objects, TextNeeded
from queue_source.formats.text.records import MAX_REASONS, Record, RecordSchema, Rows, has_too_many_cells
from queue_source.formats.text.values import text_leaf
from queue_source.formats.typed.columns import check_decimals, conform_column, require_any
from queue_source.formats.types import inner_types, is_bytes
from queue_source.options.file_format import FormatOptions

_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_NO_OBJECT = re.compile(rb"^[ \t]*[^ \t\n{]", re.MULTILINE)
_SMALL_DOCUMENT = 64 << 10  # bytes that Python has read before pyarrow has begun
_DECODED = 4 << 20  # bytes of text whose values are held as what Python decodes
_CACHED = 1 << 18  # bytes that stay in the processor's cache
_NEWLINE, _BRACE = ord("\n"), ord("{")
_WHITE = b" \t\r\n"
_SHORT = 500  # twice as many bytes have room neither for `MAX_DEPTH` brackets that are closed nor for a long number
_LONGEST_INFERRED = 1 << 16  # bytes of a line of which pyarrow may find out the columns: it makes one of every name
_ODD_NUMBER = re.compile(rb"[:,\[]\s*(?:-?Inf(?!inity)|-NaN)")


class JsonReader:
    """Reads the blocks of one JSON object (or range)."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> None:
        self._bad = bad
        self._uri = uri
        self._separator_text = options.line_sep
        self._shape = RecordSchema.of(schema, options)
        self._options = options
        self._leaf = text_leaf(options)
        self._known = KnownNames(schema, options) if options.watch_new_columns else None
        self.separator = make_separator(options)
        self.only_slowly = any(_has_map(field.type) for field in self._shape.data)

    def read_quickly(self, data: bytes) -> pa.Table | None:
        text = unify_lines(data, self._separator_text, blank=b" ")
        if text is None:
            return None
        if not _NOT_BLANK.search(text):
            return self._shape.full.empty_table()
        lines = Lines.of(text)
        plain, lines_are_short = _look(text)
        if has_too_many_cells(lines.newlines, self._shape.full):
            return None
        if not plain and _NO_OBJECT.search(text) is not None:
            return None
        infers = self._shape.rescued is not None or self._known is not None
        if (infers or not lines_are_short) and _may_be_beyond(text, infers=infers):
            return None
        try:
            parsed = self._parse(text)
            # where lines are blank, their number may be right by chance
            guess = parsed.num_rows if plain else -1
            if lines.count_filled(guess, strip=True) != parsed.num_rows:
                return None  # two objects in a line, or one over two
            if self._has_more(parsed.schema):
                return None  # to be rescued, or a reason to stop
            if _has_odd_numbers(parsed) and _ODD_NUMBER.search(text) is not None:
                return None
            check_decimals(parsed)
            columns = [conform_column(parsed.column(i), field, self._leaf) for i, field in enumerate(self._shape.data)]
        except (pa.ArrowException, UnicodeDecodeError, BadObject):
            return None  # the slow way finds out what is wrong, if anything is
        if columns:
            parsed = pa.Table.from_arrays(columns, schema=self._shape.data)
        return self._shape.assemble(parsed)

    def read_slowly(self, block: Block) -> Iterator[pa.Table]:
        rows = Rows(self._shape, self._bad, self._uri)
        for offset, line in self.separator.split(block.data):
            if line.strip(_WHITE):
                self._read_record(rows, block.offset + offset, line)
                if rows.are_many:
                    yield rows.take_table()
        yield rows.take_table()

    def read_whole(self, block: Block) -> Iterator[pa.Table]:
        """One document (`multiLine`): what is bad in it makes all of it one bad record."""
        data = block.data.removeprefix(BOM).lstrip(_WHITE)
        lines = items_as_lines(data) if len(data) > _SMALL_DOCUMENT else None
        longest = self._options.max_record_bytes
        if len(data) > longest and (lines is None or any(len(piece) > longest for piece in _pieces(lines, longest))):
            self._bad.add(
                block.offset,
                f"a record of more than {longest} bytes is skipped; a larger maxRecordBytes reads it",
                data,
            )
            return
        large = lines is not None and len(data) > BLOCK_SIZE
        if lines is not None and not large and (table := self._items_quickly(lines)) is not None:
            yield table
        elif lines is not None and (large or has_more_values(data, self._options.max_values)):
            yield from self._items(block, lines)
        elif data:
            rows = Rows(self._shape, self._bad, self._uri)
            self._read_record(rows, block.offset, block.data)
            yield rows.take_table()

    def _items_quickly(self, lines: bytes) -> pa.Table | None:
        """The rows of items, a line each; None if any of them takes a closer look."""
        table = None if self.only_slowly else self.read_quickly(lines)
        return table if table is not None and table.num_rows == lines.count(b"\n") + 1 else None

    def _items(self, block: Block, lines: bytes) -> list[pa.Table]:
        """A large array: pyarrow reads most of it, and only a few items at a time are held as what Python decodes."""
        rows, tables, record = Rows(self._shape, self._bad, self._uri), [], Record()
        pending = 0
        try:
            for piece in _pieces(lines, BLOCK_SIZE):
                if (table := self._items_quickly(piece)) is not None:
                    tables += [rows.take_table(), table]
                    continue
                for _, line in LineEnds().split(piece):
                    rows.add_rows(self._item(rows, line, record), Record(), block.offset, line)
                    del record.reasons[MAX_REASONS:]
                    pending += len(line)
                    if pending > _DECODED or rows.are_many:
                        tables.append(rows.take_table())
                        pending = 0
        except ValueError as error:  # UnicodeDecodeError is one
            record, tables = Record(), []
            record.reasons.append(f"not JSON: {error}")
            rows = Rows(self._shape, self._bad, self._uri)
            rows.add_record(rows.make_nulls(), record, block.offset, block.data)
            return [rows.take_table()]
        tables = [table for table in (*tables, rows.take_table()) if table.num_rows]
        if record.reasons:
            rows.add_rows([], record, block.offset, block.data)  # to count it
            tables = [self._with_text(tables[0], block.data), *tables[1:]] if self._bad.keeps and tables else []
        return tables

    def _item(self, rows: Rows, line: bytes, record: Record) -> list[tuple[list[Any], str | None]]:
        text = as_text(line)
        if not text.lstrip().startswith("{"):
            raise ValueError("not a JSON object")
        objects = decode(text, self._options.max_values)
        if self._known is not None:
            self._known.check(objects[0])
        found = len(record.reasons)
        try:
            return self._read(rows, objects, record)
        except TextNeeded:
            del record.reasons[found:]
            return self._read(rows, parse_objects(text), record)

    def _with_text(self, table: pa.Table, record: bytes) -> pa.Table:
        """With the text of a bad record in its first row: in all of them it would be too much."""
        place = table.schema.get_field_index(self._shape.corrupt or "")
        if place < 0 or not table.num_rows:
            return table
        field = table.schema.field(place)
        texts = [record.decode("utf-8", "replace"), *([None] * (table.num_rows - 1))]
        return table.set_column(place, field, pa.chunked_array([pa.array(texts, field.type)]))

    def require_a_column(self, block: Block) -> None:
        """Raise BadObject("wrong-columns") when no record of a block, though good, so much as names a column."""
        names, present = set(self._shape.data.names), set[str]()
        if b"\\" not in block.data and not any(name.encode() in block.data for name in names):
            end = self.separator.first_end(block.data, 0)  # the first record, for the message
            block = block if end < 0 else Block(block.offset, block.data[:end])
        for _, line in self.separator.split(block.data):
            if not line.strip(_WHITE):
                continue
            try:
                found = {key for one in decode(as_text(line), self._options.max_values) for key in one}
            except ValueError:
                return  # it is reported as a bad record
            if found & names:
                return
            present |= found
        require_any(self._shape.data.names, {}, present)

    @cached_property
    def _objects(self) -> Objects:
        return Objects(list(self._shape.data), self._options)

    def _read_record(self, rows: Rows, offset: int, line: bytes) -> None:
        record = Record()
        try:
            text = as_text(line)
            objects = decode(text, self._options.max_values)
        except UnicodeDecodeError as error:
            record.reasons.append(f"not UTF-8: {error.reason} at byte {error.start} of the record")
        except ValueError as error:
            record.reasons.append(f"not JSON: {error}")
        if record.reasons:
            rows.add_record(rows.make_nulls(), record, offset, line)
            return
        if self._known is not None:
            for one in objects:
                self._known.check(one)
        try:
            read = self._read(rows, objects, record)
        except TextNeeded:
            record = Record()
            read = self._read(rows, parse_objects(text), record)
        # one bad object of several makes the record bad, and so all its rows
        rows.add_rows(read, record, offset, line)

    def _read(self, rows: Rows, objects: list[dict[str, Any]], record: Record) -> list[tuple[list[Any], str | None]]:
        """The values of each object, and what is rescued of it."""
        read = []
        for one in objects:
            values, rescued = self._objects.read(one, record)
            texts = ((name, dump(value)) for name, value in rescued.items())
            read.append((values, rows.write_rescued(texts) if rescued else None))
        return read

    def _has_more(self, parsed: pa.Schema) -> bool:
        """Whether there is anything but the declared columns (and nulls), where that matters."""
        if self._shape.rescued is None and self._known is None:
            return False
        return bool(
            more(pa.struct(list(self._shape.data)), pa.struct(list(parsed)), exactly=self._shape.rescued is not None)
        )

    def _parse(self, lines: bytes) -> pa.Table:
        """What pyarrow reads, in wire types. Raises pa.ArrowException for what it cannot read."""
        wanted = pa.schema([pa.field(field.name, wire_type(field.type)) for field in self._shape.data])
        # what is inferred beside the declared columns costs nothing where there is nothing else
        others = "ignore" if self._shape.rescued is None and self._known is None else "infer"
        return pa_json.read_json(
            pa.BufferReader(lines),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=wanted, newlines_in_values=False, unexpected_field_behavior=others
            ),
        )


def _pieces(lines: bytes, size: int) -> Iterator[bytes]:
    """Whole lines, at most so many bytes at a time. One that is longer comes by itself."""
    start = 0
    while start < len(lines):
        end = len(lines)
        if start + size < end:
            end = lines.rfind(b"\n", start, start + size + 1)
        if end < 0:
            end = lines.find(b"\n", start + size)
        if end < 0:
            end = len(lines)
        yield lines[start:end]
        start = end + 1


def wire_type(kind: pa.DataType) -> pa.DataType:
    """What JSON can hold of a type: dates, timestamps and binary are text until they are converted."""
    if pt.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(part.name, wire_type(part.type)) for part in parts])
    if pt.is_list(kind):
        return pa.list_(wire_type(kind.value_type))
    if pt.is_map(kind):
        return pa.map_(pa.string(), wire_type(kind.item_type))
    textual = pt.is_timestamp(kind) or pt.is_date(kind) or is_bytes(kind)
    return pa.string() if textual or pt.is_large_string(kind) else kind


def _look(lines: bytes) -> tuple[bool, bool]:
    """Whether every line begins with `{` (if not, it may still be blank or indented), and whether no line is long.

    pyarrow dies of SIGSEGV on a block that begins with `null` (apache/arrow#47409), also after a byte order mark, and
    reads a later `null` as a row. All else that is no object it refuses by itself.
    """
    plain, short = lines.startswith(b"{"), True
    characters = np.frombuffer(lines, np.uint8)
    for start in range(0, len(lines), _CACHED):
        # one byte more, so that the first character of a line meets its newline; 5 times faster than a search
        piece = characters[start : start + _CACHED + 1]
        newlines = piece[:-1] == _NEWLINE
        plain = plain and not (piece[1:][newlines] != _BRACE).any()
        # a line of more than twice as many bytes as here are in a row has all of a row
        rows = newlines[: len(newlines) // _SHORT * _SHORT].reshape(-1, _SHORT)
        short = short and bool(rows.any(axis=1).all())
    return plain, short


def _may_be_beyond(lines: bytes, *, infers: bool) -> bool:
    """Whether anything may be so deep, or so long, that Spark takes the record for bad, or pyarrow dies of it.

    pyarrow takes any depth of what is not declared; where it `infers` what that is, it calls itself, and makes a column
    of every name.
    """
    deepest = SHALLOW if infers else MAX_DEPTH
    characters = np.frombuffer(lines, np.uint8)
    ends = np.append(np.flatnonzero(characters == _NEWLINE), len(lines))
    starts = np.append(0, ends[:-1] + 1)
    opening = np.flatnonzero((characters | 0x20) == _BRACE)  # `[` too
    openings = np.searchsorted(opening, ends) - np.searchsorted(opening, starts)
    if infers and (ends - starts).max() > _LONGEST_INFERRED:
        return True
    many = np.flatnonzero(openings > deepest)
    if any(nesting(lines[start:end]) > deepest for start, end in zip(starts[many], ends[many], strict=True)):
        return True
    return has_long_number(lines)


def _has_odd_numbers(parsed: pa.Table) -> bool:
    """Whether any floating number is infinite or none: pyarrow takes `Inf` and `-NaN` too, which Spark does not."""
    rest = [chunk for column in parsed.columns for chunk in column.chunks]
    while rest:
        array = rest.pop()
        if pt.is_struct(array.type):
            rest += array.flatten()
        elif pt.is_list(array.type):
            rest.append(array.flatten())
        elif pt.is_floating(array.type) and pc.all(pc.is_finite(array)).as_py() is False:
            return True
    return False


def _has_map(kind: pa.DataType) -> bool:
    return bool(pt.is_map(kind)) or any(map(_has_map, inner_types(kind)))
