"""JSON as a format: objects, and blocks of lines to Arrow, an object a line; or (`multiLine`) one document.

pyarrow parses (`read_quickly`). Where it fails, or cannot read a type at all (maps), `json_values.py` reads the same
lines in Python (`read_slowly`): it says exactly which record and column is wrong, or reads what Spark reads and pyarrow
does not (a number into a STRING). A document is an object or an array of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords, OpenObject, Part
from queue_source.formats.compression import codec_of, refuse_archive
from queue_source.formats.new_columns import more
from queue_source.formats.text import json_grammar as grammar
from queue_source.formats.text import json_structure as structure
from queue_source.formats.text.blocks import (
    BLOCK_SIZE,
    BOM,
    Block,
    LineEnds,
    Lines,
    make_separator,
    unify_lines,
)
from queue_source.formats.text.json_documents import cut_elements
from queue_source.formats.text.json_names import NameMatcher, Spellings, spellings_of
from queue_source.formats.text.json_values import KnownNames, ObjectReader, TextNeeded, infer_records
from queue_source.formats.text.records import (
    MAX_REASONS,
    LineFormat,
    Record,
    RecordReader,
    RecordSchema,
    Rows,
    TextObject,
    has_empty_row,
    has_too_many_cells,
    is_all_null,
    read_block,
)
from queue_source.formats.text.values import text_leaf
from queue_source.formats.types import (
    check_decimals,
    conform_column,
    inner_types,
    is_bytes,
    is_text,
    may_overflow,
    require_any,
    shorten,
    special_struct,
)
from queue_source.formats.variants import VARIANT
from queue_source.options.content import FormatOptions
from queue_source.storage.open_files import InMemory, ObjectFile

_SMALL = 64 << 10  # bytes of JSON that Python has read before pyarrow has begun
_ENOUGH = 4 << 20  # bytes of an object's beginning that show whether its records name a column
_DECODED = 4 << 20  # bytes of text whose values are held as what Python decodes
_WHITE = b" \t\r\n"
_BREAKS = bytes.maketrans(b"\r\n", b"\t\t")
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_NO_OBJECT = re.compile(rb"[ \t]*[^ \t\n{]")
_LATER_NO_OBJECT = re.compile(rb"\n" + _NO_OBJECT.pattern)  # ten times as quick as `^`
_OTHER_FIELD = "unexpected field"  # pyarrow's words
_NEGATIVE_ZERO = re.compile(rb"-0(?![.\deE])")  # which has a sign for pyarrow alone
_ODD_NUMBER = re.compile(rb"[:,\[]\s*(?:-?Inf|-NaN)\s*[,\]}]")


class JsonReader:
    """Reads the blocks of one JSON object (or range)."""

    def __init__(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> None:
        self._bad = bad
        self._uri = uri
        self._separator_text = options.line_sep
        self._shape = RecordSchema.of(schema, options)
        self._options = options
        self._leaf = text_leaf(options)
        self._whole = options.single_variant_column
        self._known = KnownNames(schema, options) if options.looks_for_new_columns else None
        self._infers = self._shape.rescued is not None or options.watch_new_columns
        self._has_others = False  # than the declared fields, as far as it is known
        self._is_alone = options.records_path is not None  # a record is one object, in a line that was made of it
        self.separator = LineEnds() if self._is_alone else make_separator(options, structure.last_object_end)
        self.only_slowly = any(_is_only_read_slowly(field.type) for field in self._shape.data)

    def read_quickly(self, data: bytes) -> pa.Table | None:
        text = unify_lines(data, self._separator_text, blank=b" ")
        if text is None:
            return None
        has_lines = b"\n" in text[:_SMALL]
        if has_lines and (table := self._read_lines(text)) is not None:
            return table
        lines = None if self._is_alone else structure.split_objects(text)
        if lines is None and has_lines:
            return None
        return self._read_lines(text if lines is None else lines)

    def _read_lines(self, text: bytes) -> pa.Table | None:
        """Read lines of one object each; None when anything about them is unusual."""
        if not _NOT_BLANK.search(text):
            return self._shape.full.empty_table()
        lines = Lines.of(text)
        inspected = grammar.inspect_lines(text)
        if has_too_many_cells(lines.newlines, self._shape.full):
            return None
        if not inspected.begin_with_braces and (_NO_OBJECT.match(text) or _LATER_NO_OBJECT.search(text)):
            return None
        infers = self._infers or self._options.tells_new_columns
        if (infers or not inspected.are_short) and grammar.may_exceed_limits(text, infers=infers):
            return None
        try:
            parsed = self._parse_lines(text)
            columns = parsed.columns[: len(self._shape.data)]
            # a null's field may be there in another case
            has_nulls = self._has_others and any(array.null_count for array in _arrays(columns))
            if has_nulls and self._spellings.may_differ(text):
                rewritten = None if self._options.reader_case_sensitive else self._spellings.rewrite(text)
                if rewritten is None:
                    return None
                parsed = self._parse_lines(rewritten)
            # where lines are blank, their number may be right by chance
            guess = parsed.num_rows if inspected.begin_with_braces else -1
            if lines.count_filled(guess, strip=True) != parsed.num_rows:
                return None  # two objects in a line, or one over two
            rescues, declared = self._shape.rescued is not None, pa.struct(list(self._shape.data))
            parsed_type = pa.struct(list(parsed.schema))
            if self._infers and more(declared, parsed_type, exactly=rescues, empties=rescues):
                return None  # to be rescued, or a reason to stop
            numbers = [array for array in _arrays(parsed.columns) if pt.is_floating(array.type)]
            # pyarrow takes `Inf` and `-NaN`, which Spark refuses
            if any(pc.all(pc.is_finite(array)).as_py() is False for array in numbers) and _ODD_NUMBER.search(text):
                return None
            if any(map(_has_negative_zero, numbers)) and _NEGATIVE_ZERO.search(text):
                return None
            check_decimals(parsed)
            columns = [conform_column(parsed.column(i), field, self._leaf) for i, field in enumerate(self._shape.data)]
        except (pa.ArrowException, UnicodeDecodeError, BadObject):
            return None  # the slow way reports the fault, if there is one
        if columns:
            parsed = pa.Table.from_arrays(columns, schema=self._shape.data)
        return self._shape.assemble(parsed)

    def read_slowly(self, block: Block) -> Iterator[pa.Table]:
        rows = Rows(self._shape, self._bad, self._uri)
        for offset, record in self.split_records(block.data):
            self._read_record(rows, block.offset + offset, record)
            if rows.are_many:
                yield rows.take_table()
        yield rows.take_table()

    def split_records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Cut whole lines into (offset, record). What is around an element of an array is no part of the record."""
        for start, line in self.separator.split(data):
            for offset, record in ((0, line),) if self._is_alone else structure.cut_objects(line):
                if not (text := record.strip(_WHITE)):
                    continue
                if self._options.records_path is not None:
                    offset, record = offset + record.index(text), text
                yield start + offset, record

    def read_whole(self, block: Block) -> Iterator[pa.Table]:
        """Read one document (`multiLine`): any fault makes all of it one bad record."""
        data = block.data.removeprefix(BOM).lstrip(_WHITE)
        is_cut = len(data) > _SMALL and self._whole is None
        lines = structure.cut_items(data) if is_cut else None
        longest = self._options.max_record_bytes
        if len(data) > longest and (
            lines is None or any(len(piece) > longest for piece in grammar.cut_lines(lines, longest))
        ):
            self._bad.add(
                block.offset,
                f"a record of more than {longest} bytes is skipped; a larger maxRecordBytes reads it",
                data,
            )
            return
        large = lines is not None and len(data) > BLOCK_SIZE
        if lines is not None and not large and (table := self._read_items_quickly(lines)) is not None:
            yield table
        elif lines is not None and (large or structure.has_more_values(data, self._options.max_values)):
            yield from self._read_items(block, lines)
        elif data:
            rows = Rows(self._shape, self._bad, self._uri)
            self._read_record(rows, block.offset, block.data)
            yield rows.take_table()

    def _read_items_quickly(self, lines: bytes) -> pa.Table | None:
        """Read the rows of items, a line each; None if any of them takes a closer look."""
        table = None if self.only_slowly else self._read_lines(lines)
        return table if table is not None and table.num_rows == lines.count(b"\n") + 1 else None

    def _read_items(self, block: Block, lines: bytes) -> list[pa.Table]:
        """Read a large array: pyarrow reads most of it, and few items at a time are held as what Python decodes."""
        rows, tables, record = Rows(self._shape, self._bad, self._uri), [], Record()
        pending = 0
        try:
            for piece in grammar.cut_lines(lines, BLOCK_SIZE):
                if (table := self._read_items_quickly(piece)) is not None:
                    tables += [rows.take_table(), table]
                    continue
                for _, line in LineEnds().split(piece):
                    text = grammar.decode_text(line)
                    if not text.lstrip().startswith("{"):
                        raise ValueError("not a JSON object")
                    objects = grammar.decode_objects(text, self._options.max_values)
                    rows.add_rows(self._read_objects(rows, text, objects, record), Record(), block.offset, line)
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
            if not self._bad.keeps or not tables:
                return []
            table, place = tables[0], self._shape.full.get_field_index(self._shape.corrupt or "")
            if place >= 0:  # the record's text is in the first row: in all of them it would be too much
                field = table.schema.field(place)
                texts = [block.data.decode("utf-8", "replace"), *([None] * (table.num_rows - 1))]
                tables[0] = table.set_column(place, field, pa.chunked_array([pa.array(texts, field.type)]))
        return tables

    def require_a_column(self, data: bytes) -> None:
        """Raise BadObject when no record of a block can be read, or none that can so much as names a column.

        Where some can be read, the others are reported as bad records.
        """
        records: Iterable[bytes] = (record for _, record in self.split_records(data))
        if self._options.multi_line:  # a line for each record, if a look at its brackets tells them; else one record
            lines = None if self._whole else structure.cut_items(data.removeprefix(BOM).lstrip(_WHITE))
            records = [data] if lines is None else filter(bytes.strip, lines.splitlines())
        names, present, failure, is_read = self._shape.data.names, set[str](), "", False
        lowered = data.lower() if data.isascii() and b"\\" not in data else None
        is_unnamed = lowered is not None and not any(name.lower().encode() in lowered for name in names)
        for record in records:
            try:
                text = grammar.decode_text(record)
                if self._whole is not None:  # any value fills it
                    grammar.decode_value(text, self._options.max_values)
                    return
                named = {key for item in grammar.decode_objects(text, self._options.max_values) for key in item}
            except ValueError as error:  # UnicodeDecodeError is one
                failure = failure or f"the first of them: {error}"
                continue
            if self._matcher.any_in(named):
                return
            present |= named
            is_read = True
            if is_unnamed:
                break  # one record is enough for the message
        if failure and not is_read:
            hint = "; a document of several lines is read with multiLine=true" if "cut off" in failure else ""
            raise BadObject("corrupt-object", shorten(f"none of its records can be read; {failure}") + hint)
        require_any(names, {}, present)

    @cached_property
    def _matcher(self) -> NameMatcher:
        return NameMatcher(self._shape.data.names, self._options)

    @cached_property
    def _spellings(self) -> Spellings:
        return spellings_of(self._shape.data)

    @cached_property
    def _object_reader(self) -> ObjectReader:
        return ObjectReader(list(self._shape.data), self._options)

    def _read_record(self, rows: Rows, offset: int, line: bytes) -> None:
        record = Record()
        try:
            text = grammar.decode_text(line)
            if self._whole is None:
                objects = grammar.decode_objects(text, self._options.max_values)
                if self._is_alone and text.lstrip().startswith("["):
                    raise ValueError("not a JSON object")
            else:
                objects = [{self._whole: grammar.decode_value(text, self._options.max_values)}]
        except UnicodeDecodeError as error:
            reason = f"not {self._options.encoding.upper()}: {error.reason} at byte {error.start} of the record"
            record.reasons.append(reason)
        except ValueError as error:
            record.reasons.append(f"not JSON: {error}")
        if record.reasons:
            rows.add_record(rows.make_nulls(), record, offset, line)
            return
        # one bad object of several makes the record bad, and so all its rows
        rows.add_rows(self._read_objects(rows, text, objects, record), record, offset, line)

    def _read_objects(
        self, rows: Rows, text: str, objects: list[dict[str, Any]], record: Record
    ) -> list[tuple[list[Any], str | None]]:
        """Read the values of each object of a text, and what is rescued of it."""
        if self._known is not None:
            for item in objects:
                self._known.check(item)
        reasons = len(record.reasons)
        try:
            return [self._read_object(rows, item, record) for item in objects]
        except TextNeeded:
            del record.reasons[reasons:]
            return [self._read_object(rows, item, record) for item in grammar.parse_objects(text)]

    def _read_object(self, rows: Rows, item: dict[str, Any], record: Record) -> tuple[list[Any], str | None]:
        values, rescued = self._object_reader.read_object(item, record)
        texts = ((name, grammar.dump_value(value)) for name, value in rescued.items())
        return values, rows.write_rescued(texts) if rescued else None

    def _parse_lines(self, lines: bytes) -> pa.Table:
        """Parse the lines with pyarrow, in wire types. Raises pa.ArrowException for what it cannot read."""
        wire_schema = pa.schema([pa.field(field.name, make_wire_type(field.type)) for field in self._shape.data])
        if not self._has_others:
            try:  # nothing is lost by it: it ends at the first other field
                return _parse(lines, wire_schema, "error")
            except pa.ArrowInvalid as error:
                if _OTHER_FIELD not in str(error):
                    raise
                self._has_others = True
        # what is inferred beside the declared columns costs nothing where there is nothing else
        if self._known is not None and not self._options.watch_new_columns:
            self._known.pass_by(_parse(lines, wire_schema, "infer").schema)
        return _parse(lines, wire_schema, "infer" if self._infers else "ignore")


