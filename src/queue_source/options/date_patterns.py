"""Spark's patterns of dates and timestamps (`dd.MM.yyyy`), read as regular expressions. No pyarrow.

Only patterns of numbers: names of months, weekdays and halves of a day are refused when the query starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_FIELDS = {
    "yyyy": ("year", "[0-9]{4}"), "uuuu": ("year", "[0-9]{4}"),
    "MM": ("month", "[0-9]{2}"), "M": ("month", "[0-9]{1,2}"),
    "dd": ("day", "[0-9]{2}"), "d": ("day", "[0-9]{1,2}"),
    "HH": ("hour", "[0-9]{2}"), "H": ("hour", "[0-9]{1,2}"),
    "mm": ("minute", "[0-9]{2}"), "m": ("minute", "[0-9]{1,2}"),
    "ss": ("second", "[0-9]{2}"), "s": ("second", "[0-9]{1,2}"),
    # as in Spark, which reads fewer digits than there are letters
    **{"S" * count: ("fraction", f"[0-9]{{1,{count}}}") for count in range(1, 10)},
    "XXX": ("zone", "(?:Z|[+-][0-9]{2}:[0-9]{2})"), "XX": ("zone", "(?:Z|[+-][0-9]{4})"),
    "X": ("zone", "(?:Z|[+-][0-9]{2}(?:[0-9]{2})?)"),
    "xxx": ("zone", "[+-][0-9]{2}:[0-9]{2}"), "xx": ("zone", "[+-][0-9]{4}"), "Z": ("zone", "[+-][0-9]{4}"),
}  # fmt: skip
_TOKEN = re.compile(
    r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<open>\[)|(?P<close>\])|(?P<other>[^A-Za-z'\[\]]+)"
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
def parse_pattern(text: str) -> Pattern:
    """What a pattern means. Raises ValueError with the next step."""
    expression: list[str] = []
    groups: dict[str, int] = {}
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise ValueError("has a quote that is not closed; write two quotes for one")
        place = token.end()
        expression.append(_regex(token, groups))
    if "year" not in groups:
        raise ValueError("has no year; write one, as in yyyy-MM-dd")
    joined = "".join(expression)
    try:
        re.compile(joined)
    except re.error as error:
        raise ValueError(f"is not a pattern: {error}; write one, as in yyyy-MM-dd") from None
    return Pattern(f"^{joined}$", groups, "(?:" not in expression and {"month", "day"} <= groups.keys())


def _regex(token: re.Match[str], groups: dict[str, int]) -> str:
    """The regular expression of one token; the group of a part of the moment is added to `groups`."""
    if token["quoted"] is not None:
        return re.escape(token["quoted"].replace("''", "'") or "'")
    if token["open"]:
        return "(?:"
    if token["close"]:
        return ")?"
    if token["other"]:
        return re.escape(token["other"])
    part, numbers = _FIELDS.get(token["letters"], ("", ""))
    if not part or part in groups:
        raise ValueError(
            f"has the letters {token['letters']!r}, which are not supported; write yyyy, M, MM, d, dd, H, HH, m, mm, "
            "s, ss, S (to nine), X, XX, XXX, xx, xxx and Z, each part once, and text in quotes; or read the column as "
            "STRING and parse it in the query"
        )
    groups[part] = len(groups) + 1
    return f"({numbers})"
