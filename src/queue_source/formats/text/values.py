"""Values that arrive as text: the types they may have, and how they become values of the declared types.

There are two ways to each type. One converts a value at a time as Spark's own readers take it, and is the reference.
The other converts a column at a time, where pyarrow has the same result. Some of what Spark takes is taken by the first
alone: `+5`, `2013-1-1`, a decimal with too many digits (rounded).

Timestamps are ISO 8601 (`T` or a space, seconds and fraction optional, a zone or none), as Spark reads them by
default. Digits beyond microseconds are cut off, as Spark does. Text without a zone is in the zone of the options. Text
in the form of `dateFormat`, `timestampFormat` or `timestampNTZFormat` is rewritten as ISO 8601 by one regular
expression, a whole column at a time or one value; what does not have the form is bad.
"""

from __future__ import annotations

import binascii
import json.encoder
import re
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.common.times import Pattern, clock_of, parse_pattern, parse_time_zone
from queue_source.formats.types import LARGEST_DECIMAL, LeafConverter, instants, is_bytes, is_text
from queue_source.options.content import FormatOptions

_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def quote_json(text: str) -> str:
    """Write a text as JSON; half of a surrogate pair, which is no character, stays escaped.

    Many times faster than `json.dumps`, which makes an encoder each time.
    """
    quoted: str = json.encoder.encode_basestring(text)
    return quoted if _HALF_A_PAIR.search(quoted) is None else json.encoder.encode_basestring_ascii(text)


TextConverter = Callable[[str], object]
"""From text to what `pa.array` takes for the type; raises ValueError with the reason."""

_INTEGER = re.compile(r"[ \t]*[+-]?[0-9]+[ \t]*")
_FLOAT = re.compile(r"[ \t]*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*")
_SPECIAL_FLOAT = re.compile(r"[ \t]*[+-]?(?:inf|infinity|nan)[ \t]*", re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,10})?")
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
_LIKE_YEAR_0 = 400
"""A year with the days of the year 0, which Python has no dates of."""
_EPOCH_LIKE_YEAR_0 = datetime(1970 + _LIKE_YEAR_0, 1, 1)
_FIRST_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_WIDE = Context(prec=80, rounding=ROUND_HALF_UP)
_ROOM = 1.5
"""How many times the largest number of 38 digits may be, at most, to be within 128 bits."""

_ZONE = r"[T ].*(?:Z|[+-]\d{2}(?::?\d{2})?)$"
_BEYOND_18_HOURS = r"[T ].*[+-](?:1[89]|2[0-9])(?::?[0-9]{2})?$"  # which pyarrow takes, and Spark does not
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"

_INFERRED_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,37})")
_INFERRED_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFERRED_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_INFERRED_TIMESTAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?)?"  # days beside times, too
)
_TIMESTAMP = pa.timestamp("us", tz="UTC")


def make_text_converter(kind: pa.DataType, options: FormatOptions) -> TextConverter:
    """Return what converts a text to a value of `kind`, for a format in which everything is text."""
    if pt.is_integer(kind):

        def convert_integer(text: str) -> int:
            if not _INTEGER.fullmatch(text):
                raise ValueError(f"{text!r} is not a whole number")
            return check_range(int(text), kind.bit_width)

        return convert_integer
    if pt.is_floating(kind):
        special = {
            options.nan_value: float("nan"),
            options.positive_inf: float("inf"),
            options.negative_inf: float("-inf"),
        }

        def convert_float(text: str) -> float:
            if text in special:
                return special[text]
            if not _FLOAT.fullmatch(text) and not _SPECIAL_FLOAT.fullmatch(text):
                raise ValueError(f"{text!r} is not a number")
            return parse_float(text, kind)

        return convert_float
    if pt.is_decimal(kind):
        return lambda text: parse_decimal(text.strip(" \t"), kind)
    if pt.is_boolean(kind):

        def convert_boolean(text: str) -> bool:
            if (word := text.lower()) not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return word == "true"

        return convert_boolean
    if is_text(kind):
        return str
    if is_bytes(kind):
        return str.encode
    return make_time_converter(kind, options) if pt.is_temporal(kind) else str


