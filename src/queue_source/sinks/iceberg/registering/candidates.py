"""Turns the footer of a Parquet file into a data file of a table, or into the reason why it cannot be one."""

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
from queue_source.sinks.iceberg.name_mapping import children_of
from queue_source.sinks.iceberg.registering.columns import (
    Bound,
    bind,
    covers,
    file_fields,
    new_columns,
    stored_as_iceberg,
    wanted_fields,
    wrong,
)
from queue_source.sinks.iceberg.registering.facts import Facts, as_bounds
from queue_source.sinks.iceberg.registering.footers import Described
from queue_source.sinks.iceberg.registering.known_partitions import folder_columns, inferred, record_of
from queue_source.sinks.iceberg.schemas import united

_MISREAD = re.compile(r"[?#\\\x00-\x1f\x7f]|\s$")
"""In names: some readers of tables take what is behind `?` and `#` for no part of it, and drop or change the others."""
_SCHEMES = frozenset({"file", "s3", "s3a", "s3n", "gs", "abfs", "abfss"})
_SPARK = b"org.apache.spark.version"
_LEGACY = b"org.apache.spark.legacyDateTime"
_DAYS_OF_1900, _MICROS_OF_1900 = -25_567, -25_567 * 86_400_000_000


def location_of(uri: str) -> str:
    """Return the URI as metadata has it.

    Raises BadObject("unsupported-key") where readers would look for another object.
    """
    scheme, separator, key = (f"file://{uri}" if uri.startswith("/") else uri).partition("://")
    location = f"{scheme.lower()}{separator}{key}"
    if scheme.lower() not in _SCHEMES:
        raise _misread(uri, f"has the scheme {scheme!r}")
    if (misread := _MISREAD.search(location)) is not None:
        raise _misread(uri, f"contains {misread.group()!r}")
    if "//" in key:
        raise _misread(uri, "has an empty segment ('//')")
    return location


