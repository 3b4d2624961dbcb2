"""Spark's `dateFormat`, `timestampFormat` and `timestampNTZFormat`: patterns of numbers, rewritten as ISO 8601.

Text in a pattern's form becomes ISO text by one regular expression, a whole column at a time or one value; what does
not have the form is bad. Names of months, weeks and half days are refused when the query starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.errors import OptionError

_FIELDS = {
    "yyyy": ("year", "[0-9]{4}"), "uuuu": ("year", "[0-9]{4}"),
    "MM": ("month", "[0-9]{2}"), "M": ("month", "[0-9]{1,2}"),
    "dd": ("day", "[0-9]{2}"), "d": ("day", "[0-9]{1,2}"),
    "HH": ("hour", "[0-9]{2}"), "H": ("hour", "[0-9]{1,2}"),
    "mm": ("minute", "[0-9]{2}"), "m": ("minute", "[0-9]{1,2}"),
    "ss": ("second", "[0-9]{2}"), "s": ("second", "[0-9]{1,2}"),
    "XXX": ("zone", "(?:Z|[+-][0-9]{2}:[0-9]{2})"), "XX": ("zone", "(?:Z|[+-][0-9]{4})"),
    "X": ("zone", "(?:Z|[+-][0-9]{2}(?:[0-9]{2})?)"),
    "xxx": ("zone", "[+-][0-9]{2}:[0-9]{2}"), "xx": ("zone", "[+-][0-9]{4}"), "Z": ("zone", "[+-][0-9]{4}"),
}  # fmt: skip
_TOKEN = re.compile(
    r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|(?P<open>\[)|(?P<close>\])|(?P<other>[^A-Za-z'\[\]]+)"
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as a regular expression, and which of its groups is which part of a moment.

    `simple`: no part is optional, and the day is whole.
    """

    expression: str
    groups: dict[str, int]
    simple: bool


@lru_cache(maxsize=64)
def parse_pattern(option: str, text: str) -> Pattern:
    """What a pattern means. Driver and executors; raises OptionError naming the option."""
    expression: list[str] = []
    groups: dict[str, int] = {}
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise OptionError(option, "has a quote that nothing closes; write two for one")
        place = token.end()
        letters = token["letters"]
        if token["quoted"] is not None:
            expression.append(re.escape(token["quoted"] or "'"))
        elif token["open"]:
            expression.append("(?:")
        elif token["close"]:
            expression.append(")?")
        elif letters:
            part, numbers = (
                ("fraction", f"[0-9]{{{len(letters)}}}") if letters[0] == "S" else _FIELDS.get(letters, ("", ""))
            )
            if not part or part in groups or len(letters) > 9:
                raise OptionError(
                    option,
                    f"the letters {letters!r} are not supported; write yyyy, M, MM, d, dd, H, HH, m, mm, s, ss, S (to "
                    "nine), X, XX, XXX, xx, xxx and Z, each part once, and text in quotes; read the column as "
                    "STRING and parse it in the query",
                )
            groups[part] = len(groups) + 1
            expression.append(f"({numbers})")
        else:
            expression.append(re.escape(token["other"]))
    if "year" not in groups:
        raise OptionError(option, "has no year; write one, as in yyyy-MM-dd")
    joined = "".join(expression)
    try:
        re.compile(joined)
    except re.error as error:
        raise OptionError(option, f"is no pattern: {error}; write one, as in yyyy-MM-dd") from None
    return Pattern(f"^{joined}$", groups, "(?:" not in expression and {"month", "day"} <= groups.keys())


def pattern_for(kind: pa.DataType, options: Any) -> Pattern | None:
    """The pattern of a date or timestamp type, None where the option is not set."""
    if pt.is_date(kind):
        option, text = "dateFormat", options.date_format
    elif pt.is_timestamp(kind) and kind.tz is not None:
        option, text = "timestampFormat", options.timestamp_format
    elif pt.is_timestamp(kind):
        option, text = "timestampNTZFormat", options.timestamp_ntz_format
    else:
        return None
    return None if text is None else parse_pattern(option, text)


def iso_rewriter(kind: pa.DataType, options: Any) -> Callable[[str], str]:
    """From a value in the option's form to ISO 8601. What it returns raises ValueError."""
    pattern = pattern_for(kind, options)
    if pattern is None:
        return lambda text: text
    expression = re.compile(pattern.expression)
    day_only = pt.is_date(kind)

    def rewrite(text: str) -> str:
        found = expression.match(text)
        if not found:
            raise ValueError(f"{text!r} does not have the form of the option")
        part = {name: value for name, group in pattern.groups.items() if (value := found[group])}
        iso = f"{part['year']}-{part.get('month', '01')}-{part.get('day', '01')}"
        if day_only:
            return iso
        clock = ":".join(part.get(name, "00") for name in ("hour", "minute", "second"))
        return f"{iso}T{clock}.{part.get('fraction', '0')}{part.get('zone', '')}"

    return rewrite


def rewrite_column(texts: pa.Array, pattern: Pattern, kind: pa.DataType) -> pa.Array:
    """`iso_rewriter` for a column. Raises ValueError when a value does not have the form, or is better done singly."""
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
