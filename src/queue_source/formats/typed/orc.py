"""ORC: stripes to Arrow, only the declared columns, in batches that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed.limits import Batches, Limits
from queue_source.formats.typed.orc_file import OrcFile, Stripe
from queue_source.formats.typed.orc_values import Values
from queue_source.formats.typed.tables import ColumnarFormat, choose, conformed, damage_is_bad
from queue_source.options.content import FormatOptions
from queue_source.storage.files import ObjectFile

_EXPANDED = 16
"""How many times its compressed bytes a row is expected to take. One that takes more is read in smaller batches."""
_HIVE = re.compile(r"_col\d+")


class Orc(ColumnarFormat):
    name = "orc"

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        return _opened(file)[1]

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """Read the rows of the stripes that begin in the part."""
        file, limits, batches = source.file, Limits(source.size, options.max_expansion), Batches()
        with damage_is_bad(file, "ORC"):
            orc, written = _opened(file)
            names = _names(written.names, schema, options)
            named = pa.schema([field.with_name(name) for field, name in zip(written, names, strict=True)])
            chosen = choose(schema, named, options, file.uri)
            written_names = [written.names[names.index(name)] for name in chosen.names]
            last = source.size if part.end is None else part.end
            stripes = [stripe for stripe in orc.stripes if part.start <= stripe.offset < last and stripe.rows]
            limits.check_rows(sum(stripe.rows for stripe in stripes))
        for stripe in stripes:

            def read(rows: int, stripe: Stripe = stripe) -> Iterator[pa.Table]:
                tables = _decoded(orc, stripe, written_names, rows)
                while True:
                    with damage_is_bad(file, "ORC"):
                        table = next(tables, None)
                    if table is None:
                        return
                    table = _with_times(table.rename_columns(chosen.names), schema, chosen.matches)
                    yield conformed(table, schema, chosen, options)
                    del table

            for table in batches.of(read, stripe.rows, _EXPANDED * stripe.data // stripe.rows):
                yield limits.counted(table)
                del table  # before the next is decoded, which may be as large


def _decoded(orc: OrcFile, stripe: Stripe, names: list[str], rows: int) -> Iterator[pa.Table]:
    """Decode these columns of a stripe, in batches of so many rows."""
    import pyarrow.dataset as ds
    from pyarrow.dataset import OrcFileFormat

    file, zone = orc.alone(stripe)
    values = Values(orc, zone)
    scanner = ds.Scanner.from_fragment(
        OrcFileFormat().make_fragment(file), columns=names, batch_size=rows, batch_readahead=0, fragment_readahead=0,
        use_threads=False, memory_pool=pa.default_memory_pool(),
    )  # fmt: skip
    batches = scanner.to_reader()
    try:
        for batch in batches:
            batch.validate(full=True)
            if names:
                columns = [values.column(column, name) for column, name in zip(batch.columns, names, strict=True)]
                yield pa.table(columns, names=names)
            else:  # pyarrow would forget how many rows there are
                yield pa.table({"": pa.nulls(batch.num_rows)}).select([])
    finally:
        batches.close()  # nothing is decoded on of an object that was refused


def _opened(file: ObjectFile) -> tuple[OrcFile, pa.Schema]:
    """Open the structure of the file, with its columns as `Values` makes them."""
    from pyarrow.orc import ORCFile  # here: a library of its own, which the other formats can do without

    reader = ORCFile(pa.PythonFile(file, "r"))
    orc = OrcFile(file, reader.reader.serialized_file_tail())
    values = Values(orc, "")
    columns = [(field.name, values.column(pa.array([], field.type), field.name).type) for field in reader.schema]
    return orc, pa.schema(columns)


def _names(written: Sequence[str], schema: pa.Schema, options: FormatOptions) -> list[str]:
    """Return the names of the columns.

    Files of Hive may have none (`_col0` ...): they get the declared ones, in order.
    """
    if not all(map(_HIVE.fullmatch, written)):
        return list(written)
    declared = [name for name in schema.names if name != options.rescued_data_column]
    return [*declared[: len(written)], *written[len(declared) :]]


def _with_times(table: pa.Table, schema: pa.Schema, matches: dict[str, str]) -> pa.Table:
    """Convert times: Spark writes TIMESTAMP_NTZ as microseconds, others as moments at the writer's clock."""
    for name, written in matches.items():
        place, kind = table.column_names.index(written), schema.field(name).type
        column = table.column(place)
        if pt.is_timestamp(kind) and kind.tz is None and pt.is_int64(column.type):
            table = table.set_column(place, written, column.cast(kind))
        elif pt.is_timestamp(kind) and kind.tz is None and pt.is_timestamp(column.type):
            table = table.set_column(place, written, pc.local_timestamp(column))
    return table


ORC = Orc()
