"""Landed files: the footer of one becomes a data file of a table, or the reason why it cannot be one.

Its columns are matched with those of the table, and the partition is the one that the file proves to be of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from queue_source.common.columns import PartitionField as Wanted
from queue_source.errors import BadObject, OptionError
from queue_source.formats.metadata import path_columns, path_values
from queue_source.options.content import FormatOptions
from queue_source.sinks.iceberg.files import data_file
from queue_source.sinks.iceberg.footers import Footer, Statistics, leaves, wrong
from queue_source.sinks.iceberg.schemas import children_of, completed, united


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file or a part of one, and the table's column: None for a new one, or one that the table dropped.

    The id of `file` is its number (`Footer`).
    """

    file: types.NestedField
    table: types.NestedField | None
    dropped: bool
    parts: tuple[Column, ...]


def match(footer: Footer, metadata: TableMetadata | None) -> tuple[Column, ...]:
    """Match each column with one of the table. Without a table all are new. Raises BadObject("wrong-columns")."""
    if metadata is None:
        return _matched(footer.fields, (), (), None, "")
    fields = metadata.schema().fields
    if not footer.ids:
        return _matched(footer.fields, fields, completed(fields, metadata.name_mapping() or ()), None, "")
    names: dict[int, set[str]] = {}
    for schema in metadata.schemas:
        for id, field in index_by_id(schema).items():
            names.setdefault(id, set()).add(field.name)
    for field in _all(footer.fields):
        if field.name not in names.get(id := footer.ids[field.field_id], ()):
            raise wrong(
                f"its column {field.name!r} has field id {id}, which in this table was never a column of that name: "
                "the ids are those of another table"
            )
    return _matched(footer.fields, fields, (), footer.ids, "")


def _all(fields: Sequence[types.NestedField]) -> Iterator[types.NestedField]:
    for field in fields:
        yield field
        yield from _all(children_of(field.field_type))


def _matched(
    fields: Sequence[types.NestedField],
    table: Sequence[types.NestedField],
    mapped: Sequence[MappedField],
    ids: Mapping[int, int] | None,
    above: str,
) -> tuple[Column, ...]:
    live = {field.field_id: field for field in table}
    own = {field.name: field.field_id for field in table}
    entries = {name: entry for entry in mapped for name in entry.names}
    taken: dict[int, str] = {}
    columns = []
    for file in fields:
        entry = entries.get(file.name)
        id = ids[file.field_id] if ids is not None else None if entry is None else entry.field_id
        if ids is None and own.get(file.name, id) != id:
            raise wrong(
                f"column {above + file.name!r} is another one by the table's name mapping (field id {id}) than by its "
                f"name ({own[file.name]})"
            )
        if id is not None and id in taken:
            raise wrong(f"its columns {taken[id]!r} and {file.name!r} are one column of the table (field id {id})")
        field = None
        if id is not None:
            taken[id], field = file.name, live.get(id)
        below = () if field is None else children_of(field.field_type)
        inner = () if entry is None else entry.fields
        parts = _matched(children_of(file.field_type), below, inner, ids, f"{above}{file.name}.")
        columns.append(Column(file, field, id is not None and field is None, parts))
    return tuple(columns)


def every(columns: Sequence[Column]) -> Iterator[Column]:
    """Yield the columns with all of their parts, without what is dropped."""
    for column in columns:
        if not column.dropped:
            yield column
            yield from every(column.parts)


def wanted_fields(columns: Sequence[Column]) -> list[types.NestedField]:
    """Return the columns that a table needs for these, under its own names. Their ids are the file's numbers."""
    fields = []
    for column in columns:
        if column.dropped:
            continue
        kind, inner = column.file.field_type, wanted_fields(column.parts)
        if isinstance(kind, types.StructType):
            kind = types.StructType(*inner)
        elif len(inner) != len(column.parts):
            raise wrong(f"a part of its column {column.file.name!r} is no part of the table's")
        elif isinstance(kind, types.ListType):
            kind = types.ListType(inner[0].field_id, inner[0].field_type, element_required=False)
        elif isinstance(kind, types.MapType):
            key, value = inner
            kind = types.MapType(key.field_id, key.field_type, value.field_id, value.field_type, value_required=False)
        fields.append(types.NestedField(column.file.field_id, (column.table or column.file).name, kind, required=False))
    return fields


