"""Types of Avro: their form for `fastavro`, and their columns, as Spark maps them.

Logical types are left out when records are decoded, and applied to whole columns: a date is a number of days, however
long ago it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queue_source.formats.times import gregorian_days, gregorian_micros

_MEMBER = "cuesqueue_member_"
_NUMBERS = ({"int", "long"}, {"float", "double"})
_LARGEST = 50_000
"""Types in a schema, where each use of a name counts."""
Values = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """What a written type is in Arrow, and how decoded values become an array of it."""

    arrow: pa.DataType
    build: Callable[[Values], pa.Array]


class Types:
    """The types of one object. Raises ValueError for a schema that is none.

    Attributes:
        decoded: The schema for `fastavro`: without logical types.
        fields: The types of the columns, by name.
        is_within_itself: Whether a record may be within itself, in any number of levels.
    """

    def __init__(self, schema: Any, *, hybrid: bool = False) -> None:
        self._named: dict[str, Any] = {}
        self._count = self._unions = 0
        self._open: list[str] = []
        self.is_within_itself = False
        self._hybrid = hybrid
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise ValueError("the objects are not records")
        self.decoded = self._plain(schema, "")
        self.fields: dict[str, Any] = {field["name"]: field["type"] for field in self.decoded["fields"]}

    def _plain(self, schema: Any, space: str) -> Any:
        """Return the schema with full names, each defined once.

        Logical types are kept where `fastavro` ignores them.
        """
        if isinstance(schema, list):
            return self._plain_union([self._plain(branch, space) for branch in schema])
        if isinstance(schema, str):
            if schema in _PLAIN:
                return schema
            name = _full(schema, space)
            if name not in self._named:
                raise ValueError(f"the type {schema!r} has no definition")
            self.is_within_itself |= name in self._open
            return name
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError("its schema is none of Avro")
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self._plain(kind, space)
        if kind in ("record", "error", "enum", "fixed"):
            name = _full(schema["name"], schema.get("namespace", space))
            if name in self._named:
                raise ValueError(f"the type {name!r} is defined twice")
            type_without_logic: dict[str, Any] = {"type": "record" if kind == "error" else kind, "name": name}
            self._named[name] = type_without_logic
            if kind == "enum":
                type_without_logic["symbols"] = schema["symbols"]
            elif kind == "fixed":
                type_without_logic["size"] = schema["size"]
            else:
                inner = name.rpartition(".")[0]
                self._open.append(name)
                type_without_logic["fields"] = [
                    {"name": field["name"], "type": self._plain(field["type"], inner)} for field in schema["fields"]
                ]
                self._open.pop()
        elif kind == "array":
            type_without_logic = {"type": "array", "items": self._plain(schema["items"], space)}
        elif kind == "map":
            type_without_logic = {"type": "map", "values": self._plain(schema["values"], space)}
        elif kind in _PLAIN:
            type_without_logic = {"type": kind}
        else:
            return self._plain(kind, space)
        if "logicalType" in schema:
            type_without_logic["cuesqueue"] = {key: schema.get(key) for key in ("logicalType", "precision", "scale")}
        return type_without_logic

    def definition(self, schema: Any) -> Any:
        """Return the type itself, where a schema only names it."""
        if isinstance(schema, str):
            return self._named.get(schema) or {"type": schema}
        return schema

    def column(self, schema: Any) -> Column:
        """Return the column of a type. Raises ValueError for one that has none."""
        self._count += 1
        if self._count > _LARGEST:
            raise ValueError(f"its schema has more than {_LARGEST} types")
        if isinstance(schema, list):
            return self._union(schema)
        schema = self.definition(schema)
        kind, logical = schema["type"], schema.get("cuesqueue") or {}
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            return _list(self.column(schema["items"]))
        if kind == "map":
            return _map(self.column(schema["values"]))
        return _leaf(kind, logical, hybrid=self._hybrid)

    def _plain_union(self, types: list[Any]) -> list[Any]:
        """Return a union whose values name their type, where there are several.

        Each type is put into a record of one field, which is written in the same way; it has the name that Spark gives.
        """
        some = [branch for branch in types if branch != "null"]
        if len(some) < 2 or set(map(self._kind, some)) in _NUMBERS:
            return types
        self._unions += 1
        members = iter(range(len(some)))
        return [
            branch if branch == "null" else {
                "type": "record",
                "name": f"{_MEMBER}{self._unions}_{(number := next(members))}",
                "fields": [{"name": f"member{number}", "type": branch}],
            }
            for branch in types
        ]  # fmt: skip

    def _kind(self, schema: Any) -> str:
        return str(self.definition(schema)["type"])

    def _union(self, schema: list[Any]) -> Column:
        """Build the column of a union as Spark does.

        It is a type that may be null, the larger of two numbers, or a struct with a field for each type.
        """
        types = [branch for branch in schema if branch != "null"]
        if not types:
            return _leaf("null", {}, hybrid=False)
        if len(types) == 1:
            return self.column(types[0])
        kinds = set(map(self._kind, types))
        if kinds in _NUMBERS:
            return _leaf("long" if "long" in kinds else "double", {}, hybrid=False)
        return _struct({branch["fields"][0]["name"]: self.column(branch["fields"][0]["type"]) for branch in types})

    def _record(self, schema: Any) -> Column:
        name = schema["name"]
        if name in self._open:
            raise ValueError(f"the record {name!r} is within itself")
        self._open.append(name)
        columns = {field["name"]: self.column(field["type"]) for field in schema["fields"]}
        self._open.pop()
        return _struct(columns)


def _full(name: str, space: str | None) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _struct(columns: dict[str, Column]) -> Column:
    fields = [pa.field(name, column.arrow) for name, column in columns.items()]

    def build(values: Values) -> pa.Array:
        children = [
            column.build([None if value is None else value.get(name) for value in values])
            for name, column in columns.items()
        ]
        if not children:
            return pa.array([None if value is None else {} for value in values], pa.struct([]))
        nulls = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)

    return Column(pa.struct(fields), build)


def _offsets(values: Values) -> pa.Array:
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    # a null among the offsets is a list that is null
    return pa.array([None if value is None else end for value, end in zip(values, ends)] + ends[-1:], pa.int32())  # noqa: B905 (one end more)


def _list(items: Column) -> Column:
    def build(values: Values) -> pa.Array:
        return pa.ListArray.from_arrays(
            _offsets(values), items.build([item for value in values for item in value or ()])
        )

    return Column(pa.list_(items.arrow), build)


def _map(items: Column) -> Column:
    def build(values: Values) -> pa.Array:
        keys = pa.array([key for value in values for key in value or ()], pa.string())
        item_values = items.build([item for value in values for item in (value or {}).values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, item_values)

    return Column(pa.map_(pa.string(), items.arrow), build)


def _leaf(kind: str, logical: dict[str, Any], *, hybrid: bool) -> Column:
    name = logical.get("logicalType")
    if name == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(int(logical["precision"]), int(logical["scale"] or 0))
    if name == "date" and kind == "int":

        def dates(values: Values) -> pa.Array:
            days = pa.array(values, pa.int32())
            return (gregorian_days(days) if hybrid else days).view(pa.date32())

        return Column(pa.date32(), dates)
    if kind == "long" and name in _TIMES:
        factor, zone = _TIMES[name]

        def times(values: Values) -> pa.Array:
            micros = pc.multiply_checked(pa.array(values, pa.int64()), factor)
            return (gregorian_micros(micros, "UTC") if hybrid and zone else micros).cast(pa.timestamp("us", tz=zone))

        return Column(pa.timestamp("us", tz=zone), times)
    arrow = _PLAIN[kind]
    return Column(arrow, lambda values: pa.array(values, arrow))


def _decimal(precision: int, scale: int) -> Column:
    arrow = pa.decimal128(precision, scale)

    def build(values: Values) -> pa.Array:
        # the unscaled number, the most significant byte first; Arrow has 16 bytes of it, the least significant first
        data = b"".join(
            bytes(16)
            if value is None
            else int.from_bytes(value, "big", signed=True).to_bytes(16, "little", signed=True)
            for value in values
        )
        nulls = pa.array([value is not None for value in values], pa.bool_())
        decimals = pa.Array.from_buffers(arrow, len(values), [nulls.buffers()[1], pa.py_buffer(data)])
        decimals.validate(full=True)
        return decimals

    return Column(arrow, build)


_PLAIN = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip
_TIMES: dict[str, tuple[int, str | None]] = {
    "timestamp-millis": (1000, "UTC"),
    "timestamp-micros": (1, "UTC"),
    "local-timestamp-millis": (1000, None),
    "local-timestamp-micros": (1, None),
}
