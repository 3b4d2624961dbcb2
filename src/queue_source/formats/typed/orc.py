"""ORC: stripes to Arrow, only the declared columns, in batches that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed.limits import Batches, Limits
from queue_source.formats.typed.orc_file import OrcFile, Stripe, StripeFooter
from queue_source.formats.typed.orc_lengths import IN_USE, largest_row
from queue_source.formats.typed.orc_values import Values
from queue_source.formats.typed.tables import ColumnarFormat, choose, conformed, damage_is_bad
from queue_source.options.content import FormatOptions
from queue_source.storage.files import ObjectFile
from queue_source.storage.memory import memory_left

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
            with damage_is_bad(file, "ORC"):
                footer = orc.stripe_footer(stripe)
                row = largest_row(orc, stripe, footer, written_names, memory_left())
                decode = _Decoder(orc, stripe, footer, Values(orc, footer.zone), written_names)

            def read(rows: int, decode: _Decoder = decode) -> Iterator[pa.Table]:
                tables = decode.tables(rows)
                while True:
                    with damage_is_bad(file, "ORC"):
                        table = next(tables, None)
                    if table is None:
                        return
                    table = _with_times(table.rename_columns(chosen.names), schema, chosen.matches)
                    yield conformed(table, schema, chosen, options)
                    del table

            for table in batches.of(read, stripe.rows, IN_USE * row):
                yield limits.counted(table)
                del table  # before the next is decoded, which may be as large


@dataclass(frozen=True, slots=True)
class _Decoder:
    """A stripe, and the columns that are read of it."""

    orc: OrcFile
    stripe: Stripe
    footer: StripeFooter
    values: Values
    columns: list[str]

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Decode the stripe in batches of so many rows."""
        import pyarrow.dataset as ds
        from pyarrow.dataset import OrcFileFormat

        fragment = OrcFileFormat().make_fragment(self.orc.alone(self.stripe, self.footer))
        scanner = ds.Scanner.from_fragment(
            fragment, columns=self.columns, batch_size=rows, batch_readahead=0, fragment_readahead=0,
            use_threads=False, memory_pool=pa.default_memory_pool(),
        )  # fmt: skip
        batches = scanner.to_reader()
        try:
            for batch in batches:
                batch.validate(full=True)
                yield self._table(batch)
        finally:
            batches.close()  # nothing is decoded on of an object that was refused

    def _table(self, batch: pa.RecordBatch) -> pa.Table:
        if not self.columns:  # pyarrow would forget how many rows there are
            return pa.table({"": pa.nulls(batch.num_rows)}).select([])
        columns = [self.values.column(column, name) for column, name in zip(batch.columns, self.columns, strict=True)]
        return pa.table(columns, names=self.columns)


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