def _misread(uri: str, problem: str) -> BadObject:
    return BadObject(
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


class Candidate:
    """A described file, with the columns that a table needs to have for it."""

    def __init__(self, uri: str, described: Described) -> None:
        self.uri = uri
        self.location = location_of(uri)
        self.described = described
        self.folders = path_values(uri)
        self._fields = file_fields(described, stored_as_iceberg)
        _check_calendar(described)

    def columns_needed(
        self, name: str, metadata: TableMetadata | None, partition_by: Sequence[PartitionField]
    ) -> Schema:
        """Return the file's columns, as wide as the file and the table need them. Raises BadObject("wrong-columns")."""
        fields = wanted_fields(bind(self._fields, metadata))
        return take_up(name, metadata, fields, self.folders, partition_by)

    def as_data_file(self, table: TableOfFiles) -> DataFile:
        """Build the entry of the file for the table's manifest. Raises BadObject."""
        described = self.described
        bound = bind(self._fields, table.metadata)
        if (new := next(new_columns(bound), None)) is not None:
            raise wrong(f"its column {new!r} is none of the table's")  # another writer has removed it again
        filled = folder_columns(table.metadata.spec(), table.schema, self.folders)
        leaves: dict[int, tuple[NestedField, Facts]] = {}
        collect(bound, described, leaves)
        have = {column.field.field_id for column in bound if column.field is not None}
        check_required(table.schema.fields, bound, filled, {id: facts for id, (_, facts) in leaves.items()})
        for field in table.schema.fields:
            if field.field_id not in have | filled and field.name in self.folders:
                raise BadObject(
                    "wrong-partition",
                    f"its path says {field.name}={self.folders[field.name]}, and the file has no such column: readers "
                    "would see null, since the table is not partitioned by that column itself",
                )
        lacking = {field.field_id for field in _all(table.schema.fields)} - _ids(bound)
        facts = {id: leaf_facts for id, (_, leaf_facts) in leaves.items()}
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
    """Add the columns that only the path has. Raises BadObject("wrong-columns")."""
    have = {field.name for field in fields}
    schema = Schema() if metadata is None else metadata.schema()
    if metadata is None:
        for partition_field in partition_by:
            if (
                partition_field.transform == "identity"
                and partition_field.column in folders
                and partition_field.column not in have
            ):
                fields.append(
                    NestedField(_free(fields), partition_field.column, inferred(folders[partition_field.column]))
                )
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
    """Return an id that none of the columns has."""
    return 1 + max((field.field_id for field in _all(fields)), default=0)


class TableOfFiles:
    """A table, and what its files must be like."""

    def __init__(self, metadata: TableMetadata) -> None:
        self.metadata = metadata
        self.schema = metadata.schema()
        self.identity = metadata.table_uuid, metadata.default_spec_id

    def takes(self, columns: Schema) -> bool:
        """Tell whether it has all of the columns, as wide as they are."""
        return covers(self.schema.fields, columns.fields)

    @cached_property
    def _plan(self) -> Mapping[int, Any]:
        return compute_statistics_plan(self.schema, self.metadata.properties)

    def statistics(self, leaves: Mapping[int, tuple[NestedField, Facts]]) -> dict[str, Any]:
        """Return the statistics that the table's properties ask for, by field id.

        The properties are `write.metadata.metrics.default` and those of single columns.
        """
        statistics: dict[str, dict[int, Any]] = {
            "column_sizes": {},
            "value_counts": {},
            "null_value_counts": {},
            "nan_value_counts": {},
            "lower_bounds": {},
            "upper_bounds": {},
        }
        for id, (field, facts) in leaves.items():
            statistics["column_sizes"][id] = facts.stored
            mode = self._plan[id].mode
            if mode.type == MetricModeTypes.NONE:
                continue
            statistics["value_counts"][id] = facts.values
            if facts.nulls is not None:
                statistics["null_value_counts"][id] = facts.nulls
            if mode.type == MetricModeTypes.COUNTS:
                continue
            assert isinstance(field.field_type, PrimitiveType)
            lower, upper = as_bounds(facts, field.field_type, mode.length)
            if lower is not None:
                statistics["lower_bounds"][id] = lower
            if upper is not None:
                statistics["upper_bounds"][id] = upper
        return statistics


def collect(bound: Sequence[Bound], described: Described, leaves: dict[int, tuple[NestedField, Facts]]) -> None:
    for column_of_file in bound:
        if column_of_file.field is None:
            continue
        if column_of_file.file.type is None:
            collect(column_of_file.children, described, leaves)
        else:
            column = described.columns[column_of_file.file.leaf]
            leaves[column_of_file.field.field_id] = (column_of_file.field, Facts.of(column, column_of_file.file.type))


def _ids(bound: Sequence[Bound]) -> set[int]:
    return {
        id for column in bound if column.field is not None for id in (column.field.field_id, *_ids(column.children))
    }


def _all(fields: Sequence[NestedField]) -> list[NestedField]:
    return [part for field in fields for part in (field, *_all(children_of(field.field_type)))]


def check_required(
    table: Sequence[NestedField], bound: Sequence[Bound], filled: set[int], facts: Mapping[int, Facts]
) -> None:
    """Check that columns that must not be null are in the file, and that the footer reports no nulls in them."""
    bound_columns = {column.field.field_id: column for column in bound if column.field is not None}
    for field in table:
        column = bound_columns.get(field.field_id)
        if column is None:
            if field.required and field.field_id not in filled:
                raise wrong(f"column {field.name!r} of the table must not be null, and the file has no such column")
            continue
        column_facts = facts.get(field.field_id)
        if field.required and not column.file.required and (column_facts is None or column_facts.nulls != 0):
            raise wrong(f"column {field.name!r} of the table must not be null, and in the file it may be")
        check_required(children_of(field.field_type), column.children, set(), facts)


def _check_calendar(described: Described) -> None:
    """Refuse dates of old Spark versions before 1900, which count by a calendar that readers of tables do not know."""
    said = described.said
    version = re.match(rb"\d+", said.get(_SPARK, b"3"))
    if _LEGACY not in said and (version is None or int(version.group()) >= 3):
        return
    for number, field in enumerate(described.schema):
        if len(described.columns) != len(described.schema):
            number = -1  # a nested column: finding its number takes more than this
        kind = _date_or_time(str(field.type))
        if kind is None:
            continue
        column_facts = None if number < 0 else Facts.of(described.columns[number], kind)
        first = None if column_facts is None else column_facts.lower
        oldest = _DAYS_OF_1900 if isinstance(kind, DateType) else _MICROS_OF_1900
        if not (column_facts is not None and column_facts.is_all_null) and (first is None or first < oldest):
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
