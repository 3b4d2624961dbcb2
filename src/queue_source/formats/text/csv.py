"""CSV as a format: objects, their headers, and blocks of records to Arrow.

With a header, columns are matched by name; without one, by position. A block goes one way down (`read_quickly`):
`csv_grammar.py` writes its records so that pyarrow reads them as Spark does, pyarrow parses them, and its columns
become the declared ones. Where a step meets anything unusual, the block is read record by record in Spark's meaning
(`read_slowly`), which says what is wrong. `""` is null like nothing at all, unless `nullValue` and `emptyValue` differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords, OpenObject, Part
from queue_source.formats.new_columns import NewColumns, check_header
from queue_source.formats.text.blocks import BLOCK_SIZE, Block, Separator, make_separator
from queue_source.formats.text.csv_grammar import (
    MAX_COLUMNS,
    CsvLines,
    CsvRecords,
    Field,
    Tokenizer,
    plain_lines,
)
from queue_source.formats.text.records import (
    LineFormat,
    Record,
    RecordReader,
    RecordSchema,
    Rows,
    TextObject,
    has_too_many_cells,
    is_all_null,
    read_block,
)
from queue_source.formats.text.values import (
    TextColumn,
    TextConverter,
    list_meanings,
    make_text_converter,
    pattern_for,
    quote_json,
    text_leaf,
)
from queue_source.formats.types import (
    LARGEST_DECIMAL,
    check_decimals,
    conform_column,
    is_bytes,
    is_text,
    match_names,
    may_overflow,
    require_any,
    shorten,
)
from queue_source.options.content import FormatOptions

_TRUE = ["true", "True", "TRUE"]
_FALSE = ["false", "False", "FALSE"]
_SPECIAL_FLOATS = ("NaN", "Inf", "-Inf")
_ARROW_FLOATS = ("nan", "inf", "-inf")
_HEXADECIMAL = r"^[ \t]*-?0[xX]"
_NOT_BLANK = re.compile(rb"[^\n]")
_CONTROLS = bytes(range(33))
_AROUND = " \t\r\n\v\f\xa0\ufeff"  # white space, and a mark of bytes that came to be within a text
_MAX_BLOCK = (1 << 31) - 1
_TOO_PRECISE = "precision not supported"  # pyarrow's words
_ENOUGH = 4 << 20  # bytes of an object's beginning that show whether its values can be read


class CsvReader:
    """Reads the blocks of one CSV object (or range). With a header, `take_header` comes first."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> None:
        self._options = options
        self._bad = bad
        self._uri = uri
        self._shape = RecordSchema.of(schema, options)
        self._cut_fields = Tokenizer(options).cut_fields
        self._leaf = text_leaf(options)
        self._set_columns([*self._shape.data.names], {name: name for name in self._shape.data.names})
        self.separator: Separator = CsvRecords(options) if options.multi_line else make_separator(options)
        self.only_slowly = False
        self._has_long_decimals = False  # which have more digits than surely fit with the zeros of their scale

    def take_header(self, block: Block) -> Block | None:
        """Return the first block without its header; None while there is none. Raises BadObject("wrong-columns")."""
        for offset, line in self.separator.split(block.data):
            if self._is_record(line):
                declared = {name.casefold() for name in self._shape.data.names}
                texts = [text for text, _ in self.list_fields(line)]
                # a name that is there twice is changed only where the schema has the changed one
                present = [
                    name if not text or name.casefold() in declared else text
                    for name, text in zip(self.name_columns(line), texts, strict=True)
                ]
                present = self._respelled(present)
                if self._options.looks_for_new_columns:
                    check_header(self._shape.full, present, self._options)
                matches = match_names(self._shape.data.names, present, self._options)
                require_any(self._shape.data.names, matches, present)
                self._set_columns(present, matches)
                end = self.separator.first_end(block.data, offset + len(line) + 1)
                end = len(block.data) if end < 0 else end
                return Block(block.offset + end, block.data[end:])
        return None

    def name_columns(self, header: bytes) -> list[str]:
        """Name the columns as Spark does by a header: `_c1` for a nameless one; `a0`, `b`, `a2` for `a,b,a`."""
        texts = [text for text, _ in self.list_fields(header)] if header else []
        counts = Counter(text.lower() for text in texts)
        return [
            f"_c{at}" if not text else f"{text}{at}" if counts[text.lower()] > 1 else text
            for at, text in enumerate(texts)
        ]

    def _respelled(self, present: list[str]) -> list[str]:
        """Return the names of a header, the declared one for each that has just white space or quotes more.

        A column that is there by its own name is not taken from another. Names that differ in case, too, where case
        counts, lose what is around them alone.
        """
        declared, folded = self._shape.data.names, {name.casefold() for name in present}
        absent: dict[str, list[str]] = {}
        for name in declared:
            if name.casefold() not in folded:
                absent.setdefault(self._bare(name).casefold(), []).append(name)
        own = {name.casefold() for name in declared}

        def respell(name: str) -> str:
            bare = self._bare(name)
            meant = [] if name.casefold() in own else absent.get(bare.casefold(), [])
            if len(meant) != 1:
                return name
            return bare if self._options.reader_case_sensitive and bare != self._bare(meant[0]) else meant[0]

        return list(map(respell, present)) if absent else present

    def _bare(self, name: str) -> str:
        """Return a name of a header without what is around it where there are spaces behind the commas."""
        name = name.strip(_AROUND)
        quote = self._options.quote
        if quote and len(name) > 1 and name[0] == name[-1] == quote:
            name = name[1:-1].strip(_AROUND)
        return name

    def split_records(self, data: bytes) -> Iterator[bytes]:
        """Split the text into records, without their ends."""
        return (line for _, line in self.separator.split(data) if self._is_record(line))

    def list_fields(self, line: bytes) -> list[Field]:
        """List the fields of a record; none where it has more than a record may have, as also pyarrow would find."""
        try:
            return self._cut_fields(line.decode("utf-8", "replace"))[0]
        except ValueError:
            return []

    def read_quickly(self, data: bytes) -> pa.Table | None:
        lines = plain_lines(data, self._options, len(self._present), has_integers=self._has_integers)
        if lines is None:
            return None
        if not _NOT_BLANK.search(lines.text):
            return self._shape.full.empty_table()
        if has_too_many_cells(lines.newlines, self._shape.full):
            return None
        if not self._present:  # no column is declared: only the rows are wanted
            rows = sum(1 for _ in self.split_records(data))
            return self._shape.assemble(pa.table({"": pa.nulls(rows)}).select([]))
        try:
            table = self._parse_lines(lines)
            return None if table is None else self._shape.assemble(self._conform_columns(table))
        except (pa.ArrowException, UnicodeDecodeError, BadObject):
            return None  # the slow way reports the fault

    def read_slowly(self, block: Block) -> Iterator[pa.Table]:
        rows = Rows(self._shape, self._bad, self._uri)
        for offset, line in self.separator.split(block.data):
            if self._is_record(line):
                self._read_record(rows, block.offset + offset, line)
                if rows.are_many:
                    yield rows.take_table()
        yield rows.take_table()

    def _set_columns(self, present: Sequence[str], matches: dict[str, str]) -> None:
        """Set which columns the object has, and where in it the declared ones are."""
        data = self._shape.data
        self._present = present
        self._positions = {i: present.index(matches[name]) for i, name in enumerate(data.names) if name in matches}
        self._has_integers = any(pt.is_integer(data.field(i).type) for i in self._positions)
        unmatched = len(present) - len(self._positions)
        self.only_slowly = self._shape.rescued is not None and unmatched > 0

    def _is_record(self, line: bytes) -> bool:
        """Tell whether a line is a record: Spark skips lines of spaces, and those that begin with `comment`."""
        comment = self._options.comment.encode()
        return bool(line.strip(_CONTROLS)) and not (comment and line.startswith(comment))

    def _parse_lines(self, lines: CsvLines) -> pa.Table | None:
        """Parse the lines with pyarrow, a row each; None where there are other rows. Raises pa.ArrowException."""
        options, text, types = self._options, lines.text, dict[str, pa.DataType]()
        narrow: dict[str, pa.DataType] = {}
        nulls_differ = options.null_value != options.empty_value
        usual_floats = (options.nan_value, options.positive_inf, options.negative_inf) == _SPECIAL_FLOATS
        for i, at in self._positions.items():
            kind = self._shape.data.field(i).type
            as_text = (
                nulls_differ
                or pt.is_timestamp(kind)  # because pyarrow wants all or none to have a zone
                or pattern_for(kind, options) is not None
                or (lines.hexadecimals and pt.is_integer(kind))
                or (pt.is_floating(kind) and not usual_floats)
                or (may_overflow(kind) and (self._has_long_decimals or kind.scale == LARGEST_DECIMAL))
            )
            types[f"c{at}"] = pa.string() if as_text else kind
            if may_overflow(kind) and not as_text:
                narrow[f"c{at}"] = kind
        types |= {name: pa.decimal128(LARGEST_DECIMAL - kind.scale, kind.scale) for name, kind in narrow.items()}
        types = types or {"c0": pa.string()}  # no column at all: still count the rows
        convert = pc_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""] if nulls_differ else sorted({"", options.null_value}),
            strings_can_be_null=True,
            quoted_strings_can_be_null=not nulls_differ,
            true_values=_TRUE,
            false_values=_FALSE,
        )
        parse = pc_csv.ParseOptions(
            delimiter=options.sep,
            quote_char=options.quote or False,
            double_quote=bool(options.quote),
            escape_char=False,
            newlines_in_values=options.multi_line,
            ignore_empty_lines=True,
        )
        if nulls_differ and text.endswith(options.sep.encode()):
            text += b"\n"  # else the last field is quoted for pyarrow, where the one before it is
        names = [f"c{at}" for at in range(len(self._present))]
        block = min(BLOCK_SIZE, len(text) + 1)
        if options.multi_line and b"\r" in text:
            # at the beginning of a block pyarrow leaves out the second half of "\r\n", also between quotes
            block = min(len(text) + 1, _MAX_BLOCK)
        while True:  # twice at most
            read = pc_csv.ReadOptions(use_threads=False, block_size=block, column_names=names)
            try:
                table = pc_csv.read_csv(
                    pa.BufferReader(text), read_options=read, parse_options=parse, convert_options=convert
                )
                break
            except pa.ArrowException as error:
                if narrow and _TOO_PRECISE in str(error):
                    self._has_long_decimals = True
                    return self._parse_lines(lines)
                if block >= min(len(text), _MAX_BLOCK):
                    raise
                block = min(len(text) + 1, _MAX_BLOCK)  # a line longer than a block, perhaps
        rows = table.num_rows
        if not options.multi_line and lines.count_filled(rows, strip=False) != rows:
            return None
        for name, kind in narrow.items():
            place = table.column_names.index(name)
            table = table.set_column(place, name, table.column(place).cast(kind))
        check_decimals(table)
        return table

    def _conform_columns(self, table: pa.Table) -> pa.Table:
        """Make the declared columns of the parsed ones. Raises BadObject("corrupt-object")."""
        options = self._options
        floats = (options.nan_value, options.positive_inf, options.negative_inf)
        columns = []
        for i, field in enumerate(self._shape.data):
            if i not in self._positions:
                columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
                continue
            column = table.column(f"c{self._positions[i]}")
            if options.null_value != options.empty_value:  # null is what was not there; then quoted nothing
                if options.empty_value:
                    column = pc.if_else(pc.equal(column, ""), options.empty_value, column)
                column = pc.if_else(pc.equal(column, options.null_value), pa.scalar(None, pa.string()), column)
            if is_text(column.type):  # what a cast from text would take otherwise than Spark
                if is_bytes(field.type):
                    column = column.cast(field.type)  # the bytes of the text, where JSON has base64
                elif pt.is_integer(field.type) and pc.any(pc.match_substring_regex(column, _HEXADECIMAL)).as_py():
                    raise BadObject("corrupt-object", "a hexadecimal number")
                elif pt.is_floating(field.type):
                    for text, arrow_text in zip(floats, _ARROW_FLOATS, strict=True):
                        column = pc.if_else(pc.equal(column, text), arrow_text, column)
            columns.append(conform_column(column, field, self._leaf))
        if not columns:
            return table.select([])  # keeps the number of rows
        return pa.Table.from_arrays(columns, schema=self._shape.data)

    @cached_property
    def _converters(self) -> list[TextConverter]:
        return [make_text_converter(field.type, self._options) for field in self._shape.data]

    def _read_record(self, rows: Rows, offset: int, line: bytes) -> None:
        options, record = self._options, Record()
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"not {options.encoding.upper()}: {error.reason} at byte {error.start} of the record"
            record.reasons.append(reason)
            text = line.decode("utf-8", "replace")
        try:
            fields, all_closed = self._cut_fields(text, max(MAX_COLUMNS, len(self._present)))
        except ValueError as error:
            record.reasons.append(str(error))
            rows.add_record(rows.make_nulls(), record, offset, line)
            return
        if not all_closed:
            record.reasons.append("a quote that nothing closes")
        if self._present and len(fields) != len(self._present):
            record.reasons.append(f"{len(fields)} fields, not {len(self._present)}")
        rescued: dict[str, str] = {}
        values = rows.make_nulls()
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
            matched = set(self._positions.values())
            for at, (value, _) in enumerate(fields):
                if at not in matched and value:
                    name = self._present[at] if at < len(self._present) else f"_c{at}"
                    rescued[name] = quote_json(value)
        rows.add_record(values, record, offset, line, rows.write_rescued(rescued.items()))


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
            behind = next(_pass_header(reader, text.read_blocks(reader.separator)), None)
            if behind is None or (part.end is not None and behind.offset >= part.end):
                return  # blank lines, or the header, are all of this part
            part = Part(max(part.start, behind.offset), part.end)
        blocks = text.read_blocks(reader.separator, part)
        if text.options.header and not part.start:
            blocks = _pass_header(reader, blocks)
        # without a header nothing but its values shows that an object is of these columns
        unseen, before = not text.options.header, text.bad.count
        for block in blocks:
            for table in read_block(reader, block):
                if unseen and table.num_rows:
                    if (
                        text.bad.count > before
                        and is_all_null(table)
                        and not self._has_a_value(text, part, block, schema)
                    ):
                        reason = "".join(f"; {bad.reason}" for bad in text.bad.reported[before : before + 1])
                        raise BadObject("corrupt-object", shorten(f"no value of its records can be read{reason}"))
                    unseen = False
                yield table
            del block  # it is not held while the next one is read

    def _has_a_value(self, text: TextObject, part: Part, block: Block, schema: pa.Schema) -> bool:
        """Tell whether a value of a part's first block can be read, or one of its object's beginning."""
        reader = self.reader(schema, text.options, BadRecords("PERMISSIVE"), text.uri)
        beginning = text.first_block(reader.separator, _ENOUGH) if part != Part() else None
        tables = (table for some in (beginning, block) if some is not None for table in read_block(reader, some))
        return not all(map(is_all_null, tables))

    def joinable(
        self, reader: RecordReader, contents: Sequence[bytes], end: bytes, options: FormatOptions
    ) -> Sequence[bytes] | None:
        """Return the contents without their headers, which have to be the same."""
        assert isinstance(reader, CsvReader)
        if not options.header:
            return contents
        try:
            behind = reader.take_header(Block(0, contents[0]))
        except (BadObject, NewColumns):
            return None
        header = b"" if behind is None else contents[0][: behind.offset]
        if not header.endswith(end) or not all(data.startswith(header) for data in contents):
            return None
        return [data[len(header) :] for data in contents if len(data) > len(header)]

    def infer(self, source: OpenObject, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
        """Infer the columns of the header, or `_c0`, `_c1` ... without one.

        Types are those that all values of a column may have.
        """
        bad = BadRecords("PERMISSIVE")
        reader, before = self.reader(pa.schema([]), options, bad, source.uri), 0
        meanings = list_meanings(options) if types else []
        columns: dict[str, TextColumn] = {}
        for text in TextObject.of(source, options, bad, Part()).members():
            blocks = text.read_blocks(reader.separator, Part(0, limit - before))
            lines = (line for block in blocks for line in reader.split_records(block.data))
            names = reader.name_columns(next(lines, b"")) if options.header else []
            present = [columns.setdefault(name, TextColumn(meanings)) for name in names]
            for fields in map(reader.list_fields, lines):
                if not options.header:
                    names = [f"_c{at}" for at in range(len(present), len(fields))]
                    present += [columns.setdefault(name, TextColumn(meanings)) for name in names]
                for column, (value, quoted) in zip(present, fields, strict=False):
                    if value != options.null_value and (value or (quoted and options.empty_value)):
                        column.add_text(value)
            before += text.stream.tell()
            if before >= limit:
                break
        return pa.schema([(name, c.infer_type() if types else pa.string()) for name, c in columns.items()])


def _pass_header(reader: CsvReader, blocks: Iterator[Block]) -> Iterator[Block]:
    """Give the blocks without the header, which the reader takes."""
    for block in blocks:
        behind = reader.take_header(block)
        if behind is not None:
            yield behind
            break
    yield from blocks


CSV = Csv()
