"""Avro: records to Arrow by `fastavro`, which the extra `avro` installs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed.tables import TypedFormat, choose, conformed, damage_is_bad
from queue_source.options.file_format import FormatOptions
from queue_source.storage.files import ObjectFile

_ROWS = 16_384


class Avro(TypedFormat):
    name = "avro"

    def require_installed(self) -> None:
        try:
            import fastavro  # noqa: F401
        except ImportError as error:
            raise OptionError(
                "fileFormat", 'avro needs the package fastavro: pip install "cuesqueue[avro]" on driver and executors'
            ) from error

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        written = _written(self._records(file).writer_schema)
        return pa.schema([(name, _kind(kind).arrow) for name, kind in written.items()])

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """The records of the whole object, of any codec of its own."""
        file = source.file
        with damage_is_bad(file, "Avro"):
            records = self._records(file)
            written = _written(records.writer_schema)
            chosen = choose(schema, _declared(written, options), options, file.uri)
            kinds = {name: _kind(written[name]) for name in chosen.names}
        while True:
            with damage_is_bad(file, "Avro"):
                rows = list(islice(records, _ROWS))
                columns = [
                    pa.array([None if row[name] is None else kind.convert(row[name]) for row in rows], kind.arrow)
                    for name, kind in kinds.items()
                ]
            if not rows:
                return
            table = pa.Table.from_arrays(columns, names=list(kinds))
            table = table if columns else pa.table({"": pa.nulls(len(rows))}).select([])
            yield conformed(table, schema, chosen, options)

    def _records(self, file: ObjectFile) -> Any:
        self.require_installed()
        import fastavro

        return fastavro.reader(cast(IO[bytes], file))


def _declared(written: dict[str, Any], options: FormatOptions) -> pa.Schema:
    """The written columns; when only declared columns are wanted, no types are needed, and some types have no equal."""
    if options.watch_new_columns or options.rescued_data_column is not None:
        return pa.schema([(name, _kind(kind).arrow) for name, kind in written.items()])
    return pa.schema([(name, pa.null()) for name in written])


class _Kind(NamedTuple):
    """What a written type is in Arrow, and how fastavro's values become those that `pa.array` takes."""

    arrow: pa.DataType
    convert: Callable[[Any], Any]


def _written(schema: Any) -> dict[str, Any]:
    """The fields of the top-level record."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("the objects are not records")
    return {field["name"]: field["type"] for field in schema["fields"]}


def _kind(schema: Any) -> _Kind:
    """What a type of the writer's schema is. Raises ValueError for one that has no equal."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) > 1:
            raise ValueError(f"a union of {len(others)} types has no column type")
        return _kind(others[0]) if others else _Kind(pa.null(), _same)
    if isinstance(schema, str):
        schema = {"type": schema}
    name, logical = schema["type"], schema.get("logicalType")
    if isinstance(name, (dict, list)):
        return _kind(name)
    if logical == "decimal":
        return _Kind(pa.decimal128(schema["precision"], schema.get("scale", 0)), _same)
    if logical in _LOGICAL:
        return _Kind(_LOGICAL[logical], str if logical == "uuid" else _same)
    if name in _PLAIN:
        return _Kind(_PLAIN[name], _same)
    if name == "record":
        return _record(schema)
    if name == "array":
        items = _kind(schema["items"])
        return _Kind(pa.list_(items.arrow), lambda value: [_given(items, one) for one in value])
    if name == "map":
        values = _kind(schema["values"])
        arrow = pa.map_(pa.string(), values.arrow)
        return _Kind(arrow, lambda value: [(key, _given(values, one)) for key, one in value.items()])
    raise ValueError(f"the type {name!r} has no column type")  # a record within itself, for one


def _record(schema: Any) -> _Kind:
    fields = {name: _kind(kind) for name, kind in _written(schema).items()}
    arrow = pa.struct([(name, kind.arrow) for name, kind in fields.items()])
    return _Kind(arrow, lambda value: {name: _given(kind, value[name]) for name, kind in fields.items()})


def _given(kind: _Kind, value: Any) -> Any:
    return None if value is None else kind.convert(value)


def _same(value: Any) -> Any:
    return value


_PLAIN = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}

AVRO = Avro()
