"""ORC: stripes to Arrow, only the declared columns, in batches that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed import orc_file
from queue_source.formats.typed.limits import AT_ONCE, Limits
from queue_source.formats.typed.orc_file import OrcFile, Stripe, StripeFooter
from queue_source.formats.typed.orc_lengths import measured
from queue_source.formats.typed.orc_values import Values
from queue_source.formats.typed.tables import ColumnarFormat, choose, conformed, damage_is_bad
from queue_source.options.file_format import FormatOptions
from queue_source.storage.files import ObjectFile

_ROWS = 65_536
_DICTIONARIES = (1, 3)  # encodings DICTIONARY and DICTIONARY_V2
_HIVE = re.compile(r"_col\d+")


class Orc(ColumnarFormat):
    name = "orc"

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        return _opened(file)[1]

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """The rows of the stripes that begin in the part."""
        file, limits = source.file, Limits(source.size, options.max_expansion)
        with damage_is_bad(file, "ORC"):
            orc, written = _opened(file)
            names = _names(written.names, schema, options)
            found = pa.schema([field.with_name(name) for field, name in zip(written, names, strict=True)])
            chosen = choose(schema, found, options, file.uri)
            wanted = [written.names[names.index(name)] for name in chosen.names]
            last = source.size if part.end is None else part.end
            stripes = [stripe for stripe in orc.stripes if part.start <= stripe.offset < last and stripe.rows]
            limits.check_rows(sum(stripe.rows for stripe in stripes))
        for stripe in stripes:
            for batch in _batches(file, orc, stripe, wanted, limits):
                table = pa.Table.from_batches([batch]).rename_columns(chosen.names)
                yield limits.counted(conformed(_with_times(table, schema, chosen.matches), schema, chosen, options))


def _opened(file: ObjectFile) -> tuple[OrcFile, pa.Schema]:
    """The structure of the file, and its columns as `Values` makes them."""
    from pyarrow.orc import ORCFile  # here: a library of its own, which the other formats can do without

    reader = ORCFile(pa.PythonFile(file, "r"))
    orc = OrcFile(file, reader.reader.serialized_file_tail())
    values = Values(orc, "")
    columns = [(field.name, values.column(pa.array([], field.type), field.name).type) for field in reader.schema]
    return orc, pa.schema(columns)


def _names(written: Sequence[str], schema: pa.Schema, options: FormatOptions) -> list[str]:
    """The names of the columns. Files of Hive may have none (`_col0` ...): theirs are the declared ones, in order."""
    if not all(map(_HIVE.fullmatch, written)):
        return list(written)
    declared = [name for name in schema.names if name != options.rescued_data_column]
    return [*declared[: len(written)], *written[len(declared) :]]


def _batches(
    file: ObjectFile, orc: OrcFile, stripe: Stripe, wanted: list[str], limits: Limits
) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds
    from pyarrow.dataset import OrcFileFormat

    with damage_is_bad(file, "ORC"):
        footer = orc.stripe_footer(stripe)
        values = Values(orc, footer.zone)
        rows = _rows(orc, stripe, footer, wanted, limits)
        fragment = OrcFileFormat().make_fragment(orc.alone(stripe, footer))
        scanner = ds.Scanner.from_fragment(
            fragment, columns=wanted, batch_size=rows, batch_readahead=0, fragment_readahead=0, use_threads=False
        )
        batches = scanner.to_reader()
    try:
        while True:
            with damage_is_bad(file, "ORC"):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
                columns = [values.column(column, name) for column, name in zip(batch.columns, wanted, strict=True)]
                empty = pa.table({"": pa.nulls(batch.num_rows)}).select([]).to_batches()
                batch = pa.RecordBatch.from_arrays(columns, names=wanted) if columns else empty[0]
            yield batch
    finally:
        batches.close()  # nothing is decoded on of an object that was refused


def _rows(orc: OrcFile, stripe: Stripe, footer: StripeFooter, wanted: Sequence[str], limits: Limits) -> int:
    """Rows of a batch that fits into memory, whatever is in the stripe."""
    root = orc.types[0]
    worst = sum(
        _worst(orc, stripe, footer, root.inner[n], stripe.rows, limits)[0]
        for n, name in enumerate(root.names)
        if name in wanted
    )
    limits.check_indivisible(worst, "a row")
    return max(min(_ROWS, AT_ONCE // 4 // max(worst, 1)), 1)  # it is there several times while it is decoded


def _worst(
    orc: OrcFile, stripe: Stripe, footer: StripeFooter, number: int, count: int, limits: Limits
) -> tuple[int, int]:
    """The bytes that a value of a type may have, of which there are so many in the stripe, and those of all of them."""
    written = orc.types[number]

    def lengths() -> tuple[int, int]:
        stream = footer.streams.get((number, orc_file.LENGTH))
        if stream is None:
            return 0, 0
        limits.check_indivisible(orc.content_size(stream), "a stream of lengths")
        version = 1 if footer.encodings[number] < 2 else 2
        return measured(orc.content(stream), version, count)

    if written.kind in (orc_file.LIST, orc_file.MAP):
        length, total = lengths()
        inner = [_worst(orc, stripe, footer, n, total, limits) for n in written.inner]
        # the longest list need not have the longest texts: no more than all there are
        return 4 + sum(min(length * one, every) for one, every in inner), 4 * count + sum(every for _, every in inner)
    if written.kind in (orc_file.STRING, orc_file.BINARY, orc_file.VARCHAR, orc_file.CHAR):
        longest, total = lengths()
        is_dictionary = footer.encodings[number] in _DICTIONARIES
        return 4 + longest, 4 * count + (count * longest if is_dictionary else total)
    if written.inner:
        inner = [_worst(orc, stripe, footer, n, count, limits) for n in written.inner]
        return sum(one for one, _ in inner), sum(every for _, every in inner)
    return 16, 16 * count


def _with_times(table: pa.Table, schema: pa.Schema, matches: dict[str, str]) -> pa.Table:
    """Spark writes TIMESTAMP_NTZ as a whole number of microseconds, others as a moment at the clock of the writer."""
    for name, written in matches.items():
        place, kind = table.column_names.index(written), schema.field(name).type
        column = table.column(place)
        if pt.is_timestamp(kind) and kind.tz is None and pt.is_int64(column.type):
            table = table.set_column(place, written, column.cast(kind))
        elif pt.is_timestamp(kind) and kind.tz is None and pt.is_timestamp(column.type):
            table = table.set_column(place, written, pc.local_timestamp(column))
    return table


ORC = Orc()
