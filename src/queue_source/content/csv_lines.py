"""CSV, a record a line (Spark's `multiLine=false`): whole blocks of lines to Arrow.

With a header, columns are matched by name; without one, by position, and their count must be the schema's.
pyarrow parses; what Spark understands otherwise is made up for before or after:

- `escape` stands only before a quote (or itself) inside of quotes, and is a plain character everywhere else, where
  pyarrow would drop it: `C:\\new` keeps its backslash;
- a record never spans lines: such an object is refused, because where pyarrow ends a record would depend on its blocks;
- `""` is null like nothing at all, unless `nullValue` and `emptyValue` differ.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.types as pt

from queue_source.content.columns import conform_column, corrupt_column, match_names, require_any, shorten
from queue_source.content.formats import FormatOptions, is_bytes
from queue_source.content.line_data import BLOCK_SIZE, as_lines, count_lines
from queue_source.content.text_values import text_leaf
from queue_source.errors import BadObject

_TRUE = ["true", "True", "TRUE"]
_FALSE = ["false", "False", "FALSE"]
_PYARROW_COLUMN = re.compile(r"^In CSV column #(\d+): (?:Row #\d+: )?")
_NOT_BLANK = re.compile(rb"[^\n]")
_NEWLINE = ord("\n")
_MAX_BLOCK = (1 << 31) - 1


def read_csv(data: bytes, schema: pa.Schema, options: FormatOptions) -> pa.Table:
    """The rows of a whole object in exactly `schema`. Raises BadObject (`wrong-columns`, `corrupt-object`)."""
    lines = prepare_lines(data, options).lstrip(b"\n")
    if not lines:
        return schema.empty_table()
    end = lines.find(b"\n")
    end = len(lines) if end < 0 else end
    present = split_line(lines[:end], options)
    if not options.header:
        if len(schema) and len(present) != len(schema):  # no column at all: only the rows are wanted
            raise BadObject("wrong-columns", f"{len(present)} columns in the first line, {len(schema)} are declared")
        return parse_lines(lines, schema, options, {i: i for i in range(len(schema))}, len(present))
    matches = match_names(schema.names, present)
    require_any(schema.names, matches, present)
    positions = {i: present.index(matches[name]) for i, name in enumerate(schema.names) if name in matches}
    return parse_lines(lines, schema, options, positions, len(present), start=end + 1)


def prepare_lines(data: bytes, options: FormatOptions) -> bytes:
    """The lines as the functions below take them: `as_lines`, and no escape character that has a meaning."""
    return _plain_escapes(as_lines(data), options)


def split_line(line: bytes, options: FormatOptions) -> list[str]:
    """The values of one prepared line as text; what a header says. Raises BadObject("corrupt-object")."""
    plain = line + b"\n"

    def parsed(types: dict[str, pa.DataType]) -> pa.Table:
        return pc_csv.read_csv(
            pa.BufferReader(plain),
            read_options=pc_csv.ReadOptions(
                use_threads=False, autogenerate_column_names=True, block_size=len(plain) + 1
            ),
            parse_options=_parse_options(options),
            convert_options=pc_csv.ConvertOptions(column_types=types, null_values=[]),
        )

    try:
        names = parsed({}).column_names  # only their number is wanted: the types would be guessed
        row = parsed(dict.fromkeys(names, pa.string())).to_pylist()[0]
    except pa.ArrowException as error:
        raise BadObject("corrupt-object", shorten(f"first line: {error}")) from error
    return [str(value) for value in row.values()]


def parse_lines(
    lines: bytes, schema: pa.Schema, options: FormatOptions, positions: dict[int, int], width: int, start: int = 0
) -> pa.Table:
    """Lines from byte `start` on in exactly `schema`: field `i` is at `positions[i]` of `width`, or else null.

    `lines` are complete, prepared and without a header from `start` on: this is what a byte range needs.
    """
    if not _NOT_BLANK.search(lines, start):
        return schema.empty_table()
    nulls_differ = options.null_value != options.empty_value
    wire = {i: pa.string() if nulls_differ else _wire_type(schema.field(i).type) for i in positions}
    table = _parse(pa.py_buffer(lines)[start:], schema, options, positions, wire, width)
    if _ends_in_quotes(lines, options):
        raise BadObject("corrupt-object", "the last line ends inside of a quoted field: the object is cut off")
    found = count_lines(lines, table.num_rows, start=start, strip=False)
    if found != table.num_rows:
        raise BadObject("corrupt-object", f"{table.num_rows} records in {found} lines: a quoted field spans lines")
    leaf = text_leaf(options.timezone)
    columns = []
    for i, field in enumerate(schema):
        if i not in positions:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        column = table.column(_name(positions[i]))
        if nulls_differ:
            column = _apply_nulls(column, options)
        if is_bytes(field.type):
            column = column.cast(field.type)  # the bytes of the text, where JSON has base64
        columns.append(conform_column(column, field, leaf))
    return _table(columns, schema, table)


def _parse(
    plain: pa.Buffer,
    schema: pa.Schema,
    options: FormatOptions,
    positions: dict[int, int],
    wire: dict[int, pa.DataType],
    width: int,
) -> pa.Table:
    names = [_name(i) for i in range(width)]
    wanted = {_name(at): wire[i] for i, at in positions.items()}
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
    block = min(BLOCK_SIZE, plain.size + 1)
    while True:  # twice at most
        read = pc_csv.ReadOptions(use_threads=False, block_size=block, column_names=names)
        try:
            return pc_csv.read_csv(
                pa.BufferReader(plain),
                read_options=read,
                parse_options=_parse_options(options),
                convert_options=convert,
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            if block < min(plain.size, _MAX_BLOCK):  # a line longer than a block, perhaps
                block = min(plain.size + 1, _MAX_BLOCK)
                continue
            raise _named(error, schema, positions) from error


def _ends_in_quotes(plain: bytes, options: FormatOptions) -> bool:
    """Whether the last line opens a quote that nothing closes: pyarrow takes the end of the data for its end."""
    end = len(plain)
    while end and plain[end - 1] == _NEWLINE:
        end -= 1
    last = plain[plain.rfind(b"\n", 0, end) + 1 : end]
    if not options.quote or last.count(options.quote.encode()) % 2 == 0:
        return False
    twice = last + b"\n" + last + b"\n"  # an open quote swallows the newline between them
    try:
        table = pc_csv.read_csv(
            pa.BufferReader(twice),
            read_options=pc_csv.ReadOptions(
                use_threads=False, autogenerate_column_names=True, block_size=len(twice) + 1
            ),
            parse_options=_parse_options(options),
        )
    except pa.ArrowException:
        return True
    return bool(table.num_rows != 2)


def _named(error: Exception, schema: pa.Schema, positions: dict[int, int]) -> BadObject:
    text = str(error)
    numbered = _PYARROW_COLUMN.match(text)
    if numbered:
        for i, at in positions.items():
            if at == int(numbered.group(1)):
                return corrupt_column(schema.field(i).name, text[numbered.end() :])
    return BadObject("corrupt-object", shorten(text))


def _parse_options(options: FormatOptions) -> pc_csv.ParseOptions:
    return pc_csv.ParseOptions(
        delimiter=options.sep,
        quote_char=options.quote or False,
        double_quote=bool(options.quote),
        escape_char=False,
        newlines_in_values=False,
        ignore_empty_lines=True,
    )


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """What pyarrow shall read a column as; timestamps come as text, because it wants all or none to have a zone."""
    return pa.string() if pt.is_timestamp(kind) else kind


def _apply_nulls(column: pa.ChunkedArray, options: FormatOptions) -> pa.ChunkedArray:
    """Spark's rule for a column of strings: null is what was not there; then quoted nothing; then `nullValue`."""
    if options.empty_value:
        column = pc.if_else(pc.equal(column, ""), options.empty_value, column)
    return pc.if_else(pc.equal(column, options.null_value), pa.scalar(None, pa.string()), column)


