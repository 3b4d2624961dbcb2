"""ORC: stripes to Arrow, only the declared columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed.tables import ColumnarFormat, choose, conformed, damage_is_bad
from queue_source.options.file_format import FormatOptions
from queue_source.storage.files import ObjectFile


class Orc(ColumnarFormat):
    name = "orc"

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        from pyarrow.orc import ORCFile  # here: a library of its own, which the other formats can do without

        return ORCFile(pa.PythonFile(file, "r")).schema

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """The rows of the stripes that begin in the part.

        pyarrow does not say where they begin: they are taken to be of equal size, so that each is in one part.
        """
        from pyarrow.orc import ORCFile

        file = source.file
        with damage_is_bad(file, "ORC"):
            reader = ORCFile(pa.PythonFile(file, "r"))
            chosen = choose(schema, reader.schema, options, file.uri)
            last = source.size if part.end is None else part.end
            count = reader.nstripes
            stripes = [n for n in range(count) if part.start <= source.size * n // count < last]
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


ORC = Orc()
