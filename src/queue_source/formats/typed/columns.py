"""From the columns of an object to the declared columns: matched by name, converted only where nothing is lost.

Arrays keep their buffers wherever the types allow it. A leaf converter decides what one kind of source may turn into:
`typed_leaf` for formats that have types (Parquet), `text_leaf` (`text/values.py`) for those that write text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.errors import BadObject
from queue_source.formats.typed.shredded import is_shredded, unshredded
from queue_source.formats.types import is_bytes, is_text, special_struct
from queue_source.formats.zones import instants
from queue_source.options.content import FormatOptions

LeafConverter = Callable[[pa.Array, pa.DataType], pa.Array]
"""Converts an array without children to exactly the type asked for; raises ValueError with the reason."""

_DETAIL_LIMIT = 500
_TEXTS = (1 << 31) - 1  # bytes of the texts of an array


def match_names(
    declared: Iterable[str], present: Iterable[str], options: FormatOptions | None = None
) -> dict[str, str]:
    """Match each declared name with a present one: the same, or else the only one that differs just in case.

    Declared names without a match are left out. Raises BadObject("wrong-columns") when two names match equally well, or
    one in another case that the `options` neither allow nor rescue.
    """
    counts: dict[str, int] = {}
    for name in present:
        counts[name] = counts.get(name, 0) + 1
    folded: dict[str, list[str]] = {}
    for name, count in counts.items():
        folded.setdefault(name.casefold(), []).extend([name] * count)
    matches: dict[str, str] = {}
    for name in declared:
        candidates = [name] * counts[name] if name in counts else folded.get(name.casefold(), [])
        if options is not None and options.reader_case_sensitive and name not in counts and candidates:
            if options.rescued_data_column is not None:
                continue
            raise BadObject(
                "wrong-columns", f"column {name!r} is there as {candidates[0]!r}, and readerCaseSensitive is true"
            )
        if len(candidates) > 1:
            raise BadObject("wrong-columns", f"column {name!r} is there more than once: {', '.join(candidates)}")
        if candidates:
            matches[name] = candidates[0]
    return matches


def require_any(declared: Iterable[str], matches: dict[str, str], present: Iterable[str]) -> None:
    """Raise BadObject("wrong-columns") when columns are declared and none of them is there."""
    names = list(declared)
    if names and not matches:
        raise BadObject(
            "wrong-columns", shorten(f"none of the declared columns {names} is there, but {sorted(set(present))}")
        )


def corrupt_column(name: str, reason: object) -> BadObject:
    return BadObject("corrupt-object", shorten(f"column {name!r}: {reason}"))


def shorten(text: str) -> str:
    """Shorten a text for the table of errors: messages of parsers may quote whole lines."""
    return text if len(text) <= _DETAIL_LIMIT else text[: _DETAIL_LIMIT - 3] + "..."


def check_decimals(table: pa.Table) -> None:
    """Raise pa.ArrowInvalid for decimals of more digits than their type has: pyarrow's parsers let some through."""
    for column in table.columns:
        if _has_decimals(column.type):
            column.validate(full=True)


def _has_decimals(kind: pa.DataType) -> bool:
    return bool(pt.is_decimal(kind)) or any(_has_decimals(kind.field(i).type) for i in range(kind.num_fields))


def conform_column(column: pa.ChunkedArray, target: pa.Field, leaf: LeafConverter) -> pa.ChunkedArray:
    """Convert the column to exactly the declared type. Raises BadObject("corrupt-object") naming column and reason."""
    if column.type.equals(target.type, check_metadata=True):
        return column
    try:
        return pa.chunked_array([conform(chunk, target.type, leaf) for chunk in column.chunks], target.type)
    except MemoryError:  # one of them is an ArrowException
        raise
    except (ValueError, TypeError, pa.ArrowException, OverflowError) as error:
        raise corrupt_column(target.name, error) from error


