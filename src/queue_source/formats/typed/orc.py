"""ORC: stripes to Arrow, only the declared columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from queue_source.formats.base import FormatOptions
from queue_source.formats.typed.tables import choose, conformed, damage_is_bad
from queue_source.storage.files import ObjectFile


def read_orc(
    file: ObjectFile, size: int, schema: pa.Schema, options: FormatOptions, start: int = 0, end: int | None = None
) -> Iterator[pa.Table]:
    """The rows of the stripes that begin at byte `start` or later, and before `end`, in exactly `schema`.

    Where they begin pyarrow does not tell: they are taken to be of equal size, which parts them just as surely.
    Raises BadObject (`wrong-columns`, `corrupt-object`), and ObjectStoreError when the store fails in the middle.
    """
    from pyarrow.orc import ORCFile  # here: a library of its own, which the other formats can do without

    with damage_is_bad(file, "ORC"):
        reader = ORCFile(pa.PythonFile(file, "r"))
        chosen = choose(schema, reader.schema, options, file.uri)
        last = size if end is None else end
        stripes = [n for n in range(reader.nstripes) if start <= size * n // reader.nstripes < last]
    for stripe in stripes:
        with damage_is_bad(file, "ORC"):
            batch = reader.read_stripe(stripe, columns=chosen.names or None)
            batch.validate(full=True)
        table = _with_times(pa.Table.from_batches([batch]), schema, chosen.matches)
        yield conformed(table if chosen.names else table.select([]), schema, chosen, options)


def _with_times(table: pa.Table, schema: pa.Schema, matches: dict[str, str]) -> pa.Table:
    """Spark writes TIMESTAMP_NTZ as a whole number of microseconds."""
    for name, written in matches.items():
        place, kind = table.column_names.index(written), schema.field(name).type
        if pt.is_timestamp(kind) and kind.tz is None and pt.is_int64(table.column(place).type):
            table = table.set_column(place, written, table.column(place).cast(kind))
    return table
