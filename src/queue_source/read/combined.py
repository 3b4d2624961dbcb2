"""Many small objects of a text format as one block: opening the parser costs more than what is in each of them.

Only rows that nothing is wrong with come out of here. Where the block as a whole is not read quickly (a bad record, a
missing or exchanged object, a packed one, another header), it is halved until the unusual objects stand alone; those
are for `read_object`, which says what is wrong, and with which one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.formats.bad_records import Problems
from queue_source.formats.base import FormatOptions, data_schema
from queue_source.formats.compression import codec_of
from queue_source.formats.new_columns import NewColumns
from queue_source.formats.text.blocks import Block
from queue_source.formats.text.csv_lines import CsvReader
from queue_source.formats.text.json_lines import JsonReader
from queue_source.formats.text.lines import TextReader
from queue_source.read.objects import ExpectedObject, check_unchanged
from queue_source.storage.files import StorageOptions, is_local, open_object

SMALL = 256 << 10
"""Bytes of the largest object that is read together with others."""
TOGETHER = 4 << 20
"""Bytes of the objects that are held and read at once."""
_THREADS = 8
_BOM = b"\xef\xbb\xbf"


def may_be_joined(schema: pa.Schema, options: FormatOptions) -> bool:
    """Whether rows of several objects may be read at once: none tells from which object it comes."""
    return options.splittable and len(data_schema(schema, options)) == len(schema)


def read_together(
    objects: Sequence[tuple[str, ExpectedObject]],
    schema: pa.Schema,
    options: FormatOptions,
    storage: StorageOptions | None = None,
) -> Iterator[pa.Table | int]:
    """In the order of `objects`: the rows of some of them, or the place of one that has to be read by itself.

    Executor worker. Raises nothing of its own: what an object store refuses is asked for again when it is read alone.
    """
    if all(is_local(uri) for uri, _ in objects):
        contents = [_content(uri, expected, storage) for uri, expected in objects]
    else:  # a request takes its time, and most of it is waiting
        with ThreadPoolExecutor(min(_THREADS, len(objects)), thread_name_prefix="cuesqueue-small") as threads:
            contents = list(threads.map(lambda one: _content(one[0], one[1], storage), objects))
    yield from _halved(contents, 0, schema, options)


def _content(uri: str, expected: ExpectedObject, storage: StorageOptions | None) -> bytes | None:
    """All of an object as it is stored; None when it is not plain text that was announced so."""
    try:
        with open_object(uri, storage) as file:
            size = file.size()
            check_unchanged(uri, file, size, expected)
            data = file.read(size) if size <= SMALL else b""
    except (BadObject, ObjectStoreError):
        return None
    if len(data) != size or codec_of(uri, data) is not None:
        return None
    return data[len(_BOM) :] if data.startswith(_BOM) else data


def _halved(
    contents: Sequence[bytes | None], place: int, schema: pa.Schema, options: FormatOptions
) -> Iterator[pa.Table | int]:
    if len(contents) == 1 and not (contents[0] == b"" or options.file_format == "text"):
        yield place  # nothing is gained, and an object alone may not even name a column
        return
    table = _quickly([data for data in contents if data is not None], schema, options) if None not in contents else None
    if table is not None:
        yield table
        return
    if len(contents) == 1:
        yield place
        return
    middle = len(contents) // 2
    yield from _halved(contents[:middle], place, schema, options)
    yield from _halved(contents[middle:], place + middle, schema, options)


def _quickly(contents: Sequence[bytes], schema: pa.Schema, options: FormatOptions) -> pa.Table | None:
    """The rows of all, or None when anything about one of them is unusual."""
    problems = Problems(options.mode)
    end = b"\n" if options.line_sep is None else options.line_sep.encode()
    filled = [data for data in contents if data]
    if not filled:
        return schema.empty_table()
    if options.file_format == "text":
        return TextReader(schema, options, problems).quickly(_joined(filled, end))
    if options.file_format == "json":
        # an object that ends in `}` cannot go on in a line that begins with `{`: none of them leans on another
        if not all(data.rstrip().endswith(b"}") or data.isspace() for data in filled):
            return None
        json = JsonReader(schema, options, problems, "")
        table = None if json.only_slowly else json.quickly(_joined(filled, end))
        return None if table is None or _says_nothing(table) else table
    reader = CsvReader(schema, options, problems, "")
    if options.header:
        try:
            rest = reader.take_header(Block(0, filled[0]))
        except (BadObject, NewColumns):
            return None
        if rest is None:
            return None
        header = filled[0][: rest.offset]
        if not all(data.startswith(header) for data in filled) or not header.endswith(end):
            return None
        filled = [data[len(header) :] for data in filled]
    if reader.only_slowly:
        return None
    return reader.quickly(_joined([data for data in filled if data], end))


def _joined(contents: Sequence[bytes], end: bytes) -> bytes:
    return b"".join(data if data.endswith(end) else data + end for data in contents)


def _says_nothing(table: pa.Table) -> bool:
    """Whether any record fills no column: its object may be of quite other columns, which is for it alone to say."""
    if any(column.null_count == 0 for column in table.columns):
        return False
    if not table.num_columns:
        return True
    empty = reduce(pc.and_, (pc.is_null(column) for column in table.columns), pa.scalar(True))
    return bool(pc.any(empty).as_py())