def make_time_converter(kind: pa.DataType, options: FormatOptions) -> TextConverter:
    """Return what converts a text to the days (DATE) or microseconds (timestamps) since 1970."""
    rewrite = iso_rewriter(kind, options)
    if pt.is_date(kind):

        def parse_days(text: str) -> int:
            parts = _DAY.fullmatch(text := rewrite(text))
            if not parts:
                raise ValueError(f"{text!r} is not a date")
            year, month, day = int(parts["year"]), int(parts["month"] or 1), int(parts["day"] or 1)
            since = _FIRST_DAY if year else _EPOCH_LIKE_YEAR_0.date()
            return (date(year or _LIKE_YEAR_0, month, day) - since).days

        return parse_days
    if kind.tz is None:
        return lambda text: _parse_moment(rewrite(text), None)
    return lambda text: _parse_moment(rewrite(text), options.zone)


def parse_float(text: str, kind: pa.DataType) -> float:
    """Return the number of the type that is next to a text: one of 32 bits is not always next to that of 64."""
    if pt.is_float32(kind):
        with suppress(pa.ArrowInvalid):  # for what Python takes beyond it
            return float(pa.scalar(text.strip(" \t").removeprefix("+")).cast(kind).as_py())
    return float(text)


def parse_decimal(text: str, kind: pa.Decimal128Type) -> Decimal:
    """Parse a decimal of exactly the type: rounded half up as Spark does, refused when it does not fit."""
    text = text.replace(",", "")  # thousands are set apart by them, as Spark takes it
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    try:
        number = Decimal(text)
        rounded = number.quantize(Decimal(1).scaleb(-kind.scale), context=_WIDE)
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is not a number that fits {kind}") from error
    if not rounded.is_finite() or (len(rounded.as_tuple().digits) > kind.precision and rounded != 0):
        raise ValueError(f"{text!r} does not fit {kind}")
    return rounded


def check_range(number: int, bits: int) -> int:
    """Return the number. Raises ValueError where it takes more bits."""
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"{number} does not fit {bits} bits")
    return number


def _parse_moment(text: str, local: str | None) -> int:
    """Parse microseconds since 1970. `local` is the zone of text without one; None (TIMESTAMP_NTZ) refuses zones."""
    parts = _MOMENT.fullmatch(text)
    if not parts:
        raise ValueError(f"{text!r} is not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = parts.groups()
    wall = datetime(
        int(year) or _LIKE_YEAR_0, int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0),
        int(fraction[:6].ljust(6, "0")) if fraction else 0,
    )  # fmt: skip
    since = _EPOCH if int(year) else _EPOCH_LIKE_YEAR_0
    if local is None:
        if zone:
            raise ValueError(f"{text!r} has a zone, which TIMESTAMP_NTZ has no place for")
        return (wall - since) // _MICROSECOND
    if zone == "Z" or (zone is None and local == "UTC"):
        return (wall - since) // _MICROSECOND
    clock = clock_of(local if zone is None else parse_time_zone(zone))
    return (wall.replace(tzinfo=clock) - since.replace(tzinfo=timezone.utc)) // _MICROSECOND


def text_leaf(options: FormatOptions) -> LeafConverter:
    """Return what converts columns of text formats: strings to any type, other values to a wider type only."""

    def convert(array: pa.Array, target: pa.DataType) -> pa.Array:
        if not is_text(array.type):
            return array.cast(target)
        pattern = pattern_for(target, options)
        if pattern is not None:
            array = rewrite_column(array, pattern, target)
        if pt.is_timestamp(target):
            return _parse_timestamps(array, target, options.zone)
        if is_bytes(target):
            try:
                decoded = [None if text is None else b64decode(text, validate=True) for text in array.to_pylist()]
            except binascii.Error as error:
                raise ValueError(f"not base64: {error}") from error
            return pa.array(decoded, pa.binary()).cast(target)
        if pt.is_boolean(target):  # a cast would take 0 and 1 too, which Spark refuses
            positions = pc.index_in(pc.utf8_lower(array), pa.array(["false", "true"], array.type))
            if positions.null_count > array.null_count:
                raise ValueError("neither true nor false")
            return positions.cast(pa.bool_())
        if pt.is_decimal(target):  # pyarrow does not notice where the digits of a text leave the 128 bits
            largest = pc.max(pc.abs(array.cast(pa.float64()))).as_py()
            if largest is not None and not largest < _ROOM * 10.0 ** (LARGEST_DECIMAL - target.scale):
                raise ValueError(f"a number that does not fit {target}")
            longest = pc.max(pc.binary_length(array)).as_py() or 0
            if longest > LARGEST_DECIMAL and _most_digits(array) > LARGEST_DECIMAL:
                raise ValueError("a number of more digits than 128 bits have room for is read value by value")
        return array.cast(target)

    return convert