def conform(array: pa.Array, target: pa.DataType, leaf: LeafConverter) -> pa.Array:
    """Convert to exactly `target` (names and nullability of nested fields too). Raises ValueError with the reason."""
    kind = array.type
    if kind.equals(target, check_metadata=True):
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return conform(array.storage, target, leaf)
    if pt.is_dictionary(kind):
        if is_text(kind.value_type) and (pc.max(pc.binary_length(array.dictionary)).as_py() or 0) * len(array) > _TEXTS:
            raise MemoryError("more texts than an array of Arrow holds")
        return conform(array.dictionary_decode(), target, leaf)
    if pt.is_null(kind):
        return pa.nulls(len(array), target)
    if special_struct(target) == "VARIANT" and is_shredded(kind):
        return unshredded(array, target)
    if pt.is_struct(kind) and pt.is_struct(target):
        return _conform_struct(array, target, leaf)
    if pt.is_list(target) and (pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)):
        if not pt.is_list(kind):
            array = array.cast(pa.list_(kind.value_type))
        return over_children(array, target, [conform(array.values, target.value_type, leaf)])
    if pt.is_map(kind) and pt.is_map(target):
        entries = pa.StructArray.from_arrays(
            [conform(array.keys, target.key_type, leaf), conform(array.items, target.item_type, leaf)],
            fields=[target.key_field, target.item_field],
        )
        return over_children(array, target, [entries])
    if pt.is_nested(kind) or pt.is_nested(target):
        raise ValueError(f"{kind} does not become {target}")
    return leaf(array, target)


def typed_leaf(timezone: str) -> LeafConverter:
    """Make the converter for formats with types: widening, and narrowing that loses no value. Never from or to text.

    Timestamps without a zone are taken to be in `timezone` when the declared type is an instant.
    """

    def convert(array: pa.Array, target: pa.DataType) -> pa.Array:
        kind = array.type
        if pt.is_timestamp(target) and pt.is_timestamp(kind):
            if kind.tz is not None and target.tz is None:
                raise ValueError(f"{kind} is an instant and does not become {target}, which has no zone")
            if kind.tz is None and target.tz is not None:
                array = instants(array, timezone)
            return array.cast(target)
        if not _may_become(kind, target):
            raise ValueError(f"{kind} does not become {target}")
        return array.cast(target)

    return convert


def _may_become(kind: pa.DataType, target: pa.DataType) -> bool:
    if is_text(target) or is_bytes(target):
        texts = is_text(kind) or is_bytes(kind) or pt.is_string_view(kind) or pt.is_binary_view(kind)
        return texts or (is_bytes(target) and bool(pt.is_fixed_size_binary(kind)))
    if pt.is_integer(target):
        return bool(pt.is_integer(kind))
    if pt.is_floating(target):
        narrower = pt.is_floating(kind) and kind.bit_width <= target.bit_width
        return bool(pt.is_integer(kind) or narrower)
    if pt.is_decimal(target):
        return bool(pt.is_decimal(kind) or pt.is_integer(kind))
    if pt.is_date(target):
        return bool(pt.is_date(kind))
    if pt.is_timestamp(target):
        return bool(pt.is_date(kind)) and target.tz is None
    return bool(pt.is_boolean(kind) and pt.is_boolean(target))


def _conform_struct(array: pa.StructArray, target: pa.StructType, leaf: LeafConverter) -> pa.StructArray:
    fields = [target.field(i) for i in range(target.num_fields)]
    matches = match_names([f.name for f in fields], [array.type.field(i).name for i in range(array.type.num_fields)])
    values = array.flatten()  # under a null struct there may be any value; flattened, it is null too
    children = []
    for field in fields:
        if field.name in matches:
            position = array.type.get_field_index(matches[field.name])
            try:
                children.append(conform(values[position], field.type, leaf))
            except MemoryError:
                raise
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(f"field {field.name!r}: {error}") from error
        else:
            children.append(pa.nulls(len(array), field.type))
    if special_struct(target) == "VARIANT":
        for field, child in zip(fields, children, strict=True):
            if child.null_count > array.null_count:  # Spark would fail, each time, behind this reader
                raise ValueError(f"a VARIANT with null in its {field.name!r}")
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def over_children(array: pa.Array, target: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return the same lists (or maps) over converted values: validity and offsets keep their buffers."""
    return pa.Array.from_buffers(
        target, len(array), array.buffers()[:2], null_count=array.null_count, offset=array.offset, children=children
    )