def covers(table: Sequence[types.NestedField], columns: Sequence[types.NestedField]) -> bool:
    """Tell whether the table has all columns, as wide as these."""
    fields = {field.name: field for field in table}
    for column in columns:
        field, inner = fields.get(column.name), children_of(column.field_type)
        if field is None or not (
            covers(children_of(field.field_type), inner) if inner else field.field_type == column.field_type
        ):
            return False
    return True


def check_required(
    table: Sequence[types.NestedField], columns: Sequence[Column], filled: set[int], footer: Footer
) -> None:
    """Check that columns that must not be null are in the file, and that the footer reports no nulls in them."""
    matched = {column.table.field_id: column for column in columns if column.table is not None}
    for field in table:
        column = matched.get(field.field_id)
        if column is None:
            if field.required and field.field_id not in filled:
                raise wrong(f"column {field.name!r} of the table must not be null, and the file has no such column")
            continue
        statistics = footer.statistics.get(column.file.field_id)
        if field.required and not column.file.required and (statistics is None or statistics.nulls != 0):
            raise wrong(f"column {field.name!r} of the table must not be null, and in the file it may be")
        check_required(children_of(field.field_type), column.parts, set(), footer)


_IN_FOLDERS = (
    types.StringType,
    types.IntegerType,
    types.LongType,
    types.DateType,
    types.BooleanType,
    types.DecimalType,
)
"""Types with one way to be written."""


def folder_columns(spec: PartitionSpec, schema: Schema, folders: Mapping[str, str]) -> set[int]:
    """Return the ids of the columns that readers fill from the partition's value where a file does not have them."""
    ids = {field.source_id for field in spec.fields if isinstance(field.transform, IdentityTransform)}
    return {field.field_id for field in schema.fields if field.field_id in ids and field.name in folders}


@dataclass(frozen=True, slots=True)
class PartitionOf:
    """What is known of a file.

    `facts`: by field id, those of the columns that it has; None of a list, a map or a struct. `folders`: `name=value`
    in its URI.
    """

    schema: Schema
    facts: Mapping[int, Statistics | None]
    folders: Mapping[str, str]
    uri: str

    def record(self, spec: PartitionSpec) -> Record:
        """Return the partition's values. Raises BadObject("wrong-partition")."""
        return Record(*map(self._value, spec.fields))

    def _value(self, field: PartitionField) -> Any:
        if isinstance(field.transform, VoidTransform):
            return None
        if isinstance(field.transform, UnknownTransform):
            raise _refused(f"the table is partitioned by {field.transform}, which nobody here knows")
        name, source = self.schema.find_column_name(field.source_id) or "", self.schema.find_field(field.source_id)
        facts = self.facts.get(field.source_id)
        if name in self.folders and source in self.schema.fields:
            return self._from_folder(field, source, facts)
        if facts is None:
            if source.initial_default is not None:
                raise _refused(f"the file has no column {name!r}, for which readers see a default")
            return None
        if facts.is_all_null:
            return None
        if facts.nulls is None:
            raise _refused(f"its footer does not say whether column {name!r} has nulls")
        if facts.nulls:
            raise _refused(f"column {name!r} has {facts.nulls} nulls beside values")
        if facts.lower is None:
            raise _refused(f"its footer has no bounds of column {name!r}")
        if isinstance(source.field_type, types.FloatType | types.DoubleType):
            raise _refused(f"column {name!r} may have NaN, of which its footer does not tell")
        results = self._results(field, facts)
        if len(results) > 1:
            raise _refused(f"column {name!r} has values of several partitions ({field.transform}): {results}")
        return results[0]

    def _from_folder(self, field: PartitionField, source: types.NestedField, facts: Statistics | None) -> Any:
        said = f"its path says {source.name}={self.folders[source.name]}"
        if not isinstance(source.field_type, _IN_FOLDERS):
            raise _refused(f"{said}, and there are several ways to write a {source.field_type}")
        if facts is None and not isinstance(field.transform, IdentityTransform):
            raise _refused(
                f"{said}, the file has no such column, and readers of a table that is partitioned by "
                f"{field.transform} of it would see null"
            )
        columns = pa.schema([schema_to_pyarrow(Schema(source)).field(0)])
        options = FormatOptions("parquet", timezone="UTC", partition_columns=(source.name,))
        try:
            value = path_columns(self.uri, columns, options)[source.name].as_py()
        except BadObject as error:
            raise _refused(f"{said}: {error.detail}") from error
        value = partition_record_value(field, value, self.schema)
        result = self._transformed(field, value)
        if facts is not None:
            has_value = facts.lower is not None or (facts.nulls is not None and not facts.is_all_null)
            if has_value if value is None else facts.nulls:
                raise _refused(f"{said}, and its footer that the column has {facts.nulls} nulls of {facts.values}")
            is_other = not field.transform.preserves_order and facts.lower != value
            if facts.lower is not None and (is_other or self._results(field, facts) != [result]):
                raise _refused(f"{said}, and its footer that values are from {facts.lower!r} to {facts.upper!r}")
        return result

    def _results(self, field: PartitionField, facts: Statistics) -> list[Any]:
        """Return the one partition of all values, or two.

        Equal bounds are the value, also where their writer cuts them: it cuts the upper one to something greater.
        Others enclose all values; so they prove something where the transform keeps their order.
        """
        first, last = self._transformed(field, facts.lower), self._transformed(field, facts.upper)
        if facts.lower == facts.upper or (first == last and field.transform.preserves_order):
            return [first]
        return [first, last]

    def _transformed(self, field: PartitionField, value: Any) -> Any:
        return field.transform.transform(self.schema.find_type(field.source_id))(value)