def _parse(lines: bytes, schema: pa.Schema, others: str) -> pa.Table:
    """Parse lines. `others`: what happens with fields that are not in the schema."""
    return pa_json.read_json(
        pa.BufferReader(lines),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=others
        ),
    )


def make_wire_type(kind: pa.DataType) -> pa.DataType:
    """Return what JSON can hold of a type: dates, timestamps and binary are text until they are converted.

    Decimals have 256 bits where pyarrow would read another number within 128.
    """
    if pt.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(part.name, make_wire_type(part.type)) for part in parts])
    if pt.is_list(kind):
        return pa.list_(make_wire_type(kind.value_type))
    if pt.is_map(kind):
        return pa.map_(pa.string(), make_wire_type(kind.item_type))
    if may_overflow(kind):
        return pa.decimal256(kind.precision, kind.scale)
    textual = pt.is_timestamp(kind) or pt.is_date(kind) or is_bytes(kind)
    return pa.string() if textual or pt.is_large_string(kind) else kind


def _arrays(columns: Sequence[pa.ChunkedArray]) -> Iterator[pa.Array]:
    """Yield all arrays of columns, in any depth, but those of maps."""
    arrays = [chunk for column in columns for chunk in column.chunks]
    while arrays:
        array = arrays.pop()
        yield array
        if pt.is_struct(array.type) or pt.is_list(array.type):
            arrays += array.flatten() if pt.is_struct(array.type) else [array.flatten()]


