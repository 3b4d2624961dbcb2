"""From the footer of a Parquet file to a data file of a table, or to the reason why it cannot be one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DateType, NestedField, PrimitiveType, TimestampType, TimestamptzType

from queue_source.errors import BadObject, OptionError
from queue_source.formats.path_columns import path_values
from queue_source.options.columns import PartitionField
from queue_source.sinks.iceberg.columns import (
    Bound,
    bind,
    covers,
    file_fields,
    new_columns,
    stored_as_iceberg,
    wanted_fields,
    wrong,
)
from queue_source.sinks.iceberg.facts import Facts, as_bounds
from queue_source.sinks.iceberg.footers import Described
from queue_source.sinks.iceberg.known_partitions import folder_columns, inferred, record_of
from queue_source.sinks.iceberg.name_mapping import children_of
from queue_source.sinks.iceberg.schemas import united

_MISREAD = re.compile(r"[?#\\\x00-\x1f\x7f]|\s$")
"""In names: some readers of tables take what is behind `?` and `#` for no part of it, and drop or change the others."""
_SCHEMES = frozenset({"file", "s3", "s3a", "s3n", "gs", "abfs", "abfss"})
_SPARK = b"org.apache.spark.version"
_LEGACY = b"org.apache.spark.legacyDateTime"
_DAYS_OF_1900, _MICROS_OF_1900 = -25_567, -25_567 * 86_400_000_000


def location_of(uri: str) -> str:
    """The URI as metadata has it. Raises BadObject("unsupported-key") where readers would look for another object."""
    scheme, separator, key = (f"file://{uri}" if uri.startswith("/") else uri).partition("://")
    location = f"{scheme.lower()}{separator}{key}"
    if scheme.lower() not in _SCHEMES:
        raise _misread(uri, f"has the scheme {scheme!r}")
    if (found := _MISREAD.search(location)) is not None:
        raise _misread(uri, f"contains {found.group()!r}")
    if "//" in key:
        raise _misread(uri, "has an empty segment ('//')")
    return location


def _misread(uri: str, problem: str) -> BadObject:
    return BadObject(
        "unsupported-key",
        f"{uri!r} {problem}, and some readers of Iceberg tables would look for another object, or none",
    )


def same_place(location: str) -> str:
    """By which a file is known in a table, however its URI is spelled."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return f"file://{location}"
    scheme = scheme.lower()
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"


class Candidate:
    """A described file, with the columns that a table needs to have for it."""

    def __init__(self, uri: str, described: Described) -> None:
        self.uri = uri
        self.location = location_of(uri)
        self.described = described
        self.folders = path_values(uri)
        self._fields = file_fields(described, stored_as_iceberg)
        _check_calendar(described)

    def wanted(self, name: str, metadata: TableMetadata | None, partition_by: Sequence[PartitionField]) -> Schema:
        """The file's columns, as wide as the file and the table need them. Raises BadObject("wrong-columns")."""
        fields = wanted_fields(bind(self._fields, metadata))
        return take_up(name, metadata, fields, self.folders, partition_by)

    def as_data_file(self, table: TableOfFiles) -> DataFile:
        """What the table's manifest says of it. Raises BadObject."""
        described = self.described
        bound = bind(self._fields, table.metadata)
        if (new := next(new_columns(bound), None)) is not None:
            raise wrong(f"its column {new!r} is none of the table's")  # another writer has taken it away again
        filled = folder_columns(table.metadata.spec(), table.schema, self.folders)
        leaves: dict[int, tuple[NestedField, Facts]] = {}
        collect(bound, described, leaves)
        have = {one.field.field_id for one in bound if one.field is not None}
        check_required(table.schema.fields, bound, filled, {id: facts for id, (_, facts) in leaves.items()})
        for field in table.schema.fields:
            if field.field_id not in have | filled and field.name in self.folders:
                raise BadObject(
                    "wrong-partition",
                    f"its path says {field.name}={self.folders[field.name]}, and the file has no such column: readers "
                    "would see null, since the table is not partitioned by that column itself",
                )
        lacking = {field.field_id for field in _all(table.schema.fields)} - _ids(bound)
        facts = {id: known for id, (_, known) in leaves.items()}
        partition = record_of(table.metadata.spec(), table.schema, facts, self.folders, lacking)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.location,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=described.size,
            record_count=described.rows,
            split_offsets=described.starts,
            sort_order_id=None,
            spec_id=table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **table.statistics(leaves),
        )


def take_up(
    name: str,
    metadata: TableMetadata | None,
    fields: list[NestedField],
    folders: Mapping[str, str],
    partition_by: Sequence[PartitionField],
) -> Schema:
    """The columns together with those that only the path knows. Raises BadObject("wrong-columns")."""
    have = {field.name for field in fields}
    schema = Schema() if metadata is None else metadata.schema()
    if metadata is None:
        for wanted in partition_by:
            if wanted.transform == "identity" and wanted.column in folders and wanted.column not in have:
                fields.append(NestedField(_free(fields), wanted.column, inferred(folders[wanted.column])))
    else:
        filled = folder_columns(metadata.spec(), schema, folders)
        for field in schema.fields:
            if field.field_id in filled and field.name not in have:
                fields.append(NestedField(_free(fields), field.name, field.field_type))
    if not fields:
        raise wrong("none of its columns is one of the table")
    try:
        return united(name, schema, Schema(*fields))
    except OptionError as error:
        raise wrong(error.problem.partition(";")[0]) from error


