"""Values of Spark that reach Arrow as structs, and are no structs to a table: VARIANT, GEOGRAPHY, GEOMETRY."""

from __future__ import annotations

import pyarrow as pa

_MARKS = {b"variant": "VARIANT", b"geography": "GEOGRAPHY", b"geometry": "GEOMETRY"}
"""How Spark marks, on a field inside, structs that stand for values of these types."""


def special_type(struct: pa.StructType) -> str | None:
    """Return the name of the type whose values the struct stands for; None of a struct that is one."""
    return next((_MARKS[mark] for field in struct for mark in field.metadata or () if mark in _MARKS), None)
