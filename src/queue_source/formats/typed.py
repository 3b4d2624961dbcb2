"""The shared code of the formats with types of their own: from decoded tables to the declared columns.

How much an object may become when it is decoded is limited: by what it has in all (`Limits`), so that it is refused at
every attempt, on every machine, and by the memory of the process (`BoundedMemory`), in which it is read in `Batches`.
"""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from queue_source.errors import BadObject, CuesqueueError
from queue_source.formats.base import BadRecords, Format, OpenObject, Part, Tables
from queue_source.formats.compression import refuse_archive
from queue_source.formats.new_columns import Tree, check_file, more, no_data
from queue_source.formats.types import (
    conform_column,
    inner_types,
    match_names,
    require_any,
    shorten,
    spark_schema,
    typed_leaf,
)
from queue_source.options.content import FormatOptions
from queue_source.storage.memory import release_memory
from queue_source.storage.open_files import ObjectFile

_FIRST_BYTES = 512
ALWAYS_ALLOWED = 1 << 30
"""Bytes that any object may decode to, however small it is."""
ALWAYS_ALLOWED_ROWS = 100_000_000
AT_ONCE = 64 << 20
"""Bytes that are decoded at once, where an object tells how large its rows are."""
ROWS = 65_536
"""Rows that are decoded at once, at most."""
_FEWER = 16
_LARGE = 128 << 20
"""Bytes of a batch after which there are fewer rows in each: whoever takes it holds it beside the next."""
_SMALL = 1 << 20
LONGEST = 10
"""Bytes of a number of 64 bits."""


