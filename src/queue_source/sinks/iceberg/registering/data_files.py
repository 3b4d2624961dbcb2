"""Turns the footer of a Parquet file into a data file of a table, or into the reason why it cannot be one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any

from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    IcebergType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from queue_source.common.columns import PartitionField
from queue_source.errors import BadObject, OptionError
from queue_source.formats.metadata import path_values
from queue_source.sinks.iceberg.registering.columns import (
    Column,
    PartitionOf,
    check_required,
    covers,
    every,
    folder_columns,
    match,
    wanted_fields,
)
from queue_source.sinks.iceberg.registering.footers import Footer, Statistics, leaves, wrong
from queue_source.sinks.iceberg.schemas import united

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

    def takes(self, columns: Schema) -> bool:
        """Tell whether it has all of the columns, as wide as they are."""
        return covers(self.schema.fields, columns.fields)

    @cached_property
    def plan(self) -> Mapping[int, Any]:
        return compute_statistics_plan(self.schema, self.metadata.properties)


class Candidate:
    """A file by its footer, with the columns that a table needs to have for it."""

    def __init__(self, uri: str, footer: Footer) -> None:
        self._location, self._uri, self._footer, self._folders = location_of(uri), uri, footer, path_values(uri)
        _check_calendar(footer)

    def columns_needed(
        self, name: str, metadata: TableMetadata | None, partition_by: Sequence[PartitionField]
    ) -> Schema:
        """Return the columns of the file and of its folders, as wide as file and table need them.

        Raises BadObject("wrong-columns").
        """
        fields = wanted_fields(match(self._footer, metadata))
        have = {field.name for field in fields}
        schema = Schema() if metadata is None else metadata.schema()
        if metadata is None:
            only_in_folders: dict[str, IcebergType] = {
                field.column: _inferred(self._folders[field.column])
                for field in partition_by
                if field.transform == "identity" and field.column in self._folders
            }
        else:
            filled = folder_columns(metadata.spec(), schema, self._folders)
            only_in_folders = {f.name: f.field_type for f in schema.fields if f.field_id in filled}
        for number, (column, kind) in enumerate(only_in_folders.items(), 1):
            if column not in have:
                fields.append(NestedField(-number, column, kind, required=False))  # no number of the file's
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
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._location,
            file_format=FileFormat.PARQUET,
            partition=PartitionOf(table.schema, facts, self._folders, self._uri).record(spec),
            file_size_in_bytes=footer.size,
            record_count=footer.rows,
            split_offsets=footer.starts,
            sort_order_id=None,
            spec_id=table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **_for_manifest(matched, footer, table.plan),
        )


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
            kind = plan[id].iceberg_type
            lower, upper = facts.lower, _cut_upper(facts.upper, kind, mode.length)
            if mode.length is not None:
                lower = TruncateTransform(mode.length).transform(kind)(lower)
            lowers[id] = to_bytes(kind, lower)
            if upper is not None:
                uppers[id] = to_bytes(kind, upper)
    return dict(zip(names, by_id, strict=True))


def _cut_upper(upper: Any, kind: PrimitiveType, length: int | None) -> Any:
    if length is not None and isinstance(kind, StringType):
        return truncate_upper_bound_text_string(upper, length)
    if length is not None and isinstance(kind, BinaryType):
        return truncate_upper_bound_binary_string(upper, length)
    return upper


def _inferred(text: str) -> PrimitiveType:
    """Infer the type of a new table's column that only folders have, as Spark does."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        try:
            date.fromisoformat(text)
        except ValueError:
            return StringType()
        return DateType()
    return LongType() if re.fullmatch(r"[+-]?[0-9]{1,19}", text) and abs(int(text)) < 2**63 else StringType()


def _check_calendar(footer: Footer) -> None:
    """Refuse dates of old Spark versions before 1900, which count by a calendar that readers of tables do not know."""
    version = re.match(rb"\d+", footer.said.get(_SPARK, b"3"))
    if _LEGACY not in footer.said and (version is None or int(version.group()) >= 3):
        return
    for field in leaves(footer.fields):
        if not isinstance(field.field_type, DateType | TimestampType | TimestamptzType):
            continue
        facts: Statistics = footer.statistics[field.field_id]
        oldest = _DAYS_OF_1900 if isinstance(field.field_type, DateType) else _MICROS_OF_1900
        if not facts.is_all_null and (facts.lower is None or facts.lower < oldest):
            raise wrong(
                f"column {field.name!r} may have dates before 1900 in the calendar of an old Spark, which readers of "
                "Iceberg tables do not know"
            )
