"""The partition of an unread file, from the facts in its footer and from the folders of its path.

All rows of a data file are of one partition. A file that may have several is refused: readers of one partition would
not see the rows of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, UnknownTransform, VoidTransform
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
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from queue_source.errors import BadObject
from queue_source.sinks.iceberg.partitions import as_numbers, transformable
from queue_source.sinks.iceberg.registering.facts import Facts

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,38}(\.[0-9]{1,38})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EPOCH = date(1970, 1, 1)


def record_of(
    spec: PartitionSpec, schema: Schema, facts: Mapping[int, Facts], folders: Mapping[str, str], lacking: set[int]
) -> Record:
    """Return the partition's values. Raises BadObject("wrong-partition").

    Args:
        facts: By field id, those of the columns that the file has.
        folders: `name=value` in its path.
        lacking: Field ids of the columns that the file does not have.
    """
    return Record(*[_value(field, schema, facts, folders, lacking) for field in spec.fields])


def folder_columns(spec: PartitionSpec, schema: Schema, folders: Mapping[str, str]) -> set[int]:
    """Return the ids of the columns that readers fill from the partition's value where a file does not have them."""
    ids = {field.source_id for field in spec.fields if isinstance(field.transform, IdentityTransform)}
    return {field.field_id for field in schema.fields if field.field_id in ids and field.name in folders}


def inferred(text: str) -> PrimitiveType:
    """Infer the type of a new table's column that only folders have, as Spark does."""
    if _DATE.fullmatch(text) and _parsed(text, DateType()) is not None:
        return DateType()
    return LongType() if _WHOLE.fullmatch(text) and abs(int(text)) < 2**63 else StringType()


def _value(
    field: PartitionField, schema: Schema, facts: Mapping[int, Facts], folders: Mapping[str, str], lacking: set[int]
) -> Any:
    if isinstance(field.transform, VoidTransform):
        return None
    if isinstance(field.transform, UnknownTransform):
        raise _refused(f"the table is partitioned by {field.transform}, which nobody here knows")
    name = schema.find_column_name(field.source_id) or ""
    source = schema.find_field(field.source_id)
    kind = source.field_type
    assert isinstance(kind, PrimitiveType)
    by_folder = folders.get(name) if any(f.field_id == field.source_id for f in schema.fields) else None
    column_facts = facts.get(field.source_id)
    if column_facts is None and field.source_id not in lacking:
        raise _refused(f"nothing is known of the values of column {name!r}")
    if by_folder is not None:
        value = _from_folder(name, by_folder, kind)
        if column_facts is None and not isinstance(field.transform, IdentityTransform):
            raise _refused(
                f"its path says {name}={by_folder}, the file has no such column, and readers of a table that is "
                f"partitioned by {field.transform} of it would see null"
            )
        result = _transformed(field, source, value)
        if column_facts is not None:
            _check_agreement(field, source, name, by_folder, value, result, column_facts)
        return result
    if column_facts is None:
        if source.initial_default is not None:
            raise _refused(f"the file has no column {name!r}, for which readers see a default")
        return None
    return _from_facts(field, source, name, column_facts)


def _from_facts(field: PartitionField, source: NestedField, name: str, facts: Facts) -> Any:
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
    if _is_of_one_value(field):
        if facts.lower != facts.upper:
            raise _several(field, name, facts.lower, facts.upper)
        if not facts.exact:
            raise _refused(f"the bounds of column {name!r} are cut, and values may differ after their first bytes")
        return _transformed(field, source, facts.lower)
    # its bounds enclose all values, and the transform keeps their order: also where the bounds are cut
    first, last = _transformed(field, source, facts.lower), _transformed(field, source, facts.upper)
    if first != last:
        raise _several(field, name, first, last)
    return first


def _is_of_one_value(field: PartitionField) -> bool:
    return isinstance(field.transform, IdentityTransform | BucketTransform)


def _check_agreement(
    field: PartitionField, source: NestedField, name: str, text: str, value: Any, result: Any, facts: Facts
) -> None:
    """Check that the footer does not contradict the folder."""
    disagree = f"its path says {name}={text}, and its footer "
    if value is None:
        if facts.lower is not None or (facts.nulls is not None and not facts.is_all_null):
            raise _refused(f"{disagree}that column {name!r} has values")
        return
    if facts.nulls:
        raise _refused(f"{disagree}that column {name!r} has {facts.nulls} nulls")
    if facts.lower is None:
        return
    within = f"{disagree}that the values of column {name!r} are from {facts.lower!r} to {facts.upper!r}"
    if _is_of_one_value(field):
        if not facts.lower <= value <= facts.upper or (facts.exact and facts.lower != facts.upper):
            raise _refused(within)
    elif {_transformed(field, source, facts.lower), _transformed(field, source, facts.upper)} != {result}:
        raise _refused(within)


def _transformed(field: PartitionField, source: NestedField, value: Any) -> Any:
    """Transform a value with the functions that the copying sink uses for its rows."""
    if value is None:
        return None
    kind = source.field_type
    arrow = schema_to_pyarrow(Schema(source)).field(0).type
    if isinstance(kind, DateType | TimeType | TimestampType | TimestamptzType):
        array = pa.array([value], pa.int32() if isinstance(kind, DateType) else pa.int64()).cast(arrow)
    else:
        array = pa.array([value], arrow)
    return as_numbers(field.transform.pyarrow_transform(kind)(transformable(array)))[0].as_py()


def _from_folder(name: str, text: str, kind: PrimitiveType) -> Any:
    if text == NULL_FOLDER:
        return None
    if (value := _parsed(text, kind)) is None:
        raise _refused(f"its path says {name}={text}, which is no {kind}")
    return value


def _parsed(text: str, kind: PrimitiveType) -> Any:
    """Parse the value; None for an invalid text, and for times, which can be written in many ways."""
    if isinstance(kind, StringType):
        return text
    if isinstance(kind, IntegerType | LongType) and _WHOLE.fullmatch(text):
        value, limit = int(text), 2**31 if isinstance(kind, IntegerType) else 2**63
        return value if -limit <= value < limit else None
    if isinstance(kind, DateType) and _DATE.fullmatch(text):
        try:
            return (date.fromisoformat(text) - _EPOCH).days
        except ValueError:
            return None
    if isinstance(kind, BooleanType) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if isinstance(kind, DecimalType) and _DECIMAL.fullmatch(text):
        return _decimal(Decimal(text), kind)
    return None


def _decimal(value: Decimal, kind: DecimalType) -> Decimal | None:
    """Return the value with exactly the digits of the type; None where that changes the number."""
    sign, digits, exponent = value.as_tuple()
    missing = kind.scale + int(exponent)
    if missing < 0 and any(digits[missing:]):
        return None
    all_digits = (*digits, *(0,) * missing) if missing >= 0 else digits[:missing]
    whole = Decimal((sign, all_digits or (0,), -kind.scale))
    return whole if len(whole.as_tuple().digits) <= kind.precision else None


def _several(field: PartitionField, name: str, first: Any, last: Any) -> BadObject:
    return _refused(
        f"the values of column {name!r} are of several partitions: {field.transform} is {first!r} to {last!r}"
    )


def _refused(problem: str) -> BadObject:
    return BadObject("wrong-partition", problem)
