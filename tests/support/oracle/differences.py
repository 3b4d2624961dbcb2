"""What is meant to differ from Spark: a table, of which docs/reference/parity.md is generated.

Each row has its sentence; which differences it excuses, when the oracle finds them; and examples, which a test runs:
what Spark reads and what is read here. A row that the oracle cannot meet, such as a limit of megabytes,
has none of these.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pt

from support.oracle.cases import Case
from support.oracle.differs import (
    Differs,
    Excuse,
    either,
    every,
    formats,
    is_number,
    is_time,
    null_here,
    null_in_spark,
    of_type,
    option,
    other_case,
    said,
    text,
)

CSV, JSON = formats("csv"), formats("json")
BAD = "_corrupt_record STRING"


@dataclass(frozen=True)
class Example:
    """A case that shows a difference; rows as `rows.cells` writes them, or a cause of a bad object, or `refused`."""

    case: Case
    spark: str
    here: str


@dataclass(frozen=True)
class Row:
    heading: str
    sentence: str
    excuses: Excuse
    examples: tuple[Example, ...] = ()


def never(d: Differs) -> bool:
    """For what the oracle does not make."""
    return False


def _json(ddl: str, data: str | bytes, **options: str) -> Case:
    return Case("json", ddl, options, data if isinstance(data, bytes) else data.encode())


def _csv(ddl: str, data: str | bytes, **options: str) -> Case:
    return Case("csv", ddl, options, data if isinstance(data, bytes) else data.encode())


DROPPED = "Bad here, where Spark drops or changes something silently"
READ_HERE = "Read here, because nothing is lost"
NOT_READ = "Read by Spark, and not here"
LIMITS = "Limits"
TYPED = "Parquet, ORC and Avro"
OTHERWISE = "Otherwise"

_SPACED_NUMBER = r"(?:^|[\s,;|^x'\"])[ \t]+[-+.\dNnIi]|[\d.fFyYnN][ \t]+(?:$|[\s,;|^x'\"])"
_UNREADABLE = ("corrupt-object", "wrong-columns")


def _is_float(kind: pa.DataType) -> bool:
    return bool(pt.is_floating(kind))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind)) and kind.tz is not None


def _has_doubled_quotes(d: Differs) -> bool:
    quote, escape = d.case.parsed.quote, d.case.parsed.escape
    return bool(quote) and quote != escape and quote * 2 in d.text


def _unreadable_as_a_whole(d: Differs) -> bool:
    return d.what == "object" and d.ours.failure in _UNREADABLE and d.nothing_in_spark


def _bad_for_spark_too(d: Differs) -> bool:
    """Whether Spark has no record without a fault where one is bad here, as far as it tells."""
    if d.what == "rows":
        return False
    name = d.case.parsed.column_name_of_corrupt_record
    if d.what != "cell" or name not in d.case.schema.names:
        return True
    return bool(d.theirs.rows[d.row][d.case.schema.names.index(name)] != "null")


def _clock_is_put_forward(d: Differs) -> bool:
    """Whether what is read here is the moment of such a change, and Spark's a bit later."""
    zone, ours, theirs = d.case.zone, re.findall(r"-?\d+", d.our), re.findall(r"-?\d+", d.their)
    if d.what != "cell" or zone[:1] in "+-" or len(ours) != len(theirs):
        return False
    differing = [(int(ours), int(theirs)) for ours, theirs in zip(ours, theirs, strict=True) if ours != theirs]
    return bool(differing) and all(
        _is_change(zone, our) and 0 < their - our <= 3 * 3600 * 10**6 for our, their in differing
    )


def _is_change(zone: str, moment: int) -> bool:
    """Whether a zone's clock is put forward at a moment."""
    try:
        at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=moment)
        before, after = (one.astimezone(ZoneInfo(zone)).utcoffset() for one in (at - timedelta(seconds=1), at))
    except OverflowError:
        return False
    return before is not None and after is not None and after > before


def _many_bytes(d: Differs) -> bool:
    return codecs.lookup(d.case.parsed.encoding).name.startswith(("utf-16", "utf-32"))