def _free(fields: Sequence[NestedField]) -> int:
    """An id that none of the columns has."""
    return 1 + max((field.field_id for field in _all(fields)), default=0)


class TableOfFiles:
    """A table as its files have to be."""

    def __init__(self, metadata: TableMetadata) -> None:
        self.metadata = metadata
        self.schema = metadata.schema()
        self.identity = metadata.table_uuid, metadata.default_spec_id

    def takes(self, wanted: Schema) -> bool:
        """Whether it has all of the columns, as wide as they are."""
        return covers(self.schema.fields, wanted.fields)

    @cached_property
    def _plan(self) -> Mapping[int, Any]:
        return compute_statistics_plan(self.schema, self.metadata.properties)

    def statistics(self, leaves: Mapping[int, tuple[NestedField, Facts]]) -> dict[str, Any]:
        """As the table's properties ask for them (`write.metadata.metrics.default` ...), by field id."""
        found: dict[str, dict[int, Any]] = {
            "column_sizes": {},
            "value_counts": {},
            "null_value_counts": {},
            "nan_value_counts": {},
            "lower_bounds": {},
            "upper_bounds": {},
        }
        for id, (field, facts) in leaves.items():
            found["column_sizes"][id] = facts.stored
            mode = self._plan[id].mode
            if mode.type == MetricModeTypes.NONE:
                continue
            found["value_counts"][id] = facts.values
            if facts.nulls is not None:
                found["null_value_counts"][id] = facts.nulls
            if mode.type == MetricModeTypes.COUNTS:
                continue
            assert isinstance(field.field_type, PrimitiveType)
            lower, upper = as_bounds(facts, field.field_type, mode.length)
            if lower is not None:
                found["lower_bounds"][id] = lower
            if upper is not None:
                found["upper_bounds"][id] = upper
        return found


def collect(bound: Sequence[Bound], described: Described, found: dict[int, tuple[NestedField, Facts]]) -> None:
    for one in bound:
        if one.field is None:
            continue
        if one.file.type is None:
            collect(one.children, described, found)
        else:
            column = described.columns[one.file.leaf]
            found[one.field.field_id] = (one.field, Facts.of(column, one.file.type))


def _ids(bound: Sequence[Bound]) -> set[int]:
    return {id for one in bound if one.field is not None for id in (one.field.field_id, *_ids(one.children))}


def _all(fields: Sequence[NestedField]) -> list[NestedField]:
    return [part for field in fields for part in (field, *_all(children_of(field.field_type)))]


def check_required(
    table: Sequence[NestedField], bound: Sequence[Bound], filled: set[int], facts: Mapping[int, Facts]
) -> None:
    """Columns that must not be null are in the file, and it says that there is no null in them."""
    there = {one.field.field_id: one for one in bound if one.field is not None}
    for field in table:
        one = there.get(field.field_id)
        if one is None:
            if field.required and field.field_id not in filled:
                raise wrong(f"column {field.name!r} of the table must not be null, and the file has no such column")
            continue
        known = facts.get(field.field_id)
        if field.required and not one.file.required and (known is None or known.nulls != 0):
            raise wrong(f"column {field.name!r} of the table must not be null, and in the file it may be")
        check_required(children_of(field.field_type), one.children, set(), facts)


def _check_calendar(described: Described) -> None:
    """Old dates of old versions of Spark are counted by another calendar, which readers of tables do not know."""
    said = described.said
    version = re.match(rb"\d+", said.get(_SPARK, b"3"))
    if _LEGACY not in said and (version is None or int(version.group()) >= 3):
        return
    for number, field in enumerate(described.schema):
        if len(described.columns) != len(described.schema):
            number = -1  # nested columns: which one it is takes more than this
        kind = _date_or_time(str(field.type))
        if kind is None:
            continue
        known = None if number < 0 else Facts.of(described.columns[number], kind)
        first = None if known is None else known.lower
        oldest = _DAYS_OF_1900 if isinstance(kind, DateType) else _MICROS_OF_1900
        if not (known is not None and known.is_all_null) and (first is None or first < oldest):
            raise wrong(
                f"column {field.name!r} may have dates before 1900 in the calendar of an old Spark, which readers of "
                "Iceberg tables do not know"
            )


def _date_or_time(kind: str) -> PrimitiveType | None:
    if "timestamp[us, tz" in kind:
        return TimestamptzType()
    if "timestamp[" in kind:
        return TimestampType()
    return DateType() if "date32" in kind else None
