"""JSON lines: whole blocks of lines to Arrow, an object a line.

pyarrow parses. Where it fails, or cannot read a type at all (maps), `json_rows.py` reads the same lines in Python: it
says exactly which line and column is wrong, or reads what Spark reads and pyarrow does not (a number into a STRING).
"""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.types as pt

from queue_source.content.columns import conform_column, match_names, require_any
from queue_source.content.formats import FormatOptions, is_bytes
from queue_source.content.json_rows import decode_line, read_rows
from queue_source.content.line_data import BLOCK_SIZE, as_lines, count_lines
from queue_source.content.text_values import text_leaf
from queue_source.errors import BadObject

_NO_OBJECT = re.compile(rb"^[ \t]*[^ \t\n{]", re.MULTILINE)
_CACHED = 1 << 18  # bytes that stay in the processor's cache
_NEWLINE, _BRACE = ord("\n"), ord("{")


def read_json(data: bytes, schema: pa.Schema, options: FormatOptions) -> pa.Table:
    """The rows of a whole object in exactly `schema`. Raises BadObject (`wrong-columns`, `corrupt-object`)."""
    lines = as_lines(data)
    if not lines or lines.isspace():
        return schema.empty_table()
    return parse_lines(lines, schema, options)


def parse_lines(lines: bytes, schema: pa.Schema, options: FormatOptions) -> pa.Table:
    """Complete lines (from `as_lines`) in exactly `schema`: this is what a byte range needs.

    A declared column that no line has is null. A name that differs in case fills a column whose own name never occurs.
    """
    parsed = None if _begins_otherwise(lines) or _maps_in(schema) else _parse(lines, schema, list(schema.names))
    if parsed is None:
        return _slowly(lines, schema, options)
    keys = _other_spelling(lines, schema, parsed)
    if keys != {}:
        parsed = None if keys is None else _parse(lines, schema, [keys.get(name, name) for name in schema.names])
    if parsed is None:
        return _slowly(lines, schema, options)
    if schema.names and all(column.null_count == parsed.num_rows for column in parsed.columns):
        _require_a_column(lines, schema)
    leaf = text_leaf(options.timezone)
    columns = [conform_column(parsed.column(i), field, leaf) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema) if columns else parsed


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


def _parse(lines: bytes, schema: pa.Schema, keys: list[str]) -> pa.Table | None:
    """What pyarrow reads, in wire types and under the declared names; None when it will not read it as it stands."""
    wanted = pa.schema([pa.field(key, wire_type(field.type)) for key, field in zip(keys, schema, strict=True)])
    try:
        table = pa_json.read_json(
            pa.BufferReader(lines),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=min(BLOCK_SIZE, len(lines) + 1)),
            parse_options=pa_json.ParseOptions(
                explicit_schema=wanted, newlines_in_values=False, unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None  # the slow way finds out what is wrong, if anything is
    if count_lines(lines, table.num_rows, strip=True) != table.num_rows:
        return None  # two objects in a line, or one over two
    return table


def _begins_otherwise(lines: bytes) -> bool:
    """Whether a line, but for white space, may begin with anything but `{`.

    pyarrow dies of SIGSEGV on a block that begins with `null` (apache/arrow#47409), also after a byte order mark, and
    reads a later `null` as a row. All else that is no object it refuses by itself.
    """
    if not lines.startswith(b"{"):
        return _NO_OBJECT.search(lines) is not None
    characters = np.frombuffer(lines, np.uint8)
    for start in range(0, len(lines), _CACHED):
        # one byte more, so that the first character of a line meets its newline; 5 times faster than a search
        piece = characters[start : start + _CACHED + 1]
        if (piece[1:][piece[:-1] == _NEWLINE] != _BRACE).any():
            return _NO_OBJECT.search(lines) is not None  # blank lines and indented ones are fine
    return False


def _maps_in(schema: pa.Schema) -> bool:
    return any(_has_map(field.type) for field in schema)


def _has_map(kind: pa.DataType) -> bool:
    if pt.is_map(kind):
        return True
    if pt.is_list(kind):
        return _has_map(kind.value_type)
    return bool(pt.is_struct(kind)) and any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _other_spelling(lines: bytes, schema: pa.Schema, parsed: pa.Table) -> dict[str, str] | None:
    """For columns without a value whose name occurs only in other case: how the object spells it.

    None when that cannot be told from the bytes alone.
    """
    empty = [f.name for f, column in zip(schema, parsed.columns, strict=True) if column.null_count == len(column)]
    spelled: dict[str, str] = {}
    folded = lines.lower() if empty else b""
    for name in empty:
        key = json.dumps(name, ensure_ascii=False).encode()
        exactly = lines.count(key)
        if folded.count(key.lower()) == exactly:
            continue
        variants = {found.decode()[1:-1] for found in re.findall(re.escape(key), lines, re.IGNORECASE)}
        if exactly or len(variants) != 1:
            return None
        spelled[name] = variants.pop()
    return spelled


def _require_a_column(lines: bytes, schema: pa.Schema) -> None:
    """No column has a value: see whether any line so much as names one, as an object of nulls does."""
    present: set[str] = set()
    offset = 0
    for number, line in enumerate(lines.split(b"\n"), start=1):
        if line.strip():
            keys = decode_line(line, number, offset).keys()
            if not keys <= present:
                present.update(keys)
                if match_names(schema.names, present):
                    return
        offset += len(line) + 1
    require_any(schema.names, {}, present)


def _slowly(lines: bytes, schema: pa.Schema, options: FormatOptions) -> pa.Table:
    keys, columns, rows = read_rows(lines, schema)
    require_any(schema.names, match_names(schema.names, keys), keys)
    leaf = text_leaf(options.timezone)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = pa.chunked_array([pa.array(values, wire_type(field.type))])
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise BadObject("corrupt-object", f"column {field.name!r}: {error}") from error
        arrays.append(conform_column(array, field, leaf))
    if not arrays:
        return pa.table({"": pa.nulls(rows)}).select([])
    return pa.Table.from_arrays(arrays, schema=schema)
