"""CSV: whole blocks of records to Arrow, or record by record where a block has anything unusual.

With a header, columns are matched by name; without one, by position. pyarrow parses; what Spark understands otherwise
is corrected before or after, or the block is read in Python (`slowly`), in Spark's meaning:

- `escape` has a meaning only before a quote (or itself) within quotes, and is a plain character elsewhere, where
  pyarrow would drop it: `C:\\new` keeps its backslash;
- quotes surround fields or are doubled in them: with any other, pyarrow would end fields and records elsewhere;
- `""` is null like nothing at all, unless `nullValue` and `emptyValue` differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.date_patterns import pattern_for
from queue_source.formats.new_columns import check_header
from queue_source.formats.text.blocks import (
    BLOCK_SIZE,
    BOM,
    Block,
    Separator,
    count_lines,
    count_newlines,
    is_utf8,
    line_separator,
    unified,
)
from queue_source.formats.text.csv_tokens import MAX_COLUMNS, CsvRecords, Field, Tokenizer, regular_quotes
from queue_source.formats.text.marks import marks, one_earlier
from queue_source.formats.text.records import Record, RecordSchema, Rows, are_too_many
from queue_source.formats.text.values import TextConverter, make_text_converter, quote_json, text_leaf
from queue_source.formats.typed.columns import check_decimals, conform_column, match_names, require_any
from queue_source.formats.types import is_bytes, is_text
from queue_source.options.file_format import FormatOptions

_TRUE = ["true", "True", "TRUE"]
_FALSE = ["false", "False", "FALSE"]
_HEXADECIMAL = r"^[ \t]*-?0[xX]"
_BLANK_LINE = re.compile(rb"^[\0-\x09\x0b-\x20]+$", re.MULTILINE)
_NOT_BLANK = re.compile(rb"[^\n]")
_CONTROLS = bytes(range(33))
_MAX_ESCAPES = 1 << 20  # each takes a hundred bytes while a field is searched
_MAX_BLOCK = (1 << 31) - 1


class CsvReader:
    """Reads the blocks of one CSV object (or range). With a header, `take_header` comes first."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> None:
        self._options = options
        self._bad = bad
        self._uri = uri
        self._shape = RecordSchema.of(schema, options)
        self._tokens = Tokenizer(options).fields
        self._leaf = text_leaf(options)
        self._take_columns([*self._shape.data.names], {name: name for name in self._shape.data.names})
        self.separator: Separator = CsvRecords(options) if options.multi_line else line_separator(options)
        self.only_slowly = False

    def take_header(self, block: Block) -> Block | None:
        """What the first block holds behind its header; None while there is none. Raises BadObject("wrong-columns")."""
        for offset, line in self.separator.split(block.data):
            if self._is_record(line):
                present = self._present_in(line)
                if self._options.watch_new_columns:
                    check_header(self._shape.full, present, self._options)
                matches = match_names(self._shape.data.names, present)
                require_any(self._shape.data.names, matches, present)
                self._take_columns(present, matches)
                end = self.separator.first_end(block.data, offset + len(line) + 1)
                end = len(block.data) if end < 0 else end
                return Block(block.offset + end, block.data[end:])
        return None

    def names(self, header: bytes) -> list[str]:
        """The columns' names as Spark makes them of a header: `_c1` for a nameless one; `a0`, `b`, `a2` for `a,b,a`."""
        given = [text for text, _ in self.fields(header)] if header else []
        counts = Counter(text.lower() for text in given)
        return [
            f"_c{at}" if not text else f"{text}{at}" if counts[text.lower()] > 1 else text
            for at, text in enumerate(given)
        ]

    def _present_in(self, header: bytes) -> list[str]:
        """The same, but a name that is there twice is changed only where the schema has the changed one."""
        names = self.names(header)
        declared = {name.casefold() for name in self._shape.data.names}
        return [
            name if not text or name.casefold() in declared else text
            for name, (text, _) in zip(names, self.fields(header), strict=True)
        ]

    def lines(self, data: bytes) -> Iterator[bytes]:
        """The records, without their ends."""
        return (line for _, line in self.separator.split(data) if self._is_record(line))

    def fields(self, line: bytes) -> list[Field]:
        """The fields of a record; none where it has more than a record may have, as also pyarrow would find."""
        try:
            return self._tokens(line.decode("utf-8", "replace"))[0]
        except ValueError:
            return []

    def quickly(self, data: bytes) -> pa.Table | None:
        lines = self._as_pyarrow_wants(data)
        if lines is None:
            return None
        if not _NOT_BLANK.search(lines):
            return self._shape.full.empty_table()
        newlines = count_newlines(lines)
        if are_too_many(newlines, self._shape.full):
            return None
        if not self._present:  # no column is declared: only the rows are wanted
            rows = sum(1 for _ in self.lines(data))
            return self._shape.assemble(pa.table({"": pa.nulls(rows)}).select([]))
        try:
            table = self._parse(lines)
            rows = table.num_rows
            if not self._options.multi_line and count_lines(lines, newlines, rows, strip=False) != rows:
                return None
            check_decimals(table)
            return self._shape.assemble(self._conformed(table))
        except (pa.ArrowException, UnicodeDecodeError, BadObject):
            return None  # the slow way finds out what is wrong

    def slowly(self, block: Block) -> Iterator[pa.Table]:
        rows = Rows(self._shape, self._bad, self._uri)
        for offset, line in self.separator.split(block.data):
            if self._is_record(line):
                self._read_record(rows, block.offset + offset, line)
                if rows.are_many:
                    yield rows.take()
        yield rows.take()

    @cached_property
    def _converters(self) -> list[TextConverter]:
        return [make_text_converter(field.type, self._options) for field in self._shape.data]

    def _take_columns(self, present: Sequence[str], matches: dict[str, str]) -> None:
        data = self._shape.data
        self._present = present
        self._positions = {i: present.index(matches[name]) for i, name in enumerate(data.names) if name in matches}
        unmatched = len(present) - len(self._positions)
        self.only_slowly = self._shape.rescued is not None and unmatched > 0

    def _is_record(self, line: bytes) -> bool:
        """Spark skips lines of nothing but spaces, and those that begin with `comment`."""
        comment = self._options.comment.encode()
        return bool(line.strip(_CONTROLS)) and not (comment and line.startswith(comment))

    def _read_record(self, rows: Rows, offset: int, line: bytes) -> None:
        options, record = self._options, Record()
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            record.reasons.append(f"not UTF-8: {error.reason} at byte {error.start} of the record")
            text = line.decode("utf-8", "replace")
        try:
            fields, all_closed = self._tokens(text, max(MAX_COLUMNS, len(self._present)))
        except ValueError as error:
            record.reasons.append(str(error))
            rows.add(rows.nothing(), record, offset, line)
            return
        if not all_closed:
            record.reasons.append("a quote that nothing closes")
        if self._present and len(fields) != len(self._present):
            record.reasons.append(f"{len(fields)} fields, not {len(self._present)}")
        rescued: dict[str, str] = {}
        values = rows.nothing()
        for i, at in self._positions.items():
            if at >= len(fields):
                continue
            value, quoted = fields[at]
            if value == "":
                if not quoted:
                    continue
                value = options.empty_value
            if value == options.null_value:
                continue
            try:
                values[i] = self._converters[i](value)
            except ValueError as error:
                name = self._shape.data.field(i).name
                if self._shape.rescued is None:
                    record.reasons.append(f"column {name!r}: {error}")
                rescued[name] = quote_json(value)
        if self._shape.rescued is not None:
            known = set(self._positions.values())
            for at, (value, _) in enumerate(fields):
                if at not in known and value:
                    name = self._present[at] if at < len(self._present) else f"_c{at}"
                    rescued[name] = quote_json(value)
        rows.add(values, record, offset, line, rows.as_json(rescued.items()))

    def _as_pyarrow_wants(self, data: bytes) -> bytes | None:
        """Lines that end with `\\n`, with nothing but records, in plain quotes; None when they cannot be had."""
        options = self._options
        if not is_utf8(data) or data.startswith(BOM):  # which pyarrow leaves out wherever a block begins
            return None
        lines = data if options.multi_line else unified(data, options.line_sep, blank=None)
        if lines is None:
            return None
        quote, comment = options.quote.encode(), options.comment.encode()
        if comment and comment in lines:
            if options.multi_line:
                return None
            lines = re.sub(rb"(?m)^%b[^\n]*\n?" % re.escape(comment), b"", lines)
        if options.ignore_leading_white_space or options.ignore_trailing_white_space:
            if quote and quote in lines:
                return None
            lines = _trimmed(lines, options)
        may_be_record = len(self._present) == 1 or self._options.sep <= " "  # a blank line, for pyarrow
        if may_be_record and _may_have_blank_line(lines) and _BLANK_LINE.search(lines):
            return None
        escape = options.escape.encode()
        if escape and escape in lines and lines.count(escape) > _MAX_ESCAPES:  # to search is quicker than to count
            return None
        plain = _plain_escapes(lines, options)
        if plain is None or not quote or quote not in plain:
            return plain
        regular = regular_quotes(plain, quote, options.sep.encode(), over_lines=options.multi_line)
        return plain if regular else None

    def _parse(self, lines: bytes) -> pa.Table:
        options, data = self._options, self._shape.data
        names = [_name(i) for i in range(len(self._present))]
        as_text = _may_be_hexadecimal(lines) and any(pt.is_integer(data.field(i).type) for i in self._positions)
        wanted = {_name(at): self._wire_type(data.field(i).type, as_text) for i, at in self._positions.items()}
        types = wanted or {names[0]: pa.string()}  # no column at all: still count the rows
        nulls_differ = options.null_value != options.empty_value
        convert = pc_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""] if nulls_differ else sorted({"", options.null_value}),
            strings_can_be_null=True,
            quoted_strings_can_be_null=not nulls_differ,
            true_values=_TRUE,
            false_values=_FALSE,
        )
        block = min(BLOCK_SIZE, len(lines) + 1)
        while True:  # twice at most
            read = pc_csv.ReadOptions(use_threads=False, block_size=block, column_names=names)
            try:
                return pc_csv.read_csv(
                    pa.BufferReader(lines),
                    read_options=read,
                    parse_options=self._parse_options(),
                    convert_options=convert,
                )
            except pa.ArrowException:
                if block >= min(len(lines), _MAX_BLOCK):
                    raise
                block = min(len(lines) + 1, _MAX_BLOCK)  # a line longer than a block, perhaps

    def _parse_options(self) -> pc_csv.ParseOptions:
        return pc_csv.ParseOptions(
            delimiter=self._options.sep,
            quote_char=self._options.quote or False,
            double_quote=bool(self._options.quote),
            escape_char=False,
            newlines_in_values=self._options.multi_line,
            ignore_empty_lines=True,
        )

    def _wire_type(self, kind: pa.DataType, integers_as_text: bool) -> pa.DataType:
        """What pyarrow shall read a column as; timestamps come as text, because it wants all or none to have a zone."""
        options = self._options
        as_text = (
            options.null_value != options.empty_value
            or pt.is_timestamp(kind)
            or pattern_for(kind, options) is not None
            or (integers_as_text and pt.is_integer(kind))
            or (pt.is_floating(kind) and (options.nan_value, options.positive_inf, options.negative_inf) != _SPECIAL)
        )
        return pa.string() if as_text else kind

    def _conformed(self, table: pa.Table) -> pa.Table:
        options = self._options
        columns = []
        for i, field in enumerate(self._shape.data):
            if i not in self._positions:
                columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
                continue
            column = table.column(_name(self._positions[i]))
            if options.null_value != options.empty_value:
                column = _apply_nulls(column, options)
            if is_text(column.type):
                column = self._of_text(column, field.type)
            columns.append(conform_column(column, field, self._leaf))
        if not columns:
            return table.select([])  # keeps the number of rows
        return pa.Table.from_arrays(columns, schema=self._shape.data)

    def _of_text(self, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        """What a cast from text would take otherwise than Spark."""
        options = self._options
        if is_bytes(kind):
            return column.cast(kind)  # the bytes of the text, where JSON has base64
        if pt.is_integer(kind) and pc.any(pc.match_substring_regex(column, _HEXADECIMAL)).as_py():
            raise BadObject("corrupt-object", "a hexadecimal number")
        if pt.is_floating(kind):
            for text, plain in zip(
                (options.nan_value, options.positive_inf, options.negative_inf), _PLAIN, strict=True
            ):
                column = pc.if_else(pc.equal(column, text), plain, column)
        return column


_SPECIAL = ("NaN", "Inf", "-Inf")
_PLAIN = ("nan", "inf", "-inf")


def _may_be_hexadecimal(lines: bytes) -> bool:
    """Whether there is a `0x`: pyarrow takes it for the beginning of a number. A search for two characters is slow."""
    if b"x" not in lines and b"X" not in lines:
        return False
    return bool((marks(lines, b"0") & one_earlier(marks(lines, b"xX"))).any())


def _may_have_blank_line(lines: bytes) -> bool:
    """Whether any line begins with white space: so many times faster than a search."""
    characters = np.frombuffer(lines, np.uint8)
    first = np.append(characters[:1], characters[1:][characters[:-1] == ord("\n")])
    return bool(((first <= ord(" ")) & (first != ord("\n"))).any())


def _trimmed(lines: bytes, options: FormatOptions) -> bytes:
    """Fields without the spaces around them; no field is quoted."""
    s = re.escape(options.sep.encode())
    if options.ignore_leading_white_space:
        lines = re.sub(rb"(^|%b)(?:(?!%b)[\0-\x09\x0b-\x20])+" % (s, s), rb"\1", lines, flags=re.MULTILINE)
    if options.ignore_trailing_white_space:
        lines = re.sub(rb"(?:(?!%b)[\0-\x09\x0b-\x20])+(?=$|%b)" % (s, s), b"", lines, flags=re.MULTILINE)
    return lines


def _apply_nulls(column: pa.ChunkedArray, options: FormatOptions) -> pa.ChunkedArray:
    """Spark's rule for a column of strings: null is what was not there; then quoted nothing; then `nullValue`."""
    if options.empty_value:
        column = pc.if_else(pc.equal(column, ""), options.empty_value, column)
    return pc.if_else(pc.equal(column, options.null_value), pa.scalar(None, pa.string()), column)


def _plain_escapes(lines: bytes, options: FormatOptions) -> bytes | None:
    """The lines with escaped quotes as doubled quotes, so that no other escape character has a meaning.

    None where a field with one is never closed.
    """
    quote, escape = options.quote.encode(), options.escape.encode()
    if not escape or not quote or escape == quote:
        return lines
    if escape not in lines or (escape + quote not in lines and escape * 2 not in lines):
        return lines  # the usual file; each escape character in it means itself
    q, e, s = re.escape(quote), re.escape(escape), re.escape(options.sep.encode())
    line_end = b"" if options.multi_line else rb"\n"  # that no quoted field goes over
    inner = rb"[^%b%b%b]*" % (q, e, line_end)
    pair = (rb"%b[\s\S]|%b%b" if options.multi_line else rb"%b.|%b%b") % (e, q, q)
    quoted = re.compile(rb"(?:(?<=\A)|(?<=[\r\n%b]))%b(%b(?:(?:%b)%b)*)%b" % (s, q, inner, pair, inner, q))
    pairs = re.compile(rb"%b(%b|%b)" % (e, e, q))

    outside: list[bytes] = []
    inside: list[bytes] = []
    place = 0
    for field in quoted.finditer(lines):
        if escape in field.group(1):
            outside.append(lines[place : field.start(1)])
            inside.append(pairs.sub(lambda pair: quote * 2 if pair.group(1) == quote else escape, field.group(1)))
            place = field.end(1)
    outside.append(lines[place:])
    if any(escape + quote in part for part in outside):
        return None  # no end of the field that this quote is in was found
    return b"".join(chain.from_iterable(zip(outside, [*inside, b""], strict=True)))


def _name(position: int) -> str:
    return f"c{position}"
