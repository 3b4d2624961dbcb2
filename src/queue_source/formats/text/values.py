"""Values that arrive as text: timestamps, dates and base64, converted a column at a time.

Timestamps are ISO 8601 (`T` or a space, seconds and fraction optional, a zone or none), as Spark reads them by
default; digits beyond microseconds are cut off, as Spark does. Text without a zone is in the zone of the options.
"""

from __future__ import annotations

import base64
import binascii
import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.formats.date_patterns import pattern_for, rewrite_column
from queue_source.formats.typed.columns import LeafConverter
from queue_source.formats.types import is_bytes, is_text
from queue_source.formats.zones import instants
from queue_source.options.content import FormatOptions

_ZONE = r"[T ].*(?:Z|[+-]\d{2}(?::?\d{2})?)$"
_BEYOND_18_HOURS = r"[+-](?:1[89]|2[0-9])(?::?[0-9]{2})?$"  # which pyarrow takes, and Spark does not
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"


def text_leaf(options: FormatOptions) -> LeafConverter:
    """For text formats: strings become what is declared; everything else may only be the same value, wider."""

    def convert(array: pa.Array, target: pa.DataType) -> pa.Array:
        if not is_text(array.type):
            return array.cast(target)
        pattern = pattern_for(target, options)
        if pattern is not None:
            array = rewrite_column(array, pattern, target)
        if pt.is_timestamp(target):
            return parse_timestamps(array, target, options.zone)
        if is_bytes(target):
            return decode_base64(array).cast(target)
        if pt.is_boolean(target):
            return _parse_booleans(array)
        return array.cast(target)

    return convert


def _parse_booleans(texts: pa.Array) -> pa.Array:
    """`true` and `false` in any case; a cast would take 0 and 1 too, which Spark refuses."""
    lower = pc.utf8_lower(texts)
    found = pc.index_in(lower, pa.array(["false", "true"], texts.type))
    if found.null_count > texts.null_count:
        raise ValueError("neither true nor false")
    return found.cast(pa.bool_())


def parse_timestamps(texts: pa.Array, target: pa.TimestampType, timezone: str) -> pa.Array:
    """Strings as `target`. An instant may have a zone or not, row by row; without one it is in `timezone`.

    TIMESTAMP_NTZ (no zone in `target`) refuses a zone: dropping it would change what was meant. Raises ValueError.
    """
    first = _first(texts)
    if re.search(_BEYOND_MICROSECONDS, first):
        texts = pc.replace_substring_regex(texts, _BEYOND_MICROSECONDS, r"\1")
    try:
        return _parse(texts, target, timezone, all_zoned=bool(re.search(_ZONE, first)))
    except pa.ArrowInvalid:
        cut = pc.replace_substring_regex(texts, _BEYOND_MICROSECONDS, r"\1")
        return _parse(cut, target, timezone, all_zoned=False)


def _parse(texts: pa.Array, target: pa.TimestampType, timezone: str, *, all_zoned: bool) -> pa.Array:
    """`all_zoned` is a guess; a wrong one is expensive: a cast that fails takes many times as long."""
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
    nothing = pa.scalar(None, texts.type)
    given = pc.if_else(zoned, texts, nothing).cast(target)
    local = pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us"))
    assumed = instants(local, timezone)
    return pc.coalesce(given, assumed.cast(target))


def _first(texts: pa.Array) -> str:
    """The first value that is not null: the others usually have its form."""
    if texts.null_count == len(texts):
        return ""
    found: str = texts[pc.index(texts.is_valid(), True).as_py()].as_py()
    return found


def decode_base64(texts: pa.Array) -> pa.Array:
    """Strings of base64 as binary, as Spark reads BINARY from JSON. Raises ValueError."""
    try:
        decoded = [None if text is None else base64.b64decode(text, validate=True) for text in texts.to_pylist()]
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    return pa.array(decoded, pa.binary())