def _plain_escapes(lines: bytes, options: FormatOptions) -> bytes:
    """The lines with escaped quotes as doubled quotes, so that no other escape character has a meaning."""
    quote, escape = options.quote.encode(), options.escape.encode()
    if not escape or not quote or escape == quote:
        return lines
    if escape not in lines or (escape + quote not in lines and escape * 2 not in lines):
        return lines  # the usual file; each escape character in it stands for itself
    q, e, s = re.escape(quote), re.escape(escape), re.escape(options.sep.encode())
    quoted = re.compile(rb"(?:(?<=\A)|(?<=[\n%b]))%b((?:[^%b%b\n]|%b[^\n]|%b%b)*)%b" % (s, q, q, e, e, q, q, q))
    pairs = re.compile(rb"%b(%b|%b)" % (e, e, q))

    def unescaped(field: re.Match[bytes]) -> bytes:
        if escape not in field.group(1):
            return field.group(0)
        plain = pairs.sub(lambda pair: quote * 2 if pair.group(1) == quote else escape, field.group(1))
        return quote + plain + quote

    return quoted.sub(unescaped, lines)


def _name(position: int) -> str:
    return f"c{position}"


def _table(columns: list[pa.ChunkedArray], schema: pa.Schema, parsed: pa.Table) -> pa.Table:
    if not columns:
        return parsed.select([])  # keeps the number of rows
    return pa.Table.from_arrays(columns, schema=schema)