class TypedFormat(Format):
    """A format whose files have a schema of their own."""

    def infer(self, source: OpenObject, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
        with damage_is_bad(source.file, self.name):
            written = self.schema_of(source.file)
        return spark_schema(written)

    @abstractmethod
    def schema_of(self, file: ObjectFile) -> pa.Schema:
        """Return the columns that a file declares. Raises whatever its decoder raises."""

    def open(
        self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions, bad: BadRecords
    ) -> Tables:
        return Tables(self.read(source, part, schema, options), may_fail_late=True)

    @abstractmethod
    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """Read the rows for `open`."""


class ColumnarFormat(TypedFormat):
    """A format of groups of rows, which can be read separately; a group may be bad when others are not."""

    has_footer = True

    def may_be_cut(self, uri: str, options: FormatOptions, *, all_or_nothing: bool) -> bool:
        return all_or_nothing


@contextmanager
def damage_is_bad(file: ObjectFile, format_name: str) -> Iterator[None]:
    """Map a decoder's errors to BadObject("corrupt-object"), or "archive"; failures of store or memory stay."""
    try:
        yield
    except (CuesqueueError, MemoryError):
        raise
    except Exception as error:
        if file.failure is not None:
            raise file.failure from error
        refuse_archive(file.read_range(0, min(_FIRST_BYTES, file.size())))
        raise BadObject("corrupt-object", shorten(f"not readable as {format_name}: {error}")) from error


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of one file that are read: by declared name, and those with data to rescue."""

    matches: dict[str, str]
    rescued: Tree
    uri: str

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.matches.values(), *self.rescued]))


def choose(schema: pa.Schema, written: pa.Schema, options: FormatOptions, uri: str) -> Chosen:
    """Choose the columns of a file with the columns `written` to read for the declared ones.

    Raises BadObject("wrong-columns"), and NewColumns where the options ask for a report of undeclared ones.
    """
    data = [field for field in schema if field.name != options.rescued_data_column]
    if options.looks_for_new_columns:
        check_file(schema, written, options)
    matches = match_names([field.name for field in data], written.names, options)
    if options.reader_case_sensitive:
        for field in data:
            if field.name in matches:
                _check_case(field.type, written.field(matches[field.name]).type, options)
    rescued: Tree = {}
    if options.rescued_data_column is not None:
        passed = {name.casefold() for name in no_data(options)}
        others = pa.struct([field for field in written if field.name.casefold() not in passed])
        rescued = more(pa.struct(data), others, exactly=options.reader_case_sensitive) or {}
    require_any([field.name for field in data], {**matches, **dict.fromkeys(rescued, "")}, written.names)
    return Chosen(matches, rescued, uri)


def _check_case(declared: pa.DataType, written: pa.DataType, options: FormatOptions) -> None:
    """Raise BadObject("wrong-columns") where a part of a column is there in another case: parts are not rescued so."""
    if pa.types.is_struct(declared) and pa.types.is_struct(written):
        fields, parts = (list(map(kind.field, range(kind.num_fields))) for kind in (declared, written))
        names = [part.name for part in parts]
        matches = match_names([f.name for f in fields], names, replace(options, rescued_data_column=None))
        for field in fields:
            if field.name in matches:
                _check_case(field.type, parts[names.index(matches[field.name])].type, options)
    else:
        for inner, part in zip(inner_types(declared), inner_types(written), strict=False):
            _check_case(inner, part, options)


def conformed(table: pa.Table, schema: pa.Schema, chosen: Chosen, options: FormatOptions) -> pa.Table:
    """Return the declared columns of a decoded table; missing ones are null. Raises BadObject("corrupt-object")."""
    if table.num_columns:  # pyarrow would forget how many rows a table without columns has
        table = table.replace_schema_metadata(schema.metadata)
    if table.schema.equals(schema, check_metadata=True):
        return table
    decoded = dict(zip(table.column_names, table.columns, strict=True))
    columns = []
    for field in schema:
        if field.name in chosen.matches:
            columns.append(conform_column(decoded[chosen.matches[field.name]], field, typed_leaf))
        elif field.name == options.rescued_data_column and chosen.rescued:
            columns.append(pa.chunked_array([_rescued(table, chosen)], field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
    return pa.Table.from_arrays(columns, schema=schema) if columns else table


def _rescued(table: pa.Table, chosen: Chosen) -> pa.Array:
    """Return as JSON the values that no declared column has a place for; null for rows without any."""

    def plain(value: Any) -> str:
        """Return a text for a value that JSON has no form for."""
        if isinstance(value, bytes):
            return base64.b64encode(value).decode("ascii")
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    texts = []
    for row in _values(table.select(list(chosen.rescued))):
        values = _only(row, chosen.rescued)
        where = {"_file_path": chosen.uri} if chosen.uri else {}
        texts.append(json.dumps({**values, **where}, ensure_ascii=False, default=plain) if values else None)
    return pa.array(texts, pa.string())


def _values(table: pa.Table) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (OverflowError, ValueError):  # a time that Python has no form for
        columns = [[_value(scalar) for scalar in column] for column in table.columns]
        rows = [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def _value(scalar: pa.Scalar) -> Any:
    """Return a value as `as_py` does; a time that Python has no form for is the number that was written, as text."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(inner) for name, inner in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        return [(_value(entry[0]), _value(entry[1])) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_value(inner) for inner in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return str(scalar.value)


def _only(value: Any, tree: Tree | None) -> Any:
    """Return the parts of a value that a tree names; nothing where they are null."""
    if tree is None:
        return value
    if isinstance(value, list):
        inner = [_only(item, tree) for item in value]
        return inner if any(inner) else None
    if isinstance(value, tuple):  # an entry of a map
        key, item = value
        below = _only(item, tree)
        return [key, below] if below else None
    if not isinstance(value, dict):
        return None
    parts = {name: _only(value[name], below) for name, below in tree.items() if name in value}
    return {name: inner for name, inner in parts.items() if inner is not None and inner != {}}


@dataclass(slots=True)
class Limits:
    """The limits of one object, and what was decoded of it.

    Attributes:
        size: Bytes of the object as it is stored.
        expansion: The option `maxExpansion`.
    """

    size: int
    expansion: int
    rows: int = 0
    decoded: int = 0

    def counted(self, table: pa.Table) -> pa.Table:
        """Count a table, without its nulls, and return it. Raises BadObject("corrupt-object") beyond the limits."""
        rows = table.num_rows
        if not self.rows and (size := table.get_total_buffer_size()) < _SMALL:  # quick to know, and enough of one table
            self.rows, self.decoded = rows, self.decoded + size
            self._check("rows", self.rows, ALWAYS_ALLOWED_ROWS)
            return table
        self.rows += rows
        for column in table.itercolumns():
            nulls = column.null_count
            if nulls < rows:
                self.decoded += column.nbytes * (rows - nulls) // rows if nulls else column.nbytes
        self._check("bytes", self.decoded, ALWAYS_ALLOWED)
        self._check("rows", self.rows, ALWAYS_ALLOWED_ROWS)
        return table

    def check_rows(self, rows: int) -> None:
        """Refuse a number of rows that the object says it has, before any is decoded."""
        self._check("rows", self.rows + rows, ALWAYS_ALLOWED_ROWS)

    def check_empty(self, records: int) -> None:
        """Refuse too many records that take no bytes at all."""
        self._check("records without any bytes", records, 0)

    def _check(self, what: str, count: int, always: int) -> None:
        if count > max(always, self.size * self.expansion):
            raise BadObject(
                "corrupt-object",
                f"it decodes to {count} {what} or more, which is too much for an object of {self.size} bytes; if it "
                f"can be trusted, raise the option maxExpansion above {self.expansion}",
            )


class Batches:
    """Reads an object in batches of as many rows as there is memory for."""

    def __init__(self) -> None:
        self._most = ROWS

    def of(self, read: Callable[[int], Iterator[pa.Table]], count: int, row_size: int) -> Iterator[pa.Table]:
        """Give the `count` rows of `read`, which gets how many each table may have, and is called again with fewer.

        That is where memory ends, and after a table that is large. `row_size` is how large a row is in the mean, as far
        as the object tells. Raises MemoryError for a row that is too large by itself.
        """
        rows, done = max(min(self._most, AT_ONCE // max(row_size, 1)), 1), 0
        while True:
            place, is_large, tables = 0, False, read(rows)
            try:
                while not is_large and (table := next(tables, None)) is not None:
                    place += table.num_rows
                    if place > done:
                        if place - table.num_rows < done:
                            table = table.slice(table.num_rows - (place - done))
                        done = place
                        is_large = rows > 1 and done < count and table.get_total_buffer_size() > _LARGE
                        yield table
                    del table  # before the next is decoded, which may be as large
                if not is_large:
                    return
            except MemoryError:
                if rows == 1:
                    raise
            del tables
            self._most = rows = max(rows // _FEWER, 1)
            release_memory()


def read_varint(
    data: bytes, place: int = 0, problem: str = "a number has no end", most: int = LONGEST
) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it.

    Raises ValueError with the problem, where it has more bytes than `most`, or than there are.
    """
    value = shift = 0
    while place < len(data) and shift < 7 * most:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(problem)


def written_varint(value: int) -> bytes:
    """Return a number that is not negative as it is written."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def without_zigzag(value: int) -> int:
    """Return the signed number that was written as an unsigned one: 0, -1, 1, -2 as 0, 1, 2, 3."""
    return (value >> 1) ^ -(value & 1)


def snappy_length(compressed: bytes, problem: str) -> int:
    """Return the length of the content, which raw Snappy has at its beginning. Raises ValueError with the problem."""
    length, _ = read_varint(compressed, 0, problem, most=5)
    return length
