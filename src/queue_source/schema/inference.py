"""What columns an object (or a message) has: from its first records, or from the schema that its format carries.

Only names and types are found here; nothing is converted. A limit of bytes bounds what is looked at of text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.formats.bad_records import Problems
from queue_source.formats.base import BINARY_FILE, FormatOptions
from queue_source.formats.text.blocks import line_separator, text_blocks
from queue_source.formats.text.csv_tokens import CsvRecords, Tokenizer
from queue_source.formats.text.json_rows import decode, is_number
from queue_source.formats.text.objects import TextObject
from queue_source.formats.text.parsing import text_converter
from queue_source.formats.typed.avro import written_schema
from queue_source.formats.typed.tables import damage_is_bad
from queue_source.schema.merging import spark_type
from queue_source.storage.files import ObjectFile

TEXT = pa.schema([("value", pa.string())])
_CONTROLS = bytes(range(33))
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,37})")
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?")
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


def fixed_schema(options: FormatOptions) -> pa.Schema | None:
    """The columns of a format that has the same ones in every object."""
    return {"text": TEXT, "binaryFile": BINARY_FILE}.get(options.file_format)


def infer_file(uri: str, file: ObjectFile, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
    """The columns of an open object, of text in its first `limit` bytes. Types of which nothing is known are null.

    `types`: whether text is looked at for what it means; else all is STRING. Raises BadObject where it cannot be read
    as its format, ValueError for a column that Spark has no type for, and ObjectStoreError.
    """
    fixed = fixed_schema(options)
    if fixed is not None:
        return fixed
    size = file.size()
    if options.file_format not in ("json", "csv"):
        return _carried(file, options)
    problems = Problems("PERMISSIVE")
    text = TextObject(uri, file, size, options, problems, 0)
    if options.file_format == "csv":
        return infer_csv(text, options, problems, limit, types=types)
    records = _json_records(text, options, problems, limit)
    found = infer_json(records, types=types)
    if problems.count and not found.names:
        raise BadObject("corrupt-object", f"no record of it can be read: {problems.told[0].reason}")
    return found


def _carried(file: ObjectFile, options: FormatOptions) -> pa.Schema:
    """The schema that a file of a typed format holds."""
    with damage_is_bad(file, options.file_format):
        if options.file_format == "parquet":
            import pyarrow.parquet as pq

            found = pq.ParquetFile(pa.PythonFile(file, "r")).schema_arrow
        elif options.file_format == "orc":
            from pyarrow.orc import ORCFile

            found = ORCFile(pa.PythonFile(file, "r")).schema
        else:
            found = written_schema(file)
    return as_spark_has_it(found)


def as_spark_has_it(schema: pa.Schema) -> pa.Schema:
    """The columns of a file in the types that Spark holds them in. Raises ValueError."""
    return pa.schema([(field.name, spark_type(field.type, field.name)) for field in schema])


# JSON


def infer_json(records: Iterable[dict[str, Any]], *, types: bool) -> pa.Schema:
    """The columns of decoded objects (numbers as their text)."""
    seen = _Seen()
    for record in records:
        seen.add(record)
    if not types:
        return pa.schema([(name, pa.string()) for name in seen.fields])
    return pa.schema([(name, inner.type()) for name, inner in seen.fields.items()])


def _json_records(text: TextObject, options: FormatOptions, problems: Problems, limit: int) -> Iterator[dict[str, Any]]:
    if options.multi_line:
        parts: Iterable[tuple[int, bytes]] = ((block.offset, block.data) for block in text.document())
    else:
        separator = line_separator(options)
        blocks = text_blocks(text.stream(), separator, problems, until=limit)
        parts = ((block.offset + at, line) for block in blocks for at, line in separator.split(block.data))
    for offset, record in parts:
        if not record.strip():
            continue
        try:
            yield from decode(record.decode("utf-8"))
        except ValueError as error:  # UnicodeDecodeError is one
            problems.add(offset, str(error), record)


class _Seen:
    """What was seen at one place of JSON objects."""

    __slots__ = ("fields", "integers", "items", "kinds", "wide")

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, _Seen] = {}
        self.items: _Seen | None = None
        self.wide = False  # a whole number that 64 bits do not hold

    def add(self, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, dict):
            self.kinds.add("object")
            fields = self.fields
            for name, inner in value.items():
                if (seen := fields.get(name)) is None:
                    seen = fields[name] = _Seen()
                seen.add(inner)
        elif isinstance(value, list):
            self.kinds.add("array")
            if self.items is None:
                self.items = _Seen()
            for inner in value:
                self.items.add(inner)
        elif isinstance(value, bool):
            self.kinds.add("boolean")
        elif is_number(value):
            if not _INTEGER.fullmatch(value):
                self.kinds.add("float")
                return
            self.kinds.add("integer")
            if len(value) > 18 and not _SMALLEST <= int(value) <= _LARGEST:
                self.wide = True
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
            return pa.decimal128(38, 0) if self.wide else pa.int64()
        if kinds <= {"integer", "float"}:
            return pa.float64()
        return pa.string()


# CSV


def infer_csv(text: TextObject, options: FormatOptions, problems: Problems, limit: int, *, types: bool) -> pa.Schema:
    """The columns of the header, or `_c0`, `_c1` ... without one. Raises BadObject for a name that is there twice."""
    tokens = Tokenizer(options).fields
    columns: list[_Column] = []
    names: list[str] | None = None
    converters = _meanings(options) if types else []
    for record in _csv_records(text, options, problems, limit):
        fields, _ = tokens(record)
        if options.header and names is None:
            names = [value or f"_c{at}" for at, (value, _) in enumerate(fields)]
            _refuse_twice(names)
            columns = [_Column(converters) for _ in names]
            continue
        if not options.header:
            columns += [_Column(converters) for _ in range(len(fields) - len(columns))]
        for column, (value, quoted) in zip(columns, fields, strict=False):
            if value != options.null_value and (value or (quoted and options.empty_value)):
                column.add(value)
    if names is None:
        names = [f"_c{at}" for at in range(len(columns))]
    kinds = [column.type() if types else pa.string() for column in columns]
    return pa.schema([(name, kind) for name, kind in zip(names, kinds, strict=True)])


def _csv_records(text: TextObject, options: FormatOptions, problems: Problems, limit: int) -> Iterator[str]:
    separator = CsvRecords(options) if options.multi_line else line_separator(options)
    comment = options.comment.encode()
    for block in text_blocks(text.stream(), separator, problems, until=limit):
        for _, line in separator.split(block.data):
            if line.strip(_CONTROLS) and not (comment and line.startswith(comment)):
                yield line.decode("utf-8", "replace")


def _refuse_twice(names: list[str]) -> None:
    named = [name.casefold() for name in names]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise BadObject("wrong-columns", f"column {twice!r} is in the header more than once")


Meaning = tuple[pa.DataType, Callable[[str], object]]


def _meanings(options: FormatOptions) -> list[Meaning]:
    """What text may mean, the narrowest first. Each raises ValueError for text that means something else."""
    special = {options.nan_value, options.positive_inf, options.negative_inf}

    def whole(text: str) -> object:
        """`007` is no number: it would lose its zeros."""
        return _fits(_INTEGER, text) and _check(_SMALLEST <= int(text) <= _LARGEST)

    def floating(text: str) -> object:
        if _INTEGER.fullmatch(text):
            return whole(text)  # or it would lose its last digits
        return text in special or _fits(_NUMBER, text)

    def moment(kind: pa.DataType, form: re.Pattern[str], pattern: str | None) -> Callable[[str], object]:
        convert = text_converter(kind, options)

        def check(text: str) -> object:
            if pattern is None:
                _fits(form, text)
            return convert(text)

        return check

    timestamp = pa.timestamp("us", tz="UTC")
    return [
        (pa.bool_(), text_converter(pa.bool_(), options)),
        (pa.int64(), whole),
        (pa.float64(), floating),
        (pa.date32(), moment(pa.date32(), _DATE, options.date_format)),
        (timestamp, moment(timestamp, _TIMESTAMP, options.timestamp_format)),
    ]


def _fits(form: re.Pattern[str], text: str) -> bool:
    return _check(form.fullmatch(text) is not None)


def _check(fine: bool) -> bool:
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
            self._left = [meaning for meaning in self._left if _means(meaning, text)]

    def type(self) -> pa.DataType:
        if not self._seen:
            return pa.null()
        return self._left[0][0] if self._left else pa.string()


def _means(meaning: Meaning, text: str) -> bool:
    try:
        meaning[1](text)
    except ValueError:
        return False
    return True


def infer_text(text: str, options: FormatOptions) -> pa.DataType:
    """The type of one value that is text, such as a folder of a path; null for nothing."""
    column = _Column(_meanings(options))
    if text:
        column.add(text)
    return column.type()
