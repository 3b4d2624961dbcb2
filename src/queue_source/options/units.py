"""Durations and sizes as users write them: `90s`, `5m`, `15 days`; `128m`, `1g`."""

from __future__ import annotations

import re
from datetime import timedelta

from queue_source.options.secrets import shown

_DURATION_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "days": timedelta(days=1),
    "weeks": timedelta(weeks=1),
}
_DURATION_WORDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "days"),
    **dict.fromkeys(("w", "week", "weeks"), "weeks"),
}
_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# ASCII only: `\d` would let other scripts' digits through.
_DURATION = re.compile(r"([0-9]+)\s*([a-z]+)")
_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])(?:i?b)?|(b))?")
_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def parse_duration(text: str) -> timedelta:
    """A duration of one whole number and one unit. A bare number is refused: nobody can tell seconds from minutes.

    Raises ValueError with the next step in its message.
    """
    clean = text.strip().lower()
    if _DIGITS.fullmatch(clean):
        raise ValueError(f"{shown(text)} has no unit; write {clean}s for seconds, {clean}m for minutes or {clean}ms")
    match = _DURATION.fullmatch(clean)
    word = _DURATION_WORDS.get(match.group(2)) if match else None
    if match is None or word is None:
        raise ValueError(
            f"{shown(text)} is not a duration; write a whole number and a unit, as in 500ms, 90s, 5m, 2h or 15 days"
        )
    try:
        return int(match.group(1)) * _DURATION_UNITS[word]
    except (OverflowError, ValueError):  # ValueError: Python refuses to read thousands of digits
        raise ValueError(f"{shown(text)} is too long a duration; write less than a million days") from None


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads as this duration (to the millisecond)."""
    for word in ("days", "h", "m", "s"):
        count, rest = divmod(duration, _DURATION_UNITS[word])
        if count and not rest:
            return {"1 days": "1 day"}.get(f"{count} days", f"{count} days") if word == "days" else f"{count}{word}"
    milliseconds = duration // _DURATION_UNITS["ms"]
    return f"{milliseconds}ms" if milliseconds else "0s"


def parse_size(text: str) -> int:
    """A number of bytes: `128m`, `1g`, `10kb`, or plain bytes, as Spark has it. Units are powers of 1,024.

    Raises ValueError with the next step in its message.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or len(match.group(1)) > 18:
        raise ValueError(
            f"{shown(text)} is not a size; write a whole number of bytes or with a unit, as in 10kb, 128m or 1g"
        )
    return int(match.group(1)) * _SIZE_UNITS[match.group(2) or ""]
