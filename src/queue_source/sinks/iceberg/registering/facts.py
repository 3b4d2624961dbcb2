"""The facts that a file's footer has about one column, over all its row groups, as values of Iceberg."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import to_bytes
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    PrimitiveType,
    StringType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from queue_source.sinks.iceberg.registering.footers import Chunk, Column

SURE_BYTES = 64
"""Writers that cut bounds, and do not say so, cut them at no fewer bytes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Counts and bounds of a column of values; None where the footer has none.

    `lower` and `upper` are both known or both None; dates and times are numbers, as Iceberg counts them. `exact`:
    whether both are values of the column, and not shortened by the writer.
    """

    stored: int
    values: int
    nulls: int | None
    lower: Any
    upper: Any
    exact: bool

    @classmethod
    def of(cls, column: Column, kind: PrimitiveType) -> Facts:
        chunks = column.chunks
        nulls = None if any(c.nulls is None for c in chunks) else sum(c.nulls or 0 for c in chunks)
        lower, upper, exact = _bounds(chunks, kind, column.physical)
        return cls(sum(c.stored for c in chunks), sum(c.values for c in chunks), nulls, lower, upper, exact)

    @property
    def is_all_null(self) -> bool:
        return self.nulls == self.values


def _bounds(chunks: Sequence[Chunk], kind: PrimitiveType, physical: str) -> tuple[Any, Any, bool]:
    """Combine the bounds of all row groups with values; unknown where one of them has none."""
    lowers, uppers, exact = [], [], True
    for chunk in chunks:
        if chunk.nulls == chunk.values:
            continue
        if chunk.bounds is None:
            return None, None, False
        lower, upper = (_value(raw, kind, physical) for raw in (chunk.bounds.lower, chunk.bounds.upper))
        if lower is None or upper is None or lower > upper:
            return None, None, False
        lowers.append(lower)
        uppers.append(upper)
        longest = max(len(chunk.bounds.lower), len(chunk.bounds.upper))
        said = chunk.bounds.exact
        exact &= (longest < SURE_BYTES or physical != "BYTE_ARRAY") if said is None else said
    if not lowers:
        return None, None, False
    lower, upper = min(lowers), max(uppers)
    if isinstance(kind, FloatType | DoubleType):  # the sign of zero is undefined in bounds
        lower, upper = (-0.0 if lower == 0 else lower), (0.0 if upper == 0 else upper)
    return lower, upper, exact


def _value(raw: bytes, kind: PrimitiveType, physical: str) -> Any:
    """Decode a bound; None for an invalid one: NaN, a text that was cut within a character, too few bytes."""
    if isinstance(kind, DecimalType):
        little = physical in ("INT32", "INT64")
        unscaled = int.from_bytes(raw, "little" if little else "big", signed=True)
        return unscaled_to_decimal(unscaled, kind.scale) if raw and abs(unscaled) < 10**kind.precision else None
    if physical in ("INT32", "INT64"):
        return int.from_bytes(raw, "little", signed=True) if len(raw) == (4 if physical == "INT32" else 8) else None
    if isinstance(kind, BooleanType):
        return raw != b"\0" if len(raw) == 1 else None
    if isinstance(kind, FloatType | DoubleType):
        form = "<f" if physical == "FLOAT" else "<d"
        value = struct.unpack(form, raw)[0] if len(raw) == struct.calcsize(form) else math.nan
        return None if math.isnan(value) else value
    if isinstance(kind, StringType):
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return None
    return raw


def as_bounds(facts: Facts, kind: PrimitiveType, length: int | None) -> tuple[bytes | None, bytes | None]:
    """Encode the bounds for a manifest, for a column of the table's type; texts and bytes are cut to `length`."""
    if facts.lower is None:
        return None, None
    lower, upper = facts.lower, facts.upper
    if length is not None and isinstance(kind, StringType):
        lower, upper = lower[:length], truncate_upper_bound_text_string(upper, length)
    elif length is not None and isinstance(kind, BinaryType):
        lower, upper = lower[:length], truncate_upper_bound_binary_string(upper, length)
    return to_bytes(kind, lower), None if upper is None else to_bytes(kind, upper)