def _refused(problem: str) -> BadObject:
    return BadObject("wrong-partition", problem)


_MISREAD = re.compile(r"[?#\\\x00-\x1f\x7f]|\s$")
"""In names: some readers of tables take what is behind `?` and `#` for no part of it, and drop or change the others."""
_SCHEMES = frozenset({"file", "s3", "s3a", "s3n", "gs", "abfs", "abfss"})
_SPARK, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"
_DAYS_OF_1900, _MICROS_OF_1900 = -25_567, -25_567 * 86_400_000_000


def location_of(uri: str) -> str:
    """Return the URI as metadata has it.

    Raises BadObject("unsupported-key") where readers would look for another object.
    """
    scheme, separator, key = (f"file://{uri}" if uri.startswith("/") else uri).partition("://")
    location = f"{scheme.lower()}{separator}{key}"
    if scheme.lower() not in _SCHEMES:
        problem = f"has the scheme {scheme!r}"
    elif (misread := _MISREAD.search(location)) is not None:
        problem = f"contains {misread.group()!r}"
    elif "//" in key:
        problem = "has an empty segment ('//')"
    else:
        return location
    raise BadObject(
        "unsupported-key",
        f"{uri!r} {problem}, and some readers of Iceberg tables would look for another object, or none",
    )


def same_place(location: str) -> str:
    """Return the text by which a file is recognised in a table, however its URI is spelled."""
    scheme, separator, path = location.partition("://")
    if not separator:
        return f"file://{location}"
    scheme = scheme.lower()
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{path}"


class TableOfFiles:
    """A table, and what its files must be like."""

    def __init__(self, metadata: TableMetadata) -> None:
        self.metadata = metadata
        self.schema = metadata.schema()
        self.identity = metadata.table_uuid, metadata.default_spec_id

    @cached_property
    def plan(self) -> Mapping[int, Any]:
        return compute_statistics_plan(self.schema, self.metadata.properties)


