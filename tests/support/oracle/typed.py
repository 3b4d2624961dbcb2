"""Files of formats with types, made of values that a case can show as code."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pyarrow.types as pt

from queue_source.schema.columns import parse_columns
from support.oracle.values import arrow_values

_WIDE = Context(prec=100)
_NO_ZONE = datetime(1970, 1, 1)


class NotWritten(Exception):
    """A writer cannot write some values."""


@dataclass(frozen=True)
class Made:
    """Rows as written: `ddl` has the types in the file, `rows` days and moments as numbers.

    `settings` are those of the writer, but for `stored`: how some columns are stored, where their values allow it.
    """

    writer: str
    ddl: str
    rows: tuple[tuple[Any, ...], ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def schema(self) -> pa.Schema:
        return parse_columns(self.ddl)

    @cached_property
    def table(self) -> pa.Table:
        columns = [[row[at] for row in self.rows] for at in range(len(self.schema))]
        arrays = [arrow_values(field.type, column) for field, column in zip(self.schema, columns, strict=True)]
        for at, name in enumerate(self.schema.names):
            if name in self.stored:
                with suppress(pa.ArrowInvalid):
                    other = arrays[at].cast(arrow_of(self.stored[name], arrays[at].type))
                    arrays[at] = other if other.cast(arrays[at].type).equals(arrays[at]) else arrays[at]
        return pa.Table.from_arrays(arrays, names=self.schema.names)

    @property
    def stored(self) -> dict[str, str]:
        return self.settings.get("stored", {})  # type: ignore[no-any-return]

    @property
    def of_writer(self) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if name != "stored"}

    def bytes(self, file_format: str) -> bytes:
        """The file. Raises NotWritten where its writer cannot write the values."""
        try:
            if self.writer != "pyarrow":
                from support.oracle.spark import the_reader

                return the_reader().written(self, file_format)
            return _WRITERS[file_format](self)
        except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
            raise NotWritten(str(error)) from error


def _parquet(made: Made) -> bytes:
    out = io.BytesIO()
    pq.write_table(made.table, out, **made.of_writer)
    return out.getvalue()


def _orc(made: Made) -> bytes:
    out = io.BytesIO()
    pa_orc.write_table(made.table, out, **made.of_writer)
    return out.getvalue()


def _avro(made: Made) -> bytes:
    out = io.BytesIO()
    millis = [at for at in range(len(made.schema)) if _is_in_millis(made, at)]
    fields = [{"name": field.name, "type": _avro_column(made, at)} for at, field in enumerate(made.schema)]
    schema = {"type": "record", "name": "row", "fields": fields}
    records = [
        {
            field.name: avro_value(field.type, value) if at not in millis or value is None else value // 1000
            for at, (field, value) in enumerate(zip(made.schema, row, strict=True))
        }
        for row in made.rows
    ]
    fastavro.writer(out, schema, records, strict=False, **{"codec": "null", **made.of_writer})
    return out.getvalue()


def _avro_column(made: Made, at: int) -> Any:
    """The type of a column of Avro, with null or, where it is `required` and has none, without."""
    column = made.schema.field(at)
    kind, how = avro_type(column.type, f"r{at}"), made.stored.get(column.name, "")
    if how == "fixed":
        kind = {**kind, "type": "fixed", "name": f"f{at}", "size": 17}
    if _is_in_millis(made, at):
        kind = {**kind, "logicalType": kind["logicalType"].replace("micros", "millis")}
    if how == "required" and all(row[at] is not None for row in made.rows):
        return kind
    return [kind, "null"] if how == "last" else ["null", kind]


def _is_in_millis(made: Made, at: int) -> bool:
    is_wanted = made.stored.get(made.schema.names[at]) == "millis"
    return is_wanted and all(row[at] is None or row[at] % 1000 == 0 for row in made.rows)


ARROW = {
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(), "halffloat": pa.float16(),
    "millis": pa.timestamp("ms"), "nanos": pa.timestamp("ns"), "millis, UTC": pa.timestamp("ms", tz="UTC"),
    "nanos, UTC": pa.timestamp("ns", tz="UTC"), "large": pa.large_string(), "dictionary": pa.dictionary(pa.int32(),
    pa.string()), "large binary": pa.large_binary(), "seconds": pa.timestamp("s"), "duration": pa.duration("us"),
    "inner dictionary": pa.list_(pa.dictionary(pa.int32(), pa.string())),
}  # fmt: skip
"""Types of Arrow in which a writer may be given a column."""
MARKED = {
    "ENUM": "binary {} (ENUM)", "JSON": "binary {} (JSON)", "BSON": "binary {} (BSON)", "bytes": "binary {}",
    "text": "binary {} (UTF8)", "INTERVAL": "fixed_len_byte_array(12) {} (INTERVAL)",
    "fixed": "fixed_len_byte_array(12) {}",
}  # fmt: skip
"""Columns of texts, as Parquet's own writer of Java may mark them."""