def _zero_of_spark(d: Differs) -> bool:
    return d.what == "cell" and "1" in re.findall(r"\w+", d.our) and "0" in re.findall(r"\w+", d.their)


TABLE: tuple[Row, ...] = (
    # --- bad here ---
    Row(
        DROPPED,
        'JSON with something behind the object, `{"a":1} x` (for Spark the first object)',
        every(JSON, null_here, said(r"behind the record|not a JSON object")),
        (Example(_json(f"a INT, {BAD}", '{"a":1} x'), "?", "?"),),
    ),
    Row(
        DROPPED,
        "JSON that breaks within an array or object (Spark goes on behind it, and keeps the other fields)",
        every(JSON, null_here, said(r"not JSON"), _bad_for_spark_too),
        (
            Example(_json(f"b STRUCT<x: INT>, a INT, {BAD}", '{"a":1,"b":{"x":}}'), "?", "?"),
            Example(_json(f"b ARRAY<INT>, a INT, {BAD}", '{"b":[\0],"a":1}'), "?", "?"),
        ),
    ),
    Row(
        DROPPED,
        "CSV with a quote that nothing closes (the rest of the record is the field, as for Spark)",
        every(CSV, said("a quote that nothing closes")),
        (Example(_csv(f"a INT, b STRING, {BAD}", '1,"x'), "?", "?"),),
    ),
    Row(
        DROPPED,
        "CSV and text with bytes outside of their `encoding` (they become U+FFFD, as for Spark)",
        every(formats("csv", "text", "json"), said("not [A-Z0-9_-]+: ")),
        (Example(_csv(f"a INT, b STRING, {BAD}", b"1,\xff"), "?", "?"),),
    ),
    Row(
        DROPPED,
        "JSON: a number into TINYINT or SMALLINT that it has no room for (128 is -128 for Spark)",
        every(JSON, null_here, said("does not fit (8|16) bits")),
        (Example(_json(f"a TINYINT, {BAD}", '{"a":128}'), "?", "?"),),
    ),
    Row(
        DROPPED,
        'JSON: `"100"` into DATE (for Spark the 100th day after 1970-01-01)',
        every(JSON, null_here, said("is not a date"), text(r'"\s*[+-]?\d+\s*"')),
        (Example(_json(f"a DATE, {BAD}", '{"a":"100"}'), "?", "?"),),
    ),
    Row(
        DROPPED,
        'JSON: half a surrogate pair, `"\\ud800"` (`?`)',
        every(JSON, null_here, said("half|surrogate"), text(r"\\u[dD][89a-fA-F]")),
        (Example(_json(f"b STRING, {BAD}", '{"b":"\\ud800"}'), "?", "?"),),
    ),
    # --- read here ---
    Row(
        READ_HERE,
        'JSON objects that follow each other in a line, `{"a":1}{"a":2}`: as many records (Spark keeps the first one)',
        every(JSON, text(r"[}\]][ \t]*[{\[]")),
        (Example(_json(f"a INT, {BAD}", '{"a":1}{"a":2}'), "?", "?"),),
    ),
    Row(
        READ_HERE,
        "CSV numbers with spaces or tabs around them, and `nan`, `inf` in any case (bad values for Spark)",
        every(
            CSV,
            either(
                every(of_type(is_number), null_in_spark, text(_SPACED_NUMBER)),
                every(of_type(_is_float), null_in_spark, text(r"(?i)nan|inf")),
            ),
        ),
        (
            Example(_csv(f"a INT, b STRING, {BAD}", " 1 ,x"), "?", "?"),
            Example(_csv(f"a DOUBLE, {BAD}", "nan"), "?", "?"),
        ),
    ),
    Row(
        READ_HERE,
        'CSV: `"x""y"` while `escape` is `\\` is `x"y` (for Spark with all quotes)',
        every(CSV, _has_doubled_quotes),
        (Example(_csv("a INT, b STRING", '1,"x""y"'), "?", "?"),),
    ),
    Row(
        READ_HERE,
        "CSV columns of an object with a header: by name (for Spark by position)",
        never,
        (Example(_csv("a INT, b STRING", "b,a\nx,1", header="true"), "?", "?"),),
    ),
    Row(
        READ_HERE,
        "JSON names that differ from declared ones in case alone, where one of them fits (for Spark null); where several fit "
        '(`{"ID":1,"Id":2}` into `id`) the record is bad',
        every(JSON, other_case, either(null_in_spark, said("more than once"))),
        (
            Example(_json("id INT", '{"ID":1}'), "?", "?"),
            Example(_json(f"id INT, {BAD}", '{"ID":1,"Id":2}'), "?", "?"),
        ),
    ),
    Row(
        READ_HERE,
        "TIMESTAMP without seconds, with a zone: `2020-07-01 12:00Z` (a bad value for Spark)",
        every(
            formats("csv", "json"),
            of_type(_is_instant),
            null_in_spark,
            text(r"\d[T ]\d{1,2}(:\d{1,2})?\s*(Z|z|[A-Z][A-Za-z/_]+|[+-]\d)"),
        ),
        (Example(_csv(f"t TIMESTAMP, {BAD}", "2020-07-01 12:00Z", timeZone="Europe/Berlin"), "?", "?"),),
    ),
    Row(
        READ_HERE,
        "JSON: `-0` into DOUBLE and FLOAT is -0.0 (for Spark 0.0)",
        every(JSON, of_type(_is_float), text(r"-0"), _zero_of_spark),
        (Example(_json("a DOUBLE", '{"a":-0}'), "?", "?"),),
    ),
    Row(
        READ_HERE,
        "Other character sets than Spark allows, such as `windows-1252`",
        lambda d: "CHARSET" in d.theirs.detail,
        (Example(_csv("a STRING", b"\x80", encoding="windows-1252"), "?", "?"),),
    ),
    # --- not read here ---
    Row(
        NOT_READ,
        "refused when the query starts: CSV with a `sep` of several characters; `dateFormat` and `timestampFormat` with `yy`, "
        "`a`, `h`, `k`, `K`, `MMM`, `L`, `E`, `D`, `q`, `G`, `O`, `z` or `VV`",
        never,
        (Example(_csv("a DATE", "01.02.20", dateFormat="dd.MM.yy"), "?", "?"),),
    ),
    Row(
        NOT_READ,
        "refused: JSON options `allow...` (but single quotes are read)",
        never,
        (Example(_json("a INT", "{a:1}", allowUnquotedFieldNames="true"), "?", "?"),),
    ),
    Row(
        NOT_READ,
        "bad records: JSON in UTF-16 or UTF-32 without `encoding`; JSON with halves of surrogate pairs in bytes (`ED A0 80`)",
        every(JSON, lambda d: b"\0" in d.case.bytes or b"\xed\xa0" in d.case.bytes),
        (Example(_json(f"a STRING, {BAD}", b'{"a":"\xed\xa0\x80"}'), "?", "?"),),
    ),
    Row(
        NOT_READ,
        "bad values: decimals in digits of other scripts",
        every(of_type(is_number), null_here, said("is not a"), text(r"[^\x00-\x7f]")),
        (Example(_csv(f"a DECIMAL(5, 0), {BAD}", "\u0663"), "?", "?"),),
    ),
    Row(
        NOT_READ,
        "bad values: in CSV Java's notation of DOUBLE (`1.5d`, `0x1p3`)",
        every(CSV, of_type(_is_float), null_here, said("is not a number"), text(r"[dDfF]|0[xX]")),
        (
            Example(_csv(f"a DOUBLE, {BAD}", "1.5d"), "?", "?"),
            Example(_csv(f"a DOUBLE, {BAD}", "0x1p3"), "?", "?"),
        ),
    ),
    Row(
        NOT_READ,
        "bad values: years beyond 9999; a time without a date (`05:00`)",
        every(
            formats("csv", "json"),
            of_type(is_time),
            said(r"is not a|year"),
            null_here,
            text(r"[+-]?\d{5,}-\d|[+-]\d{4,}-\d\d-|0000|(?:^|[\"',;|\n])\s*T?\d{1,2}:\d"),
        ),
        (Example(_csv(f"a TIMESTAMP, {BAD}", "+12013-01-01", timeZone="UTC"), "?", "?"),),
    ),
    Row(
        NOT_READ,
        "bad values: numbers and times with control characters around them",
        every(
            either(of_type(is_number), of_type(is_time)), null_here, said("is not a"), text(r"[\x00-\x08\x0b-\x1f\x7f]")
        ),
        (Example(_csv(f"a DATE, {BAD}", "2020-01-01\0"), "?", "?"),),
    ),
    Row(
        NOT_READ,
        "bad objects: JSON without a record and headerless CSV without a value that can be read (`corrupt-object`); JSON that "
        "names no declared column (`wrong-columns`); for Spark rows of nulls",
        _unreadable_as_a_whole,
        (
            Example(_json("a INT", "8"), "?", "?"),
            Example(_csv("a INT", "x"), "?", "?"),
            Example(_json("a INT", "{}"), "?", "?"),
        ),
    ),
    # --- otherwise ---
    Row(
        OTHERWISE,
        "JSON: `Inf` and `-NaN` in a field that is not declared are ignored with it (for Spark a bad record). A bad record "
        "that is not UTF-8 is text with U+FFFD in the column of corrupt records (for Spark its bytes).",
        every(JSON, text(r"[:,\[]\s*(?:[+-]?Inf(?!inity)|-NaN)")),
        (Example(_json(f"a INT, {BAD}", '{"a":1,"z":Inf}'), "?", "?"),),
    ),
    Row(
        OTHERWISE,
        "`encoding` of two or four bytes a character: lines end at characters (for Spark at any byte 0A or 0D, where no "
        "`lineSep` is set). text is decoded (Spark only looks for `lineSep`). JSON needs no `lineSep` (for Spark it does).",
        either(
            every(formats("csv"), _many_bytes),
            every(formats("text"), option("encoding")),
            lambda d: "requirement failed" in d.theirs.detail,
        ),
        (
            Example(_csv("a STRING", "x\ny".encode("utf-16-le"), encoding="UTF-16LE"), "?", "?"),
            Example(Case("text", "value STRING", {"encoding": "ISO-8859-1"}, b"\xe4"), "?", "?"),
            Example(_json("a INT", '{"a":1}', encoding="ISO-8859-1"), "?", "?"),
        ),
    ),
    Row(
        OTHERWISE,
        "JSON with `encoding`: an object in a STRING column is the text as written; Spark drops its white space.",
        every(JSON, option("encoding"), text(r"[{\[]")),
        (Example(_json("a STRING", '{"a":{"x": 1}}', encoding="ISO-8859-1", lineSep="\n"), "?", "?"),),
    ),
    Row(
        OTHERWISE,
        'CSV: an escape character right behind a closing quote (`"a"\\b`) is taken as written; Spark continues within the '
        "quotes.",
        every(CSV, lambda d: bool(d.case.parsed.quote) and d.case.parsed.quote + d.case.parsed.escape in d.text),
        (Example(_csv("a STRING", '"a"\\b'), "?", "?"),),
    ),
    Row(
        OTHERWISE,
        "CSV with `multiLine`: lines of white space are skipped (Spark: records); `\\r\\n` within quotes stays (Spark may make "
        "it `\\n`).",
        every(CSV, option("multiLine", "true"), text(r"(?:^|[\r\n])[\0- ]*(?:[\r\n]|$)|\r")),
        (Example(_csv("a STRING", "x\n \ny", multiLine="true"), "?", "?"),),
    ),
    Row(
        OTHERWISE,
        "Local times that a change of the clock skips become the moment of the change; Spark adds the gap.",
        every(formats("csv", "json"), of_type(_is_instant), _clock_is_put_forward),
        (Example(_csv("t TIMESTAMP", "2020-03-29 02:30:00", timeZone="Europe/Berlin"), "?", "?"),),
    ),
)


def excuse(differs: Differs) -> str | None:
    """The sentence of the row that says why it differs; None where none does."""
    return next((row.sentence for row in TABLE if row.excuses(differs)), None)
