"""One value of text at a time, as Spark's own readers take it: the slow way, and the reference of the quick one.

What pyarrow takes (`values.py`) is taken here too, with the same result; some of what Spark takes is only taken
here: `+5`, `2013-1-1`, a decimal with too many digits (rounded).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pt

from queue_source.formats.date_patterns import iso_rewriter
from queue_source.formats.types import is_bytes, is_text
from queue_source.formats.zones import instants
from queue_source.options.content import FormatOptions
from queue_source.options.times import fixed_offset, parse_time_zone

TextConverter = Callable[[str], object]
"""From text to what `pa.array` takes for the type; raises ValueError with the reason."""

_INTEGER = re.compile(r"[ \t]*[+-]?[0-9]+[ \t]*")
_FLOAT = re.compile(r"[ \t]*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*")
_SPECIAL_FLOAT = re.compile(r"[ \t]*[+-]?(?:inf|infinity|nan)[ \t]*", re.IGNORECASE)
_MOMENT = re.compile(
    r"\s*(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[ T](?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?)?"
    r"\s*(?P<zone>[A-Za-z+-][\w+:/-]*)?)?)?)?\s*",
    re.ASCII,
)
_DAY = re.compile(
    r"\s*(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T].*)?)?)?\s*", re.ASCII | re.DOTALL
)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,10})?")
_WIDE = Context(prec=80, rounding=ROUND_HALF_UP)


def text_converter(kind: pa.DataType, options: FormatOptions) -> TextConverter:
    """How text becomes a value of `kind`, for a format in which everything is text."""
    if pt.is_integer(kind):
        return _integer(kind.bit_width)
    if pt.is_floating(kind):
        return _floating(options)
    if pt.is_decimal(kind):
        return lambda text: to_decimal(text.strip(" \t"), kind)
    if pt.is_boolean(kind):
        return _boolean
    if is_text(kind):
        return str
    if is_bytes(kind):
        return str.encode
    return time_converter(kind, options) if pt.is_temporal(kind) else str


def time_converter(kind: pa.DataType, options: FormatOptions) -> TextConverter:
    """DATE as days, timestamps as microseconds since 1970."""
    rewrite = iso_rewriter(kind, options)
    if pt.is_date(kind):
        return lambda text: _days(rewrite(text))
    if kind.tz is None:
        return lambda text: _moment(rewrite(text), None)
    return lambda text: _moment(rewrite(text), options.zone)


def to_decimal(text: str, kind: pa.Decimal128Type) -> Decimal:
    """A decimal of exactly the type: rounded half up as Spark does, refused when it does not fit."""
    text = text.replace(",", "")  # thousands are set apart by them, as Spark takes it
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    try:
        number = Decimal(text)
        rounded = number.quantize(Decimal(1).scaleb(-kind.scale), context=_WIDE)
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is not a number that fits {kind}") from error
    if not rounded.is_finite() or (len(rounded.as_tuple().digits) > kind.precision and rounded != 0):
        raise ValueError(f"{text!r} does not fit {kind}")
    return rounded


def in_range(number: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"{number} does not fit {bits} bits")
    return number


def _integer(bits: int) -> TextConverter:
    def convert(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError(f"{text!r} is not a whole number")
        return in_range(int(text), bits)

    return convert


def _floating(options: FormatOptions) -> TextConverter:
    special = {
        options.nan_value: float("nan"),
        options.positive_inf: float("inf"),
        options.negative_inf: float("-inf"),
    }

    def convert(text: str) -> float:
        if text in special:
            return special[text]
        if not _FLOAT.fullmatch(text) and not _SPECIAL_FLOAT.fullmatch(text):
            raise ValueError(f"{text!r} is not a number")
        return float(text)

    return convert


def _boolean(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return word == "true"


def _days(text: str) -> int:
    found = _DAY.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a date")
    return (date(int(found["year"]), int(found["month"] or 1), int(found["day"] or 1)) - _FIRST_DAY).days


def _moment(text: str, local: str | None) -> int:
    """Microseconds since 1970. `local` is the zone of text without one; None refuses a zone (TIMESTAMP_NTZ)."""
    found = _MOMENT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    wall = datetime(
        int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0),
        int(fraction[:6].ljust(6, "0")) if fraction else 0,
    )  # fmt: skip
    if local is None:
        if zone:
            raise ValueError(f"{text!r} has a zone, which TIMESTAMP_NTZ has no place for")
        return (wall - _EPOCH) // _MICROSECOND
    if zone is None:
        return _in_zone(wall, local)
    if zone == "Z":
        return (wall - _EPOCH) // _MICROSECOND
    return (wall.replace(tzinfo=_zone(zone)) - _EPOCH_UTC) // _MICROSECOND


def _in_zone(wall: datetime, zone: str) -> int:
    """Arrow's own answer for times that a change of the clock skips or repeats: the quick way has the same."""
    microseconds = (wall - _EPOCH) // _MICROSECOND
    if zone == "UTC":
        return microseconds
    local = pa.scalar(microseconds, pa.timestamp("us"))
    return int(instants(local, zone).cast(pa.int64()).as_py())


def _zone(name: str) -> tzinfo:
    zone = parse_time_zone(name)
    offset = fixed_offset(zone)
    return ZoneInfo(zone) if offset is None else timezone(offset)