def _most_digits(texts: pa.Array) -> int:
    most: int = pc.max(pc.binary_length(pc.replace_substring_regex(texts, "[^0-9]", ""))).as_py()
    return most


def _parse_timestamps(texts: pa.Array, target: pa.TimestampType, timezone: str) -> pa.Array:
    """Parse strings as `target`. An instant may have a zone or not, row by row; without one it is in `timezone`.

    TIMESTAMP_NTZ (no zone in `target`) refuses a zone: dropping it would change what was meant. Raises ValueError.
    """
    first = ""  # the first value that is not null: the others usually have its form
    if texts.null_count < len(texts):
        first = texts[pc.index(texts.is_valid(), True).as_py()].as_py()
    if re.search(_BEYOND_MICROSECONDS, first):
        texts = pc.replace_substring_regex(texts, _BEYOND_MICROSECONDS, r"\1")
    try:
        return _parse_zoned(texts, target, timezone, all_zoned=bool(re.search(_ZONE, first)))
    except pa.ArrowInvalid:
        cut = pc.replace_substring_regex(texts, _BEYOND_MICROSECONDS, r"\1")
        return _parse_zoned(cut, target, timezone, all_zoned=False)


def _parse_zoned(texts: pa.Array, target: pa.TimestampType, timezone: str, *, all_zoned: bool) -> pa.Array:
    """Parse strings. `all_zoned` is a guess; a wrong one is expensive: a cast that fails takes many times as long."""
    if target.tz is None:
        return texts.cast(target)
    utc = pc.all(pc.ends_with(texts, "Z")).as_py()  # the quicker question
    if not utc and pc.any(pc.match_substring_regex(texts, _BEYOND_18_HOURS)).as_py():
        raise ValueError("an offset of more than 18 hours is read value by value")
    if all_zoned:
        try:
            return texts.cast(target)
        except pa.ArrowInvalid:
            pass
    zoned = pc.fill_null(pc.match_substring_regex(texts, _ZONE), False)
    null = pa.scalar(None, texts.type)
    zoned_times = pc.if_else(zoned, texts, null).cast(target)
    local_times = pc.if_else(zoned, null, texts).cast(pa.timestamp("us"))
    return pc.coalesce(zoned_times, instants(local_times, timezone).cast(target))


Meaning = tuple[pa.DataType, Callable[[str], object]]
"""A type that text may have, and what returns False, or raises ValueError, for text that has another one."""


def may_mean(meaning: Meaning, text: str) -> bool:
    try:
        return meaning[1](text) is not False
    except ValueError:
        return False


class TextColumn:
    """The meanings that every text of a column so far could have."""

    __slots__ = ("_is_empty", "_meanings")

    def __init__(self, meanings: list[Meaning]) -> None:
        self._meanings = meanings
        self._is_empty = True

    def add_text(self, text: str) -> None:
        self._is_empty = False
        self._meanings = [meaning for meaning in self._meanings if may_mean(meaning, text)]

    def infer_type(self) -> pa.DataType:
        if self._is_empty:
            return pa.null()
        return self._meanings[0][0] if self._meanings else pa.string()


def list_meanings(options: FormatOptions) -> list[Meaning]:
    """List what text may mean, the narrowest type first."""
    special = {options.nan_value, options.positive_inf, options.negative_inf}

    def check_integer(text: str) -> object:
        """Refuse `007`, which would lose its zeros as a number."""
        return _INFERRED_INTEGER.fullmatch(text) is not None and -(1 << 63) <= int(text) < 1 << 63

    def check_float(text: str) -> object:
        if _INFERRED_INTEGER.fullmatch(text):
            return check_integer(text)  # or it would lose its last digits
        return text in special or _INFERRED_FLOAT.fullmatch(text) is not None

    def make_time_check(kind: pa.DataType, form: re.Pattern[str], pattern: str | None) -> Callable[[str], object]:
        convert = make_text_converter(kind, options)
        return lambda text: (pattern is not None or form.fullmatch(text) is not None) and convert(text)

    return [
        (pa.bool_(), lambda text: text.lower() in ("true", "false")),
        (pa.int64(), check_integer),
        (pa.float64(), check_float),
        (pa.date32(), make_time_check(pa.date32(), _INFERRED_DATE, options.date_format)),
        (_TIMESTAMP, make_time_check(_TIMESTAMP, _INFERRED_TIMESTAMP, options.timestamp_format)),
    ]


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