def _has_negative_zero(numbers: pa.Array) -> bool:
    """Tell whether -0.0 is among floating-point numbers: no other of their length has the first bit alone."""
    bits = pa.int64() if pt.is_float64(numbers.type) else pa.int32()
    return bool(pc.any(pc.equal(numbers.view(bits), -(1 << bits.bit_width - 1))).as_py())


def _is_only_read_slowly(kind: pa.DataType) -> bool:
    """Tell whether a type has parts that pyarrow's parser does not read."""
    special = pt.is_map(kind) or special_struct(kind) is not None
    return bool(special) or any(map(_is_only_read_slowly, inner_types(kind)))


def _read_blocks(text: TextObject, reader: JsonReader, part: Part) -> Iterator[Block]:
    if text.options.multi_line:
        return text.read_document(text.options.max_document_bytes)
    if text.options.records_path is not None:
        return cut_elements(text.stream, text.bad, text.options)
    return text.read_blocks(reader.separator, part)


def _shows_nothing(table: pa.Table) -> bool:
    """Tell whether no value says that the object is JSON: where no column could be inferred, there is none."""
    return not table.columns or is_all_null(table)


def _require_a_column(text: TextObject, reader: JsonReader, part: Part, data: bytes, schema: pa.Schema) -> None:
    """Raise BadObject for the first block of a part if no record names a column, nor one of the object's beginning."""
    if part != Part() and (beginning := text.first_block(reader.separator, _ENOUGH)) is not None:
        with suppress(BadObject):
            return reader.require_a_column(beginning.data)
        # a bad record's text and what is rescued are values, too
        other = JsonReader(schema, text.options, BadRecords(text.options.mode), text.uri)
        if not all(map(is_all_null, read_block(other, beginning))):
            return None
    return reader.require_a_column(data)


