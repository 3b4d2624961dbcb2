"""Reads the columns of a Parquet file as Iceberg's, and matches them with those of a table, by field id or by name.

Refused columns could be read as other values by some reader of the table, or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from queue_source.errors import BadObject
from queue_source.sinks.iceberg.name_mapping import children_of, completed
from queue_source.sinks.iceberg.registering.footers import Described

_FIELD_ID = b"PARQUET:field_id"
_STORED: dict[pa.DataType, tuple[PrimitiveType, str]] = {
    pa.bool_(): (BooleanType(), "BOOLEAN"),
    pa.int8(): (IntegerType(), "INT32"),
    pa.int16(): (IntegerType(), "INT32"),
    pa.int32(): (IntegerType(), "INT32"),
    pa.uint8(): (IntegerType(), "INT32"),
    pa.uint16(): (IntegerType(), "INT32"),
    pa.int64(): (LongType(), "INT64"),
    pa.float32(): (FloatType(), "FLOAT"),
    pa.float64(): (DoubleType(), "DOUBLE"),
    pa.string(): (StringType(), "BYTE_ARRAY"),
    pa.large_string(): (StringType(), "BYTE_ARRAY"),
    pa.binary(): (BinaryType(), "BYTE_ARRAY"),
    pa.large_binary(): (BinaryType(), "BYTE_ARRAY"),
    pa.date32(): (DateType(), "INT32"),
    pa.time64("us"): (TimeType(), "INT64"),
    pa.timestamp("us"): (TimestampType(), "INT64"),
    pa.timestamp("us", "UTC"): (TimestamptzType(), "INT64"),
}
"""Types that every reader of Iceberg takes from Parquet as they are.

Not so others that look alike: of times in milliseconds or nanoseconds, INT96 and numbers without a sign that need all
their bits some readers make other values, and some none.
"""


@dataclass(frozen=True, slots=True)
class FileField:
    """A column of a file, or a part of one.

    Attributes:
        kind: `struct`, `list` or `map`; "" for values.
        type: Of values.
        leaf: The number of its column of values.
    """

    name: str
    id: int | None
    kind: str
    type: PrimitiveType | None
    required: bool
    children: tuple[FileField, ...] = ()
    leaf: int = -1


@dataclass(frozen=True, slots=True)
class Bound:
    """A column of a file, and the column of the table that it belongs to.

    None for a new one, or for one that the table dropped.
    """

    file: FileField
    field: NestedField | None
    dropped: bool = False
    children: tuple[Bound, ...] = ()

    @property
    def name(self) -> str:
        """The name in the table."""
        return self.file.name if self.field is None else self.field.name


Leaf = Callable[[pa.DataType, str, str], PrimitiveType]
"""From a type, how it is stored, and the column's name. Raises BadObject."""


def file_fields(described: Described, leaf: Leaf) -> tuple[FileField, ...]:
    """Return the columns of a file. Raises BadObject("wrong-columns") for one that an Iceberg table cannot have."""
    numbers = itertools.count()
    schema = described.schema
    if len(set(schema.names)) < len(schema.names):
        raise wrong("it has two columns of one name")
    columns = tuple(_field(field, field.name, described, numbers, leaf) for field in schema)
    if next(numbers) != len(described.columns):
        raise wrong("its columns are not those of its schema")
    return columns


def stored_as_iceberg(kind: pa.DataType, physical: str, column: str) -> PrimitiveType:
    """Return the type of values that are stored in the form of Iceberg's specification. Raises BadObject."""
    if pt.is_dictionary(kind):
        kind = kind.value_type
    if (stored := _STORED.get(kind)) is not None and stored[1] == physical:
        return stored[0]
    if pt.is_decimal128(kind) and physical in ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"):
        return DecimalType(kind.precision, kind.scale)
    if pt.is_fixed_size_binary(kind) and physical == "FIXED_LEN_BYTE_ARRAY":
        return FixedType(kind.byte_width)
    raise wrong(f"column {column!r} is stored as {kind} ({physical}), which readers of Iceberg tables do not take")


def wrong(problem: str) -> BadObject:
    return BadObject("wrong-columns", problem)