def arrow_of(way: str, kind: pa.DataType) -> pa.DataType:
    """The type of Arrow in which a column of some type is stored."""
    return pa.decimal256(kind.precision, kind.scale) if way == "decimal256" else ARROW[way]


def stored_ways(file_format: str, kind: pa.DataType) -> tuple[str, ...]:
    """How a column may be stored."""
    if file_format == "avro":
        if pt.is_decimal(kind):
            return ("fixed", "required", "last")
        return ("millis", "required", "last") if pt.is_timestamp(kind) else ("required", "last")
    if file_format != "parquet":
        return ()
    if pt.is_decimal(kind) and kind != pa.decimal128(20, 0):
        return ("decimal256",)
    own = {pa.int16(): ("uint8",), pa.int32(): ("uint16",), pa.int64(): ("uint32", "duration"),
           pa.float32(): ("halffloat",), pa.decimal128(20, 0): ("uint64",), pa.string(): ("large", "dictionary"),
           pa.list_(pa.string()): ("inner dictionary",), pa.binary(): ("large binary",),
           pa.timestamp("us"): ("millis", "nanos", "seconds"),
           pa.timestamp("us", tz="UTC"): ("millis, UTC", "nanos, UTC")}  # fmt: skip
    return own.get(kind, ())


_WRITERS = {"parquet": _parquet, "orc": _orc, "avro": _avro}


def avro_type(kind: pa.DataType, name: str) -> Any:
    """The type as Avro has it, without logical types whose values Python's library would convert."""
    if pt.is_list(kind):
        return {"type": "array", "items": ["null", avro_type(kind.value_type, f"{name}i")]}
    if pt.is_map(kind):
        return {"type": "map", "values": ["null", avro_type(kind.item_type, f"{name}v")]}
    if pt.is_struct(kind):
        parts = [{"name": f.name, "type": ["null", avro_type(f.type, f"{name}_{at}")]} for at, f in enumerate(kind)]
        return {"type": "record", "name": name, "fields": parts}
    if pt.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pt.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pt.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    simple = {pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float"}
    return {**simple, pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes", pa.bool_(): "boolean"}[kind]


def avro_value(kind: pa.DataType, value: Any) -> Any:
    """The value as fastavro takes it."""
    if value is None:
        return None
    if pt.is_list(kind):
        return [avro_value(kind.value_type, item) for item in value]
    if pt.is_map(kind):
        return {key: avro_value(kind.item_type, item) for key, item in value}
    if pt.is_struct(kind):
        return {f.name: avro_value(f.type, value.get(f.name)) for f in kind}
    if pt.is_decimal(kind):
        return Decimal(value).scaleb(0, _WIDE)
    if pt.is_timestamp(kind) and kind.tz is None:
        return _NO_ZONE + timedelta(microseconds=value)
    return value
