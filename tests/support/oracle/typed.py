"""Files of formats with types, made of values that a case can show as code."""

from __future__ import annotations

import io
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
    """Rows as written: `ddl` has the types in the file, `rows` days and moments as numbers."""

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
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def bytes(self, file_format: str) -> bytes:
        """The file. Raises NotWritten where its writer cannot write the values."""
        try:
            return _WRITERS[file_format](self)
        except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
            raise NotWritten(str(error)) from error


def _parquet(made: Made) -> bytes:
    out = io.BytesIO()
    pq.write_table(made.table, out, **made.settings)
    return out.getvalue()


def _orc(made: Made) -> bytes:
    out = io.BytesIO()
    pa_orc.write_table(made.table, out, **made.settings)
    return out.getvalue()


def _avro(made: Made) -> bytes:
    out = io.BytesIO()
    fields = [
        {"name": field.name, "type": ["null", avro_type(field.type, f"r{at}")]} for at, field in enumerate(made.schema)
    ]
    schema = {"type": "record", "name": "row", "fields": fields}
    records = [
        {field.name: avro_value(field.type, value) for field, value in zip(made.schema, row, strict=True)}
        for row in made.rows
    ]
    fastavro.writer(out, schema, records, strict=False, **{"codec": "null", **made.settings})
    return out.getvalue()


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
