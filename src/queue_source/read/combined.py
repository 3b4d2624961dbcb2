"""Reads many small objects as one block: opening the parser costs more than parsing each of them.

Only faultless rows are returned here. Where the block as a whole is not read quickly (a bad record, a missing or
replaced object, a compressed one, another header), it is cut until the unusual objects are alone; `read_object` reads
those, and reports the fault and its object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.formats.base import data_schema, format_of, halves, read_in_pieces
from queue_source.formats.compression import codec_of
from queue_source.formats.text.blocks import BOM
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.read.objects import ExpectedObject, check_unchanged
from queue_source.storage.files import is_local, open_object
from queue_source.storage.memory import BoundedMemory

SMALL = 256 << 10
"""Bytes of the largest object that is read together with others."""
TOGETHER = 4 << 20
"""Bytes of the objects that are held and read at once."""
_THREADS = 8

Content = tuple[int, bytes | None]
"""The place of an object among those that are read, and its text; None where it is not plain text."""


def may_be_joined(schema: pa.Schema, options: FormatOptions) -> bool:
    """Tell whether rows of several objects may be read at once: no column depends on the object of a row."""
    return format_of(options).combines(options) and len(data_schema(schema, options)) == len(schema)


def read_together(
    objects: Sequence[tuple[str, ExpectedObject]],
    schema: pa.Schema,
    options: FormatOptions,
    storage: StorageOptions | None = None,
) -> Iterator[pa.Table | int]:
    """Yield, in the order of `objects`, the rows of some of them, or the place of one that has to be read alone.

    Runs in an executor worker. Raises nothing of its own: a refused object is requested again when it is read alone.
    """
    if all(is_local(uri) for uri, _ in objects):
        contents = [_content(uri, expected, storage) for uri, expected in objects]
    else:  # a request is mostly waiting
        with ThreadPoolExecutor(min(_THREADS, len(objects)), thread_name_prefix="cuesqueue-small") as threads:
            contents = list(threads.map(lambda announced: _content(announced[0], announced[1], storage), objects))
    format = format_of(options)
    numbered: Sequence[Content] = list(enumerate(contents))

    def read(some: Sequence[Content]) -> pa.Table | None:
        bodies = [data for _, data in some if data is not None]
        if len(bodies) < len(some) or (len(some) == 1 and bodies[0] and not format.combines_alone):
            return None
        try:
            with BoundedMemory(format.decode_memory(options)):
                return format.combine(bodies, schema, options)
        except BadObject:  # one of them is too large, or all together are
            return None

    yield from read_in_pieces(numbered, read, halves, lambda alone: (place for place, _ in alone))


def _content(uri: str, expected: ExpectedObject, storage: StorageOptions | None) -> bytes | None:
    """Read all of an object as it is stored; None when it is not plain text as announced, or was replaced."""
    try:
        with open_object(uri, storage, size=expected.size) as file:
            size = file.size()
            check_unchanged(uri, file, size, expected)
            data = file.read(size) if size <= SMALL else b""
            if not file.version.is_pinned and not file.is_same():
                return None
    except (BadObject, ObjectStoreError):
        return None
    if len(data) != size or codec_of(uri, data) is not None:
        return None
    return data.removeprefix(BOM)
