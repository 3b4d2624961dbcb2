"""Spark's `dateFormat`, `timestampFormat` and `timestampNTZFormat`: patterns of numbers, rewritten as ISO 8601.

Text in a pattern's form becomes ISO text by one regular expression, a whole column at a time or one value; what does
not have the form is bad.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.common.times import Pattern, parse_pattern
from queue_source.options.content import FormatOptions


def pattern_for(kind: pa.DataType, options: FormatOptions) -> Pattern | None:
    """Return the pattern of a date or timestamp type, None where the option is not set."""
    if pt.is_date(kind):
        text = options.date_format
    elif pt.is_timestamp(kind) and kind.tz is not None:
        text = options.timestamp_format
    elif pt.is_timestamp(kind):
        text = options.timestamp_ntz_format
    else:
        return None
    return None if text is None else parse_pattern(text)


def iso_rewriter(kind: pa.DataType, options: FormatOptions) -> Callable[[str], str]:
    """Return a function from a value in the option's form to ISO 8601. That function raises ValueError."""
    pattern = pattern_for(kind, options)
    if pattern is None:
        return lambda text: text
    expression = re.compile(pattern.expression)
    day_only = pt.is_date(kind)

    def rewrite(text: str) -> str:
        match = expression.match(text)
        if not match:
            raise ValueError(f"{text!r} does not have the form of the option")
        part = {name: value for name, group in pattern.groups.items() if (value := match[group])}
        iso = f"{part['year']}-{part.get('month', '01')}-{part.get('day', '01')}"
        if day_only:
            return iso
        clock = ":".join(part.get(name, "00") for name in ("hour", "minute", "second"))
        return f"{iso}T{clock}.{part.get('fraction', '0')}{part.get('zone', '')}"

    return rewrite


def rewrite_column(texts: pa.Array, pattern: Pattern, kind: pa.DataType) -> pa.Array:
    """Rewrite a column as `iso_rewriter` does.

    Raises ValueError where a value has another form, or needs that function.
    """
    if not pattern.simple:
        raise ValueError("an unusual form is read value by value")
    matching = pc.match_substring_regex(texts, pattern.expression)
    if pc.any(pc.invert(matching)).as_py():
        raise ValueError("a value does not have the form of the option")

    def group(name: str, width: int) -> pa.Array:
        part = pc.replace_substring_regex(texts, pattern.expression, rf"\{pattern.groups[name]}")
        return pc.utf8_lpad(part, width, "0")

    iso = pc.binary_join_element_wise(group("year", 4), group("month", 2), group("day", 2), "-")
    if pt.is_date(kind):
        return iso
    clock = [group(name, 2) if name in pattern.groups else pa.scalar("00") for name in ("hour", "minute", "second")]
    joined = pc.binary_join_element_wise(*clock, ":")
    text = pc.binary_join_element_wise(iso, joined, "T")
    if "fraction" in pattern.groups:
        text = pc.binary_join_element_wise(text, group("fraction", 1), ".")
    return pc.binary_join_element_wise(text, group("zone", 1), "") if "zone" in pattern.groups else text