def _field(field: pa.Field, column: str, described: Described, numbers: Iterator[int], leaf: Leaf) -> FileField:
    said = (field.metadata or {}).get(_FIELD_ID)
    id = None if said is None else int(said)
    kind = field.type
    inner: list[pa.Field] = []
    word = ""
    if isinstance(kind, pa.BaseExtensionType):
        raise wrong(f"column {column!r} is of type {kind}, which an Iceberg table cannot hold")
    if pt.is_struct(kind):
        word, inner = "struct", [kind.field(number) for number in range(kind.num_fields)]
        if not inner or len({child.name for child in inner}) < len(inner):
            raise wrong(f"column {column!r} has no fields, or two of one name")
    elif pt.is_list(kind) or pt.is_large_list(kind):
        word, inner = "list", [kind.value_field.with_name("element")]
    elif pt.is_map(kind):
        word, inner = "map", [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    elif pt.is_nested(kind):
        raise wrong(f"column {column!r} is of type {kind}, which readers of Iceberg tables do not take")
    if inner:
        children = tuple(_field(child, f"{column}.{child.name}", described, numbers, leaf) for child in inner)
        return FileField(field.name, id, word, None, not field.nullable, children)
    number = next(numbers)
    if number >= len(described.columns) or described.columns[number].path.split(".")[0] != column.split(".")[0]:
        raise wrong("its columns are not those of its schema")
    kind_of_values = leaf(kind, described.columns[number].physical, column)
    return FileField(field.name, id, "", kind_of_values, not field.nullable, leaf=number)


def bind(fields: Sequence[FileField], metadata: TableMetadata | None) -> tuple[Bound, ...]:
    """Match each column with one of the table. Without a table all are new. Raises BadObject("wrong-columns")."""
    if metadata is None:
        return _by_name(fields, (), (), "")
    with_id = [field.id is not None for field in every(fields)]
    if not any(with_id):
        mapped = completed(metadata.schema().fields, metadata.name_mapping())
        return _by_name(fields, metadata.schema().fields, mapped, "")
    if not all(with_id):
        raise wrong("some of its columns have field ids, and others have none: readers differ in what they make of it")
    names: dict[int, set[str]] = {}
    for schema in metadata.schemas:
        _names(schema.fields, names)
    return _by_id(fields, metadata.schema().fields, names, "")


def bind_names(fields: Sequence[FileField], metadata: TableMetadata | None) -> tuple[Bound, ...]:
    """Match by name alone, for a file whose ids no reader will see."""
    if metadata is None:
        return _by_name(fields, (), (), "")
    return _by_name(fields, metadata.schema().fields, completed(metadata.schema().fields, metadata.name_mapping()), "")


def _by_name(
    fields: Sequence[FileField], table: Sequence[NestedField], mapped: Sequence[MappedField], above: str
) -> tuple[Bound, ...]:
    live = {field.field_id: field for field in table}
    current = {field.name: field.field_id for field in table}
    entries = {name: entry for entry in mapped for name in entry.names}
    matches: list[Bound] = []
    taken: dict[int, str] = {}
    for file in fields:
        entry = entries.get(file.name)
        id = None if entry is None else entry.field_id
        if current.get(file.name, id) != id:
            raise wrong(
                f"column {above + file.name!r} is another one by the table's name mapping (field id {id}) than by its "
                f"name ({current[file.name]})"
            )
        if id is not None and taken.setdefault(id, file.name) != file.name:
            raise wrong(f"its columns {taken[id]!r} and {file.name!r} are one column by the table's name mapping")
        field = None if id is None else live.get(id)
        children: tuple[Bound, ...] = ()
        if file.children and (entry is None or field is not None):
            below = children_of(field.field_type) if field is not None else ()
            children = _by_name(file.children, below, entry.fields if entry else (), f"{above}{file.name}.")
        matches.append(Bound(file, field, entry is not None and field is None, children))
    return tuple(matches)


def _by_id(
    fields: Sequence[FileField], table: Sequence[NestedField], names: dict[int, set[str]], above: str
) -> tuple[Bound, ...]:
    live = {field.field_id: field for field in table}
    matches: list[Bound] = []
    taken: set[int] = set()
    for file in fields:
        assert file.id is not None
        if file.name not in names.get(file.id, ()):
            raise wrong(
                f"its column {above + file.name!r} has field id {file.id}, which in this table was never a column of "
                "that name: the ids are those of another table"
            )
        if file.id in taken:
            raise wrong(f"two of its columns have field id {file.id}")
        taken.add(file.id)
        field = live.get(file.id)
        children: tuple[Bound, ...] = ()
        if file.children and field is not None:
            children = _by_id(file.children, children_of(field.field_type), names, f"{above}{file.name}.")
        matches.append(Bound(file, field, field is None, children))
    return tuple(matches)


def _names(fields: Sequence[NestedField], names: dict[int, set[str]]) -> None:
    for field in fields:
        names.setdefault(field.field_id, set()).add(field.name)
        _names(children_of(field.field_type), names)


def every(fields: Sequence[FileField]) -> Iterator[FileField]:
    for field in fields:
        yield field
        yield from every(field.children)


def new_columns(bound: Sequence[Bound]) -> Iterator[str]:
    """Yield the names of the columns that the table does not have yet."""
    for column in bound:
        if column.field is None and not column.dropped:
            yield column.file.name
        yield from new_columns(column.children)


def wanted_fields(bound: Sequence[Bound], ids: Iterator[int] | None = None) -> list[NestedField]:
    """Return the columns that a table needs for these, under its own names. Their ids are arbitrary."""
    ids = itertools.count(1) if ids is None else ids
    return [
        NestedField(next(ids), column.name, _wanted_type(column, ids), required=False)
        for column in bound
        if not column.dropped
    ]


def _wanted_type(column: Bound, ids: Iterator[int]) -> IcebergType:
    if column.file.type is not None:
        return column.file.type
    inner = wanted_fields(column.children, ids)
    if column.file.kind == "struct":
        return StructType(*inner)
    if len(inner) != len(column.children):
        raise wrong(f"a part of its column {column.file.name!r} is no part of the table's")
    if column.file.kind == "list":
        return ListType(inner[0].field_id, inner[0].field_type, element_required=False)
    key, value = inner
    return MapType(key.field_id, key.field_type, value.field_id, value.field_type, value_required=False)


def covers(table: Sequence[NestedField], columns: Sequence[NestedField]) -> bool:
    """Tell whether the table has all columns, as wide as these."""
    columns_of_table = {field.name: field for field in table}
    for field in columns:
        column_of_table = columns_of_table.get(field.name)
        if column_of_table is None:
            return False
        inner, below = children_of(field.field_type), children_of(column_of_table.field_type)
        if not (covers(below, inner) if inner else column_of_table.field_type == field.field_type):
            return False
    return True
