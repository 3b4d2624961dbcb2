"""JSON as a format: records in lines, or a document (`multiLine`); and the columns of its objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.compression import codec_of
from queue_source.formats.text.blocks import BOM, Block, make_separator
from queue_source.formats.text.json_lines import JsonReader
from queue_source.formats.text.json_parser import Number, as_text, decode
from queue_source.formats.text.lines import LineFormat, TextObject
from queue_source.formats.text.records import RecordReader, read_block
from queue_source.formats.types import is_text
from queue_source.options.file_format import FormatOptions

_SMALL = 64 << 10  # bytes of JSON that Python has read before pyarrow has begun
DEEPEST_TYPE = 100
"""Objects and arrays within one another that an inferred type has; what is deeper is text."""
_BREAKS = bytes.maketrans(b"\r\n", b"\t\t")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,37})")


class Json(LineFormat):
    name = "json"
    values_are_text = True
    has_bad_records = True

    def not_fillable(self, kind: pa.DataType) -> str | None:
        if pt.is_map(kind) and not is_text(kind.key_type):
            return f"{kind}: the keys of a JSON object are strings"
        return super().not_fillable(kind)

    def reader(self, schema: pa.Schema, options: FormatOptions, bad: BadRecords, uri: str) -> JsonReader:
        return JsonReader(schema, options, bad, uri)

    def read(self, text: TextObject, part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
        reader = self.reader(schema, text.options, text.bad, text.uri)
        if text.options.multi_line:
            for document in text.read_document(text.options.max_document_bytes):
                yield from reader.read_whole(document)
            return
        unseen = part == Part()
        for block in text.read_blocks(reader.separator, part):
            for table in read_block(reader, block):
                if unseen and table.num_rows:
                    if all(column.null_count == table.num_rows for column in table.columns):
                        reader.require_a_column(block)
                    unseen = False
                yield table
            del block  # it is not held while the next one is read

    def combine(self, contents: Sequence[bytes], schema: pa.Schema, options: FormatOptions) -> pa.Table | None:
        table = super().combine(contents, schema, options)
        return None if table is None or _has_empty_record(table) else table

    def joinable(
        self, reader: RecordReader, contents: Sequence[bytes], end: bytes, options: FormatOptions
    ) -> Sequence[bytes] | None:
        """An object that ends in `}` cannot go on in a line that begins with `{`."""
        return contents if all(data.rstrip().endswith(b"}") or data.isspace() for data in contents) else None

    def body_as_line(self, body: bytes) -> bytes | None:
        line = super().body_as_line(body.strip().translate(_BREAKS))  # line breaks in texts stay what they are: bad
        return line if line is not None and line.startswith(b"{") and line.endswith(b"}") else None

    def read_body(self, body: bytes, schema: pa.Schema, options: FormatOptions, bad: BadRecords) -> Iterator[pa.Table]:
        # an object in several lines, which no body of a record a line can be taken for
        document = options.multi_line or _is_document(body)
        if options.plain_utf8 and len(body) <= _SMALL and codec_of("", body) is None:
            reader, block = self.reader(schema, options, bad, ""), Block(0, body.removeprefix(BOM))
            return reader.read_whole(block) if document else reader.read_slowly(block)
        if document:
            options = replace(options, multi_line=True, line_sep=None)
        return super().read_body(body, schema, options, bad)

    def infer(self, source: OpenObject, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
        bad = BadRecords("PERMISSIVE")
        found = infer_records(_records(TextObject(source, options, bad, Part()), limit), types=types)
        if bad.count and not found.names:
            raise BadObject("corrupt-object", f"no record of it can be read: {bad.reported[0].reason}")
        return found


def _has_empty_record(table: pa.Table) -> bool:
    """Whether any record fills no column: its object may be of quite other columns, which is for it alone to say."""
    if any(column.null_count == 0 for column in table.columns):
        return False
    if not table.num_columns:
        return True
    empty = reduce(pc.and_, (pc.is_null(column) for column in table.columns), pa.scalar(True))
    return bool(pc.any(empty).as_py())


def _is_document(body: bytes) -> bool:
    if b"\n" not in body and b"\r" not in body:
        return False
    try:
        decode(as_text(body))
    except ValueError:
        return False
    return True


def _records(text: TextObject, limit: int) -> Iterator[dict[str, Any]]:
    """The decoded objects of an object's first bytes."""
    if text.options.multi_line:
        parts: Iterable[tuple[int, bytes]] = (
            (block.offset, block.data) for block in text.read_document(text.options.max_document_bytes)
        )
    else:
        separator = make_separator(text.options)
        found = text.read_blocks(separator, Part(0, limit))
        parts = ((block.offset + at, line) for block in found for at, line in separator.split(block.data))
    for offset, record in parts:
        if not record.strip():
            continue
        try:
            yield from decode(as_text(record))
        except ValueError as error:  # UnicodeDecodeError is one
            text.bad.add(offset, str(error), record)


def infer_records(records: Iterable[dict[str, Any]], *, types: bool) -> pa.Schema:
    """The columns of decoded objects (numbers as their text)."""
    seen = _Seen()
    for record in records:
        seen.add(record)
    if not types:
        return pa.schema([(name, pa.string()) for name in seen.fields])
    return pa.schema([(name, inner.type()) for name, inner in seen.fields.items()])


class _Seen:
    """The values that were seen at one place of JSON objects."""

    __slots__ = ("depth", "fields", "items", "kinds")

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.kinds: set[str] = set()
        self.fields: dict[str, _Seen] = {}
        self.items: _Seen | None = None

    def add(self, value: Any) -> None:
        if value is None:
            return
        if self.depth > DEEPEST_TYPE:
            self.kinds.add("text")
        elif isinstance(value, dict):
            self.kinds.add("object")
            fields = self.fields
            for name, inner in value.items():
                if (seen := fields.get(name)) is None:
                    seen = fields[name] = _Seen(self.depth + 1)
                seen.add(inner)
        elif isinstance(value, list):
            self.kinds.add("array")
            if self.items is None:
                self.items = _Seen(self.depth + 1)
            for inner in value:
                self.items.add(inner)
        elif isinstance(value, bool):
            self.kinds.add("boolean")
        elif isinstance(value, Number):
            self.kinds.add(_kind_of_number(value))
        else:
            self.kinds.add("text")

    def type(self) -> pa.DataType:
        kinds = self.kinds
        if not kinds:
            return pa.null()
        if kinds == {"object"}:
            return pa.struct([(name, inner.type()) for name, inner in self.fields.items()])
        if kinds == {"array"}:
            assert self.items is not None
            return pa.list_(self.items.type())
        if kinds == {"boolean"}:
            return pa.bool_()
        if kinds == {"integer"}:
            return pa.int64()
        if kinds <= {"integer", "wide integer"}:
            return pa.decimal128(38, 0)
        return pa.float64() if kinds <= {"integer", "wide integer", "float"} else pa.string()


def _kind_of_number(text: str) -> str:
    if not _INTEGER.fullmatch(text):
        return "float"
    return "wide integer" if len(text) > 18 and not -(1 << 63) <= int(text) < 1 << 63 else "integer"


JSON = Json()
