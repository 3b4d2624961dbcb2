"""A table's name mapping, with which readers find the columns of files without field ids."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType


def children_of(kind: IcebergType) -> tuple[NestedField, ...]:
    """Return the parts of a nested type, under their names in name mappings."""
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    if isinstance(kind, MapType):
        return kind.key_field, kind.value_field
    return ()


def completed(fields: Sequence[NestedField], mapped: NameMapping | None) -> list[MappedField]:
    """Return the mapping with all of the columns in it. Existing entries stay: files are read by them."""
    return _completed(fields, [] if mapped is None else list(mapped))


def _completed(fields: Sequence[NestedField], mapped: Sequence[MappedField]) -> list[MappedField]:
    taken = {name for entry in mapped for name in entry.names}
    live = {field.field_id: field for field in fields}
    result = []
    for entry in mapped:
        field = live.pop(entry.field_id, None) if entry.field_id is not None else None
        if field is None:
            result.append(entry)
            continue
        names = [*entry.names, *([] if field.name in taken else [field.name])]
        below = _completed(children_of(field.field_type), entry.fields)
        result.append(MappedField(field_id=entry.field_id, names=names, fields=below))  # type: ignore[call-arg]
    for field in live.values():
        names = [] if field.name in taken else [field.name]
        below = _completed(children_of(field.field_type), ())
        result.append(MappedField(field_id=field.field_id, names=names, fields=below))  # type: ignore[call-arg]
    return result
