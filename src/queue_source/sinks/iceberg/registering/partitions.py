"""The partition of an unread file, from the statistics in its footer and from the folders of its path.

All rows of a data file are of one partition. A file that may have several is refused: readers of one partition would
not see the rows of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from queue_source.errors import BadObject
from queue_source.formats.metadata import path_columns
from queue_source.options.content import FormatOptions
from queue_source.sinks.iceberg.registering.footers import Statistics

_IN_FOLDERS = (StringType, IntegerType, LongType, DateType, BooleanType, DecimalType)
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
        if isinstance(source.field_type, FloatType | DoubleType):
            raise _refused(f"column {name!r} may have NaN, of which its footer does not tell")
        results = self._results(field, facts)
        if len(results) > 1:
            raise _refused(f"column {name!r} has values of several partitions ({field.transform}): {results}")
        return results[0]

    def _from_folder(self, field: PartitionField, source: NestedField, facts: Statistics | None) -> Any:
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