class Candidate:
    """A file by its footer, with the columns that a table needs to have for it."""

    def __init__(self, uri: str, footer: Footer) -> None:
        self._location, self._uri, self._footer, self._folders = location_of(uri), uri, footer, path_values(uri)
        # old versions of Spark count dates before 1900 by a calendar that readers of tables do not know
        version = re.match(rb"\d+", footer.said.get(_SPARK, b"3"))
        is_old = _LEGACY in footer.said or (version is not None and int(version.group()) < 3)
        for field in leaves(footer.fields) if is_old else ():
            if not isinstance(field.field_type, types.DateType | types.TimestampType | types.TimestamptzType):
                continue
            facts: Statistics = footer.statistics[field.field_id]
            oldest = _DAYS_OF_1900 if isinstance(field.field_type, types.DateType) else _MICROS_OF_1900
            if not facts.is_all_null and (facts.lower is None or facts.lower < oldest):
                raise wrong(
                    f"column {field.name!r} may have dates before 1900 in the calendar of an old Spark, which readers "
                    "of Iceberg tables do not know"
                )

    def columns_needed(self, name: str, metadata: TableMetadata | None, partition_by: Sequence[Wanted]) -> Schema:
        """Return the columns of the file and of its folders, as wide as file and table need them.

        Raises BadObject("wrong-columns").
        """
        fields = wanted_fields(match(self._footer, metadata))
        have = {field.name for field in fields}
        schema = Schema() if metadata is None else metadata.schema()
        if metadata is None:
            only_in_folders: dict[str, types.IcebergType] = {
                field.column: _inferred(self._folders[field.column])
                for field in partition_by
                if field.transform == "identity" and field.column in self._folders
            }
        else:
            filled = folder_columns(metadata.spec(), schema, self._folders)
            only_in_folders = {f.name: f.field_type for f in schema.fields if f.field_id in filled}
        for number, (column, kind) in enumerate(only_in_folders.items(), 1):
            if column not in have:
                fields.append(types.NestedField(-number, column, kind, required=False))  # no number of the file's
        if not fields:
            raise wrong("none of its columns is one of the table")
        try:
            return united(name, schema, Schema(*fields))
        except OptionError as error:
            raise wrong(error.problem.partition(";")[0]) from error

    def as_data_file(self, table: TableOfFiles) -> DataFile:
        """Build the entry of the file for the table's manifest. Raises BadObject."""
        footer, spec = self._footer, table.metadata.spec()
        columns = match(footer, table.metadata)
        matched = {}
        for column in every(columns):
            if column.table is None:  # another writer has removed it again
                raise wrong(f"its column {column.file.name!r} is none of the table's")
            matched[column.table.field_id] = column
        filled = folder_columns(spec, table.schema, self._folders)
        check_required(table.schema.fields, columns, filled, footer)
        for field in table.schema.fields:
            if field.field_id not in matched.keys() | filled and field.name in self._folders:
                raise BadObject(
                    "wrong-partition",
                    f"its path says {field.name}={self._folders[field.name]}, and the file has no such column: readers "
                    "would see null, since the table is not partitioned by that column itself",
                )
        facts = {id: footer.statistics.get(column.file.field_id) for id, column in matched.items()}
        partition = PartitionOf(table.schema, facts, self._folders, self._uri).record(spec)
        statistics = {"record_count": footer.rows, "split_offsets": footer.starts}
        statistics |= _for_manifest(matched, footer, table.plan)
        return data_file(table.metadata, self._location, partition, footer.size, statistics)


def _for_manifest(columns: Mapping[int, Column], footer: Footer, plan: Mapping[int, Any]) -> dict[str, Any]:
    """Return the statistics that the table's properties ask for, by field id.

    The properties are `write.metadata.metrics.default` and those of single columns.
    """
    names = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    sizes, values, nulls, _, lowers, uppers = by_id = [dict[int, Any]() for _ in names]
    for id, column in columns.items():
        facts = footer.statistics.get(column.file.field_id)
        if facts is None:
            continue
        sizes[id], mode = facts.stored, plan[id].mode
        if mode.type == MetricModeTypes.NONE:
            continue
        values[id] = facts.values
        if facts.nulls is not None:
            nulls[id] = facts.nulls
        if mode.type != MetricModeTypes.COUNTS and facts.lower is not None:
            kind, lower, upper = plan[id].iceberg_type, facts.lower, facts.upper
            if mode.length is not None:
                lower = TruncateTransform(mode.length).transform(kind)(lower)
                if isinstance(kind, types.StringType):
                    upper = truncate_upper_bound_text_string(upper, mode.length)
                elif isinstance(kind, types.BinaryType):
                    upper = truncate_upper_bound_binary_string(upper, mode.length)
            lowers[id] = to_bytes(kind, lower)
            if upper is not None:
                uppers[id] = to_bytes(kind, upper)
    return dict(zip(names, by_id, strict=True))


def _inferred(text: str) -> types.PrimitiveType:
    """Infer the type of a new table's column that only folders have, as Spark does."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        try:
            date.fromisoformat(text)
        except ValueError:
            return types.StringType()
        return types.DateType()
    return (
        types.LongType() if re.fullmatch(r"[+-]?[0-9]{1,19}", text) and abs(int(text)) < 2**63 else types.StringType()
    )