class Json(LineFormat):
    name = "json"
    values_are_text = True
    has_bad_records = True
    specials = ("VARIANT",)

    def fixed_columns(self, options: FormatOptions) -> pa.Schema | None:
        name = options.single_variant_column
        return None if name is None else pa.schema([(name, VARIANT)])

    def not_fillable(self, kind: pa.DataType) -> str | None:
        if pt.is_map(kind) and not is_text(kind.key_type):
            return f"{kind}: the keys of a JSON object are strings"
        return super().not_fillable(kind)

    def reader(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> JsonReader:
        return JsonReader(schema, options, bad, uri)

    def read(self, text: TextObject, part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
        reader = self.reader(schema, text.options, text.bad, text.uri)
        is_document, before = text.options.multi_line, text.bad.count
        unseen = True
        for block in _read_blocks(text, reader, part):
            for table in reader.read_whole(block) if is_document else read_block(reader, block):
                if unseen and (table.num_rows or not table.columns):  # where none are inferred, bad rows are left out
                    if _shows_nothing(table):
                        if is_document and text.bad.count > before:
                            reason = "" if text.bad.omitted else f"; {text.bad.reported[-1].reason}"
                            raise BadObject("corrupt-object", shorten(f"the document cannot be read{reason}"))
                        _require_a_column(text, reader, part, block.data, schema)
                    unseen = False
                yield table
            del block  # it is not held while the next one is read

    def combine(self, contents: Sequence[bytes], schema: pa.Schema, options: FormatOptions) -> pa.Table | None:
        table = super().combine(contents, schema, options)
        return None if table is None or has_empty_row(table) else table

    def joinable(
        self, reader: RecordReader, contents: Sequence[bytes], end: bytes, options: FormatOptions
    ) -> Sequence[bytes] | None:
        """Return the contents that can be joined: an object that ends in `}` does not continue in a line with `{`."""
        return contents if all(data.rstrip().endswith(b"}") or data.isspace() for data in contents) else None

    def body_as_line(self, body: bytes) -> bytes | None:
        line = super().body_as_line(body.strip().translate(_BREAKS))  # line breaks in texts stay what they are: bad
        return line if line is not None and line.startswith(b"{") and line.endswith(b"}") else None

    def read_body(self, body: bytes, schema: pa.Schema, options: FormatOptions, bad: BadRecords) -> Iterator[pa.Table]:
        refuse_archive(body)
        # an object in several lines, which no body of a record a line can be taken for
        document = options.multi_line
        if options.records_path is not None:
            return super().read_body(body, schema, options, bad)
        text, is_plain = body, options.plain_utf8 and codec_of("", body) is None
        if not document and not is_plain:
            source = OpenObject("", ObjectFile("", InMemory(body)), len(body))
            packed = TextObject.of(source, options, BadRecords(options.mode), Part())
            text = packed.stream.read(options.max_document_bytes)
        if not document and (b"\n" in text or b"\r" in text):
            with suppress(ValueError):
                (grammar.decode_objects if options.single_variant_column is None else grammar.decode_value)(
                    grammar.decode_text(text)
                )
                document = True
        if document:
            options = replace(options, multi_line=True, line_sep=None)
        if is_plain and len(body) <= _SMALL:
            reader, block = self.reader(schema, options, bad, ""), Block(0, body.removeprefix(BOM))
            tables = [*(reader.read_whole(block) if document else reader.read_slowly(block))]
            if any(table.num_rows for table in tables) and all(map(_shows_nothing, tables)):
                reader.require_a_column(block.data)
            return iter(tables)
        return super().read_body(body, schema, options, bad)

    def infer(self, source: OpenObject, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
        bad = BadRecords("PERMISSIVE")

        def records() -> Iterator[dict[str, Any]]:
            reader, before = self.reader(pa.schema([]), options, bad, source.uri), 0
            for text in TextObject.of(source, options, bad, Part()).members():
                for block in _read_blocks(text, reader, Part(0, limit - before)):
                    for at, record in [(0, block.data)] if options.multi_line else reader.split_records(block.data):
                        if block.offset + at >= limit - before:
                            return
                        try:
                            yield from grammar.decode_objects(grammar.decode_text(record)) if record.strip() else ()
                        except ValueError as error:  # UnicodeDecodeError is one
                            bad.add(block.offset + at, str(error), record)
                before += text.stream.tell()
                if before >= limit:
                    return

        schema = infer_records(records(), types=types)
        if bad.count and not schema.names:
            raise BadObject("corrupt-object", f"no record of it can be read: {bad.reported[0].reason}")
        return schema


JSON = Json()
