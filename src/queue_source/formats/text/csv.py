"""CSV as a format: where its header is, small objects as one block, and the columns of its objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.csv_lines import CsvReader
from queue_source.formats.text.line_format import LineFormat, TextObject
from queue_source.formats.text.parsing import text_converter
from queue_source.formats.text.records import RecordReader, read_block
from queue_source.options.content import FormatOptions

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,37})")
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?")
_TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")


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
            behind = next(_behind_header(reader, text.blocks(reader.separator)), None)
            if behind is None or (part.end is not None and behind.offset >= part.end):
                return  # blank lines, or the header, are all of this part
            part = Part(max(part.start, behind.offset), part.end)
        found = text.blocks(reader.separator, part)
        if text.options.header and not part.start:
            found = _behind_header(reader, found)
        for block in found:
            yield from read_block(reader, block)
            del block  # it is not held while the next one is read

    def joinable(
        self, reader: RecordReader, contents: Sequence[bytes], end: bytes, options: FormatOptions
    ) -> Sequence[bytes] | None:
        """Without their headers, which have to be the same."""
        assert isinstance(reader, CsvReader)
        if not options.header:
            return contents
        try:
            rest = reader.take_header(Block(0, contents[0]))
        except (BadObject, NewColumns):
            return None
        header = b"" if rest is None else contents[0][: rest.offset]
        if not header.endswith(end) or not all(data.startswith(header) for data in contents):
            return None
        return [data[len(header) :] for data in contents if len(data) > len(header)]

    def infer(self, source: OpenObject, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
        """The columns of the header, or `_c0`, `_c1` ... without one.

        Types are those that all values of a column may have.
        """
        reader = self.reader(pa.schema([]), options, BadRecords("PERMISSIVE"), source.uri)
        blocks = TextObject(source, options, BadRecords("PERMISSIVE"), Part()).blocks(reader.separator, Part(0, limit))
        lines = (line for block in blocks for line in reader.lines(block.data))
        names = reader.names(next(lines, b"")) if options.header else None
        meanings = _meanings(options) if types else []
        columns = [_Column(meanings) for _ in names or ()]
        for fields in map(reader.fields, lines):
            if names is None:
                columns += [_Column(meanings) for _ in fields[len(columns) :]]
            for column, (value, quoted) in zip(columns, fields, strict=False):
                if value != options.null_value and (value or (quoted and options.empty_value)):
                    column.add(value)
        names = [f"_c{at}" for at in range(len(columns))] if names is None else names
        kinds = [column.type() if types else pa.string() for column in columns]
        return pa.schema(list(zip(names, kinds, strict=True)))


def _behind_header(reader: CsvReader, blocks: Iterator[Block]) -> Iterator[Block]:
    """The blocks without the header, which the reader takes."""
    for block in blocks:
        rest = reader.take_header(block)
        if rest is not None:
            yield rest
            break
    yield from blocks


def infer_text(text: str, options: FormatOptions) -> pa.DataType:
    """The type of one value that is text, such as a folder of a path; null for nothing."""
    column = _Column(_meanings(options))
    if text:
        column.add(text)
    return column.type()


Meaning = tuple[pa.DataType, Callable[[str], object]]
"""A type that text may have, and what raises ValueError for text that has another one."""


def _meanings(options: FormatOptions) -> list[Meaning]:
    """What text may mean, the narrowest type first."""
    special = {options.nan_value, options.positive_inf, options.negative_inf}

    def whole(text: str) -> object:
        """`007` is no number: it would lose its zeros."""
        return _require(_INTEGER.fullmatch(text) is not None and -(1 << 63) <= int(text) < 1 << 63)

    def floating(text: str) -> object:
        if _INTEGER.fullmatch(text):
            return whole(text)  # or it would lose its last digits
        return _require(text in special or _NUMBER.fullmatch(text) is not None)

    def moment(kind: pa.DataType, form: re.Pattern[str], pattern: str | None) -> Callable[[str], object]:
        convert = text_converter(kind, options)
        return lambda text: _require(pattern is not None or form.fullmatch(text) is not None) and convert(text)

    return [
        (pa.bool_(), text_converter(pa.bool_(), options)),
        (pa.int64(), whole),
        (pa.float64(), floating),
        (pa.date32(), moment(pa.date32(), _DATE, options.date_format)),
        (_TIMESTAMP_TYPE, moment(_TIMESTAMP_TYPE, _TIMESTAMP, options.timestamp_format)),
    ]


def _require(fine: bool) -> bool:
    if not fine:
        raise ValueError
    return fine


class _Column:
    """The meanings that every value so far could have."""

    __slots__ = ("_left", "_seen")

    def __init__(self, meanings: list[Meaning]) -> None:
        self._left = meanings
        self._seen = False

    def add(self, text: str) -> None:
        self._seen = True
        if self._left:
            self._left = [meaning for meaning in self._left if _may_mean(meaning, text)]

    def type(self) -> pa.DataType:
        if not self._seen:
            return pa.null()
        return self._left[0][0] if self._left else pa.string()


def _may_mean(meaning: Meaning, text: str) -> bool:
    try:
        meaning[1](text)
    except ValueError:
        return False
    return True


CSV = Csv()
