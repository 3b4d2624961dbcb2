"""What is meant to differ from Spark: a table, of which docs/reference/parity.md is generated.

Each row has its sentence; which differences it excuses, when the oracle finds them; and examples, which a test runs:
what Spark reads and what is read here. A row that the oracle cannot meet, such as a limit of megabytes,
has none of these.
"""

from __future__ import annotations

import codecs
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from support.oracle.cases import Case
from support.oracle.differs import (
    Differs,
    Excuse,
    all_types,
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
from support.oracle.typed import Made

CSV, JSON = formats("csv"), formats("json")
BAD = "_corrupt_record STRING"


@dataclass(frozen=True)
class Example:
    """A case that shows a difference; rows as `rows.cells` writes them, or a cause of a bad object, or `refused`."""

    case: Case
    spark: str
    here: str

    @property
    def name(self) -> str:
        return f"{self.case.file_format} {self.case.ddl} {self.case.content!r}"[:60]


@dataclass(frozen=True)
class Row:
    """`shown_by`: the test that shows it, where an example would be a file of megabytes or one that no writer makes."""

    heading: str
    sentence: str
    excuses: Excuse
    examples: tuple[Example, ...] = ()
    shown_by: str = ""


def never(d: Differs) -> bool:
    """For what the oracle does not make."""
    return False


def _json(ddl: str, data: str | bytes, **options: str) -> Case:
    return Case("json", ddl, options, data if isinstance(data, bytes) else data.encode())


def _csv(ddl: str, data: str | bytes, **options: str) -> Case:
    return Case("csv", ddl, options, data if isinstance(data, bytes) else data.encode())


def _csv_inferred(value: str, **options: str) -> Case:
    return Case("csv", None, {"header": "true", **options}, f"a\n{value}\n".encode())


def _json_inferred(data: str) -> Case:
    return Case("json", None, {}, data.encode())


DROPPED = "Bad here, where Spark drops or changes something silently"
READ_HERE = "Read here, because nothing is lost"
NOT_READ = "Read by Spark, and not here"
LIMITS = "Limits"
TYPED_BAD = "Parquet, ORC and Avro: bad objects here, which Spark reads"
TYPED = "Parquet, ORC and Avro: read otherwise"
INFERRED = "Inferred types"
OTHERWISE = "Otherwise"
HEADINGS = {
    DROPPED: "",
    READ_HERE: "",
    NOT_READ: "",
    LIMITS: "Read by Spark, with enough memory, and bad here:",
    TYPED_BAD: "",
    TYPED: "",
    INFERRED: "",
    OTHERWISE: "",
}
"""The headings of the page, and what stands below each."""

_SPACED_NUMBER = r"(?:^|[\s,;|^x'\"])[ \t]+[-+.\dNnIi]|[\d.fFyYnN][ \t]+(?:$|[\s,;|^x'\"])"
_UNREADABLE = ("corrupt-object", "wrong-columns")


def _written_types(made: Made) -> list[pa.DataType]:
    return [kind for column in made.schema for kind in all_types(column.type)]


def _is_float(kind: pa.DataType) -> bool:
    return bool(pt.is_floating(kind))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind)) and kind.tz is not None


def _has_doubled_quotes(d: Differs) -> bool:
    quote, escape = d.case.parsed.quote, d.case.parsed.escape
    return bool(quote) and quote != escape and quote * 2 in d.text


def _has_a_mark_that_is_data(d: Differs) -> bool:
    before, mark, _ = d.text.partition("\ufeff")
    lines = re.split("|".join(["[\r\n]", *map(re.escape, filter(None, [d.case.options.get("lineSep")]))]), before)
    comment = d.case.options.get("comment")
    return bool(mark) and all(not line.strip() or (comment and line.startswith(comment)) for line in lines)


def _has_escapes(d: Differs) -> bool:
    quote, escape = d.case.parsed.quote, d.case.parsed.escape
    return bool(quote) and (escape + quote in d.text or escape * 2 in d.text)


def _but_for_quotes(d: Differs) -> bool:
    """Whether two values are the same but for their quotes and escape characters."""
    marks = {d.case.parsed.quote, d.case.parsed.escape, "\\", "'", '"'}
    their, our = ("".join(c for c in text if c not in marks) for text in (d.their, d.our))
    return d.what == "cell" and their == our


def _unreadable_as_a_whole(d: Differs) -> bool:
    return d.what == "object" and d.ours.failure in _UNREADABLE and d.nothing_in_spark


def here_failed(d: Differs) -> bool:
    return d.what == "object" and bool(d.ours.failure)


def _read_here_alone(d: Differs) -> bool:
    """Whether Spark fails, and here is each value that was written in a declared column."""
    if not d.theirs.failure or d.ours.failure:
        return False
    if d.case.made is None:
        return True
    at = {name.casefold(): place for place, name in enumerate(d.case.made.schema.names)}
    declared = [(place, at[name.casefold()]) for place, name in enumerate(d.case.schema.names) if name.casefold() in at]
    return all(
        (ours[here] == "null") == (theirs[there] is None)
        for ours, theirs in zip(d.ours.rows, d.case.made.rows, strict=True)
        for here, there in declared
    )


def _bad_for_spark_too(d: Differs) -> bool:
    """Whether Spark has no record without a fault where one is bad here, as far as it tells."""
    if d.what == "rows":
        return False
    name = d.case.parsed.column_name_of_corrupt_record
    if d.what != "cell" or name not in d.case.schema.names:
        return True
    return bool(d.theirs.rows[d.row][d.case.schema.names.index(name)] != "null")


def _many_bytes(d: Differs) -> bool:
    return codecs.lookup(d.case.parsed.encoding).name.startswith(("utf-16", "utf-32"))


_KEY_TWICE = r"""(["'])(\w+)\1\s*:.*(["'])\2\3\s*:"""
"""Where the second value is bad, the first one counts."""
_NUMBERS = ("INT", "BIGINT", "DOUBLE", "DECIMAL")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_FRACTION = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII)


def _inferred(their: tuple[str, ...], our: tuple[str, ...]) -> Excuse:
    """Spark infers one of some types, and here another one is inferred."""
    return lambda d: d.their.partition("(")[0] in their and d.our.partition("(")[0] in our


def _values(d: Differs) -> list[str]:
    """The values of an inferred column of csv, which is alone in its object, but for those that count as null."""
    return [text for text in d.text.split("\n")[1:] if text not in ("", d.case.options.get("nullValue", ""))]


def _each_value(form: re.Pattern[str]) -> Excuse:
    return lambda d: all(map(form.fullmatch, _values(d)))


def _a_value(question: Callable[[str], bool]) -> Excuse:
    return lambda d: any(map(question, _values(d)))


def _is_odd_number(text: str) -> bool:
    if _WHOLE.fullmatch(text):
        return len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63
    return _FRACTION.fullmatch(text) is None


def _is_odd_time(text: str) -> bool:
    return _TIME.fullmatch(text) is None


def _is_without_seconds(text: str) -> bool:
    return re.search(r"[T ]\d\d:\d\d\s*(?:Z|[+-])", text) is not None


TABLE: tuple[Row, ...] = (
    # --- bad here ---
    Row(
        DROPPED,
        'JSON with something behind the object, `{"a":1} x` (for Spark the first object)',
        every(JSON, null_here, said(r"behind the record|not a JSON object")),
        (Example(_json(f"a INT, {BAD}", '{"a":1} x'), "1, null", "null, '{\"a\":1} x'"),),
    ),
    Row(
        DROPPED,
        "JSON that breaks within an array or object (Spark goes on behind it, and keeps the other fields)",
        every(JSON, null_here, said(r"not JSON"), _bad_for_spark_too),
        (
            Example(
                _json(f"b STRUCT<x: INT>, a INT, {BAD}", '{"a":1,"b":{"x":}}'),
                'null, 1, \'{"a":1,"b":{"x":}}\'',
                'null, null, \'{"a":1,"b":{"x":}}\'',
            ),
            Example(
                _json(f"b ARRAY<INT>, a INT, {BAD}", '{"b":[\0],"a":1}'),
                'null, 1, \'{"b":[\\x00],"a":1}\'',
                'null, null, \'{"b":[\\x00],"a":1}\'',
            ),
        ),
    ),
    Row(
        DROPPED,
        "CSV with a quote that nothing closes (the rest of the record is the field, as for Spark)",
        every(CSV, said("a quote that nothing closes")),
        (Example(_csv(f"a INT, b STRING, {BAD}", '1,"x'), "1, 'x', null", "1, 'x', '1,\"x'"),),
    ),
    Row(
        DROPPED,
        "CSV with a header that has a declared name twice (Spark goes by position)",
        every(CSV, here_failed, option("header", "true"), said("is there more than once")),
        (Example(_csv("a STRING, b INT", "a,a\n9,1", header="true"), "'9', 1", "(wrong-columns)"),),
    ),
    Row(
        DROPPED,
        "CSV and text with bytes outside of their `encoding` (they become U+FFFD, as for Spark)",
        every(formats("csv", "text", "json"), said("not [A-Z0-9_-]+: ")),
        (Example(_csv(f"a INT, b STRING, {BAD}", b"1,\xff"), "1, '�', null", "1, '�', '1,�'"),),
    ),
    Row(
        DROPPED,
        "JSON: a number into TINYINT or SMALLINT that it has no room for (128 is -128 for Spark)",
        every(JSON, null_here, said("does not fit (8|16) bits")),
        (Example(_json(f"a TINYINT, {BAD}", '{"a":128}'), "-128, null", "null, '{\"a\":128}'"),),
    ),
    Row(
        DROPPED,
        'JSON: `"100"` into DATE (for Spark the 100th day after 1970-01-01)',
        every(JSON, either(null_here, text(_KEY_TWICE)), said("is not a date"), text(r'"\s*[+-]?\d+\s*"')),
        (Example(_json(f"a DATE, {BAD}", '{"a":"100"}'), "100, null", 'null, \'{"a":"100"}\''),),
    ),
    Row(
        DROPPED,
        'JSON: half a surrogate pair, `"\\ud800"` (`?`)',
        every(JSON, null_here, said("half|surrogate"), text(r"\\u[dD][89a-fA-F]")),
        (Example(_json(f"b STRING, {BAD}", '{"b":"\\ud800"}'), "'?', null", 'null, \'{"b":"\\\\ud800"}\''),),
    ),
    Row(
        DROPPED,
        "JSON: a number of seconds into TIMESTAMP that it has no room for (for Spark another time)",
        every(JSON, of_type(_is_instant), null_here, said("seconds since 1970")),
        (
            Example(
                _json(f"a TIMESTAMP, {BAD}", '{"a":9223372036855}'),
                "-9223372036854551616, null",
                "null, '{\"a\":9223372036855}'",
            ),
        ),
    ),
    # --- read here ---
    Row(
        READ_HERE,
        'JSON objects that follow each other in a line, `{"a":1}{"a":2}`: as many records (Spark keeps the first one)',
        every(JSON, text(r"[}\]][ \t]*[{\[]")),
        (Example(_json(f"a INT, {BAD}", '{"a":1}{"a":2}'), "1, null", "1, null / 2, null"),),
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
            Example(_csv(f"a INT, b STRING, {BAD}", " 1 ,x"), "null, 'x', ' 1 ,x'", "1, 'x', null"),
            Example(_csv(f"a DOUBLE, {BAD}", "nan"), "null, 'nan'", "nan, null"),
        ),
    ),
    Row(
        READ_HERE,
        'CSV: `"x""y"` while `escape` is `\\` is `x"y` (for Spark with all quotes)',
        every(CSV, _has_doubled_quotes, either(lambda d: d.what != "cell", _but_for_quotes)),
        (Example(_csv("a INT, b STRING", '1,"x""y"'), '1, \'"x""y"\'', "1, 'x\"y'"),),
    ),
    Row(
        READ_HERE,
        "CSV: NUL is text while `quote` is empty (for Spark NUL quotes)",
        every(CSV, option("quote", ""), text("\0")),
        (Example(_csv("a STRING", "\0,", quote=""), "null", "'\\x00'"),),
    ),
    Row(
        READ_HERE,
        "CSV columns of an object with a header: by name (for Spark by position)",
        never,
        (Example(_csv("a INT, b STRING", "b,a\nx,1", header="true"), "null, '1'", "1, 'x'"),),
    ),
    Row(
        READ_HERE,
        "JSON names that differ from declared ones in case alone, where one of them fits (for Spark "
        "null); where several fit "
        '(`{"ID":1,"Id":2}` into `id`) the record is bad',
        every(JSON, other_case, either(null_in_spark, said("more than once"))),
        (
            Example(_json("id INT", '{"ID":1}'), "null", "1"),
            Example(_json(f"id INT, {BAD}", '{"ID":1,"Id":2}'), "null, null", 'null, \'{"ID":1,"Id":2}\''),
        ),
    ),
    Row(
        READ_HERE,
        "TIMESTAMP without seconds, with a zone: `2020-07-01 12:00Z` (for Spark bad, or without `GMT`)",
        every(
            formats("csv", "json"),
            of_type(_is_instant),
            either(null_in_spark, text(_KEY_TWICE), text("GMT")),
            text(r"\d[T ]\d{1,2}(:\d{1,2})?\s*(Z|z|[A-Z][A-Za-z/_]+|[+-]\d)"),
        ),
        (
            Example(
                _csv(f"t TIMESTAMP, {BAD}", "2020-07-01 12:00Z", timeZone="Europe/Berlin"),
                "null, '2020-07-01 12:00Z'",
                "1593604800000000, null",
            ),
            Example(
                _csv("t TIMESTAMP", "2020-07-01 12:00GMT", timeZone="Europe/Berlin"),
                "1593597600000000",
                "1593604800000000",
            ),
        ),
    ),
    Row(
        READ_HERE,
        "JSON: the other fields of a record with a value that is not base64 (Spark drops those behind it)",
        every(JSON, null_in_spark, said("not base64")),
        (
            Example(
                _json(f"a BINARY, b INT, {BAD}", '{"a":"x","b":1}'),
                'null, null, \'{"a":"x","b":1}\'',
                'null, 1, \'{"a":"x","b":1}\'',
            ),
        ),
    ),
    Row(
        READ_HERE,
        "Other character sets, such as `windows-1252`",
        lambda d: "CHARSET" in d.theirs.detail,
        (Example(_csv("a STRING", b"\x80", encoding="windows-1252"), "(failed)", "'€'"),),
    ),
    Row(
        READ_HERE,
        "`dateFormat` with `uuuu` (Spark fails)",
        every(option("dateFormat"), lambda d: "DATETIME_PATTERN_RECOGNITION" in d.theirs.detail),
        (Example(_json("a DATE", '{"a":"2020/1/2"}', dateFormat="uuuu/M/d"), "(failed)", "18263"),),
    ),
    # --- not read here ---
    Row(
        NOT_READ,
        "refused when the query starts: CSV with a `sep` of several characters; `dateFormat` and "
        "`timestampFormat` with `yy`, "
        "`a`, `h`, `k`, `K`, `MMM`, `L`, `E`, `D`, `q`, `G`, `O`, `z` or `VV`",
        never,
        (Example(_csv("a DATE", "01.02.20", dateFormat="dd.MM.yy"), "18293", "(refused when the query starts)"),),
    ),
    Row(
        NOT_READ,
        "refused: JSON options `allow...` (but single quotes are read)",
        never,
        (Example(_json("a INT", "{a:1}", allowUnquotedFieldNames="true"), "1", "(refused when the query starts)"),),
    ),
    Row(
        NOT_READ,
        "bad records: JSON in UTF-16 or UTF-32 without `encoding`; JSON with halves of surrogate pairs in "
        "bytes (`ED A0 80`)",
        every(JSON, lambda d: b"\0" in d.case.bytes or b"\xed\xa0" in d.case.bytes),
        (
            Example(
                _json(f"a STRING, {BAD}", b'{"a":"\xed\xa0\x80"}'),
                'null, \'{"a":"\\\\xed\\\\xa0\\\\x80"}\'',
                'null, \'{"a":"���"}\'',
            ),
        ),
    ),
    Row(
        NOT_READ,
        "bad values: decimals in digits of other scripts",
        every(of_type(is_number), null_here, said("is not a"), text(r"[^\x00-\x7f]|\\u")),
        (Example(_csv(f"a DECIMAL(5, 0), {BAD}", "\u0663"), "Decimal('3'), null", "null, '٣'"),),
    ),
    Row(
        NOT_READ,
        "bad values: in CSV Java's notation of DOUBLE (`1.5d`, `0x1p3`)",
        every(CSV, of_type(_is_float), null_here, said("is not a number"), text(r"[dDfF]|0[xX]")),
        (
            Example(_csv(f"a DOUBLE, {BAD}", "1.5d"), "0x1.8000000000000p+0, null", "null, '1.5d'"),
            Example(_csv(f"a DOUBLE, {BAD}", "0x1p3"), "0x1.0000000000000p+3, null", "null, '0x1p3'"),
        ),
    ),
    Row(
        NOT_READ,
        "bad values: years outside 0–9999; a time without a date (`05:00`); a date with `GMT`",
        every(
            formats("csv", "json"),
            of_type(is_time),
            said(r"is not a|year|the form of the option"),
            either(null_here, text(_KEY_TWICE)),
            text(r"\d{5,}|[+-]\d{4,}|0000|GMT|(?:^|[\"',;|\n])\s*T?\d{1,2}:\d"),
        ),
        (
            Example(
                _csv(f"a TIMESTAMP, {BAD}", "2021GMT", timeZone="UTC"), "1609459200000000, null", "null, '2021GMT'"
            ),
            Example(
                _csv(f"a TIMESTAMP, {BAD}", "+12013-01-01", timeZone="UTC"),
                "316926518400000000, null",
                "null, '+12013-01-01'",
            ),
        ),
    ),
    Row(
        NOT_READ,
        "bad values: numbers and times with control characters around them",
        every(
            either(of_type(is_number), of_type(is_time)),
            null_here,
            said("is not a|the form"),
            text(r"[\x00-\x08\x0b-\x1f\x7f]"),
        ),
        (Example(_csv(f"a DATE, {BAD}", "2020-01-01\0"), "18262, null", "null, '2020-01-01\\x00'"),),
    ),
    Row(
        NOT_READ,
        "bad objects: JSON without a record and headerless CSV without a value that can be read "
        "(`corrupt-object`); JSON that "
        "names no declared column (`wrong-columns`); for Spark rows of nulls",
        _unreadable_as_a_whole,
        (
            Example(_json("a INT", "8"), "null", "(corrupt-object)"),
            Example(_csv("a INT", "x"), "null", "(corrupt-object)"),
            Example(_json("a INT", "{}"), "null", "(wrong-columns)"),
        ),
    ),
    # --- limits ---
    Row(
        LIMITS,
        "a record (an object with `wholeText`) of more than `maxRecordBytes`, 48 MB; a JSON document half "
        "as long again",
        never,
        shown_by="tests/unit/formats/test_compression.py::test_a_document_may_be_as_large_as_anybody_likes_to_allow",
    ),
    Row(
        LIMITS,
        "a JSON record of more than 838,860 keys and values, unless pyarrow reads it",
        never,
        shown_by="tests/sweeps/test_hostile_text.py",
    ),
    Row(
        LIMITS,
        "a CSV record of more than 20,480 columns, or as many as are declared",
        never,
        shown_by="tests/sweeps/test_hostile_text.py",
    ),
    Row(
        LIMITS,
        "an object beyond the [limits](formats.md#limits) of size and memory",
        never,
        shown_by="tests/sweeps/test_hostile_typed.py",
    ),
    # --- formats with types ---
    Row(
        TYPED_BAD,
        "Parquet: optional keys of a map; text that is not UTF-8; a wrong checksum of a page; INT96 "
        "beyond the years 1 to 9999 "
        "(for Spark any time); shredded VARIANT",
        every(formats("parquet"), here_failed, said("INT96 beyond the years|Invalid UTF-?8")),
        shown_by="tests/unit/formats/test_parquet.py::test_text_that_is_not_utf8_is_corrupt",
    ),
    Row(
        TYPED_BAD,
        "a number that the declared type has no room for (in Parquet another number for Spark)",
        every(
            formats("parquet", "orc", "avro"),
            here_failed,
            said(r"not in range|out of range|truncated|does not fit|would lose|would cause data loss"),
        ),
        (
            Example(
                Case("parquet", "a SMALLINT", made=Made("pyarrow", "a INT", ((70000,),))), "4464", "(corrupt-object)"
            ),
        ),
    ),
    Row(
        TYPED_BAD,
        "ORC: TIMESTAMP of a year before 1678 or after 2261; DECIMAL of Hive 0.11, which has no "
        "precision; compression with "
        "LZO; INT into STRING, DOUBLE into FLOAT, and other types that lose something",
        every(
            formats("orc"),
            here_failed,
            said(r"(?m)^column '|Hive 0\.11|compression .* is not supported|for nanosecond resolution"),
        ),
        shown_by="tests/unit/formats/test_orc_values.py::test_a_timestamp_is_the_moment_at_the_clock_of_its_writer",
    ),
    Row(
        TYPED_BAD,
        "Parquet: TIMESTAMP that is declared as TIMESTAMP_NTZ (UTC for Spark)",
        every(formats("parquet"), here_failed, said("is an instant and does not become")),
        (
            Example(
                Case("parquet", "a TIMESTAMP_NTZ", made=Made("pyarrow", "a TIMESTAMP", ((3000,),))),
                "3000",
                "(corrupt-object)",
            ),
        ),
    ),
    Row(
        TYPED_BAD,
        "Avro: TIMESTAMP that is declared as DATE (another day for Spark)",
        every(formats("avro"), here_failed, said(r"timestamp\[.*\] does not become date32")),
        (
            Example(
                Case("avro", "a DATE", made=Made("pyarrow", "a TIMESTAMP", ((86_400_000,),))), "1", "(corrupt-object)"
            ),
        ),
    ),
    Row(
        TYPED_BAD,
        "Avro: text that is not UTF-8; a declared column that contains itself",
        never,
        shown_by="tests/unit/formats/test_avro_types.py::test_a_column_that_is_within_itself_may_be_there_and_is_not_read",
    ),
    Row(
        TYPED,
        "Parquet: TIMESTAMP in nanoseconds is read, if no digit is lost (Spark refuses it). Local times "
        "that are declared as "
        "TIMESTAMP are taken as UTC.",
        never,
        shown_by="tests/unit/formats/test_parquet.py::test_a_timestamp_without_a_zone_is_utc_whatever_zone_the_options_have",
    ),
    Row(
        TYPED,
        "ORC: TIMESTAMP is the moment that was written (for Spark the writer's local time in the zone "
        "of the reading JVM; as TIMESTAMP_NTZ within arrays, its seconds); "
        "where the file has no zone, it is UTC (for Spark that zone).",
        every(formats("orc"), of_type(lambda kind: pt.is_timestamp(kind) and kind.tz is None), of_type(pt.is_list)),
        (
            Example(
                Case(
                    "orc",
                    "b ARRAY<TIMESTAMP_NTZ>",
                    made=Made("spark", "a INT, b ARRAY<TIMESTAMP>", ((1, [9 * 10**6]),)),
                ),
                "[9]",
                "[9000000]",
            ),
        ),
        shown_by="tests/unit/formats/test_orc_values.py::test_a_timestamp_is_the_moment_at_the_clock_of_its_writer",
    ),
    Row(
        TYPED,
        "Read, and not by Spark: columns of other types than declared, if no value is lost; ORC's "
        "fractions of a second "
        "before 1970 as pyarrow writes them.",
        every(formats("parquet", "orc", "avro"), _read_here_alone),
        (
            Example(Case("orc", "t TIMESTAMP", made=Made("pyarrow", "t TIMESTAMP", ((-1,),))), "(failed)", "-1"),
            Example(
                Case("avro", "a TINYINT", made=Made("pyarrow", "a TINYINT", ((1,),))),
                "(failed)",
                "1",
            ),
            Example(Case("parquet", "a INT", made=Made("pyarrow", "a BIGINT", ((1,),))), "(failed)", "1"),
        ),
    ),
    Row(
        TYPED,
        "Avro: `time-millis`, `time-micros` and `timestamp-nanos` are INT and BIGINT (Spark infers TIME "
        "and nanoseconds, which "
        "are off by default).",
        never,
        shown_by="tests/unit/formats/test_avro.py::test_avro_is_read_by_name_with_all_its_types",
    ),
    Row(
        TYPED,
        "VARIANT in other formats than json and Parquet, GEOMETRY and GEOGRAPHY are refused when the query starts.",
        never,
        shown_by="tests/unit/formats/test_special_types.py"
        "::test_they_are_refused_when_the_query_starts_with_what_to_declare",
    ),
    Row(
        TYPED,
        "ORC: BINARY declared STRING is text (for Spark hexadecimal)",
        every(
            formats("orc"),
            of_type(pt.is_string),
            lambda d: d.case.made is not None and any(pt.is_binary(kind) for kind in _written_types(d.case.made)),
        ),
        (
            Example(Case("orc", "a STRING", made=Made("spark", "a BINARY", ((b"ab",),))), "'61 62'", "'ab'"),
            Example(Case("orc", "a STRING", made=Made("spark", "a BINARY", ((b"\xff",),))), "'ff'", "(corrupt-object)"),
        ),
    ),
    Row(
        TYPED,
        "ORC: columns with a backtick in their names are read (null for Spark)",
        every(formats("orc"), null_in_spark, lambda d: d.case.made is not None and "``" in d.case.made.ddl),
        (Example(Case("orc", "`a``b` INT", made=Made("pyarrow", "`a``b` INT", ((1,),))), "null", "1"),),
    ),
    # --- inferred ---
    Row(
        INFERRED,
        "CSV: whole numbers are BIGINT (for Spark INT where all of them fit, and DECIMAL beyond 64 bits, which are "
        "STRING here)",
        every(CSV, _inferred(("INT",), ("BIGINT",)), _each_value(_WHOLE)),
        (
            Example(_csv_inferred("1"), "`a` INT", "`a` BIGINT"),
            Example(_csv_inferred("9223372036854775808"), "`a` DECIMAL(19, 0)", "`a` STRING"),
        ),
    ),
    Row(
        INFERRED,
        "CSV: a column with a number that is not written as programs write it is STRING: `007`, `+1`, ` 1`, `1d`, or "
        "whole and beyond 64 bits. `1.` is DOUBLE (for Spark DECIMAL).",
        either(
            every(CSV, _inferred(_NUMBERS, ("STRING",)), _a_value(_is_odd_number)),
            every(
                CSV,
                _inferred(("DECIMAL", "INT"), ("DOUBLE",)),
                _a_value(lambda text: "." in text or "e" in text.lower()),
            ),
        ),
        (
            Example(_csv_inferred("007"), "`a` INT", "`a` STRING"),
            Example(_csv_inferred(" 1"), "`a` DOUBLE", "`a` STRING"),
            Example(_csv_inferred("1."), "`a` DECIMAL(1, 0)", "`a` DOUBLE"),
        ),
    ),
    Row(
        INFERRED,
        "CSV: a column with a time in another form than `2024-01-02`, or `2024-01-02 03:04:05.6` with `Z`, an offset "
        "or no zone, is STRING; one of times without seconds, with a zone, is TIMESTAMP (for Spark STRING)",
        either(
            every(CSV, _inferred(("TIMESTAMP", "DATE"), ("STRING",)), _a_value(_is_odd_time)),
            every(CSV, _inferred(("STRING",), ("TIMESTAMP",)), _a_value(_is_without_seconds)),
        ),
        (
            Example(_csv_inferred("2024-01"), "`a` TIMESTAMP", "`a` STRING"),
            Example(_csv_inferred("2024-01-02 03:04Z"), "`a` STRING", "`a` TIMESTAMP"),
        ),
    ),
    Row(
        INFERRED,
        "JSON: whole numbers beyond 64 bits are DECIMAL(38, 0) (for Spark with their own digits)",
        every(JSON, lambda d: re.sub(r"DECIMAL\(\d+, 0\)", "DECIMAL(38, 0)", d.their) == d.our),
        (Example(_json_inferred('{"a":9223372036854775808}'), "`a` DECIMAL(19, 0)", "`a` DECIMAL(38, 0)"),),
    ),
    Row(
        INFERRED,
        'JSON: `""` makes a column STRING (nothing for Spark, as null), as do empty objects alone (left out by Spark)',
        every(JSON, text(r'""(?!:)|\{\}'), lambda d: "STRING" in d.our),
        (
            Example(_json_inferred('{"a":""}\n{"a":[1]}'), "`a` ARRAY<BIGINT>", "`a` STRING"),
            Example(_json_inferred('{"a":{},"b":1}'), "`b` BIGINT", "`a` STRING, `b` BIGINT"),
        ),
    ),
    Row(
        INFERRED,
        "JSON: columns are in order of appearance (for Spark, of name)",
        never,
        (Example(_json_inferred('{"b":1,"a":true}'), "`a` BOOLEAN, `b` BIGINT", "`b` BIGINT, `a` BOOLEAN"),),
    ),
    Row(
        INFERRED,
        "Parquet: FLOAT16 is FLOAT (refused by Spark)",
        every(formats("parquet"), lambda d: d.case.made is not None and "halffloat" in d.case.made.stored.values()),
        (
            Example(
                Case("parquet", None, made=Made("pyarrow", "a FLOAT", ((0.5,),), {"stored": {"a": "halffloat"}})),
                "",
                "`a` FLOAT",
            ),
        ),
    ),
    Row(
        INFERRED,
        "ORC: names with a backtick are whole (cut there by Spark)",
        every(formats("orc"), lambda d: d.case.made is not None and "``" in d.case.made.ddl),
        (Example(Case("orc", None, made=Made("pyarrow", "`a``b` INT", ((1,),))), "`a` INT", "`a``b` INT"),),
    ),
    # --- otherwise ---
    Row(
        OTHERWISE,
        "JSON: `Inf` and `-NaN` in a field that is not declared are ignored with it (for Spark a bad "
        "record). A bad record "
        "that is not UTF-8 is text with U+FFFD in the column of corrupt records (for Spark its bytes).",
        every(JSON, text(r"[:,\[]\s*(?:[+-]?Inf(?!inity)|-NaN)")),
        (Example(_json(f"a INT, {BAD}", '{"a":1,"z":Inf}'), 'null, \'{"a":1,"z":Inf}\'', "1, null"),),
    ),
    Row(
        OTHERWISE,
        "`encoding` of two or four bytes a character: lines end at characters (for Spark at any byte 0A "
        "or 0D, where no "
        "`lineSep` is set). text is decoded (Spark only looks for `lineSep`). JSON needs no `lineSep` "
        "(for Spark it does).",
        either(
            every(formats("csv"), _many_bytes),
            every(formats("text"), option("encoding")),
            lambda d: "requirement failed" in d.theirs.detail,
        ),
        (
            Example(_csv("a STRING", "x\ny".encode("utf-16-le"), encoding="UTF-16LE"), "'x' / '礀�'", "'x' / 'y'"),
            Example(Case("text", "value STRING", {"encoding": "ISO-8859-1"}, b"\xe4"), "'\\\\xe4'", "'ä'"),
            Example(_json("a INT", '{"a":1}', encoding="ISO-8859-1"), "(failed)", "1"),
        ),
    ),
    Row(
        OTHERWISE,
        "JSON with `encoding`: an object in a STRING column is the text as written; Spark drops its white space.",
        every(JSON, option("encoding"), text(r"[{\[]")),
        (
            Example(
                _json("a STRING", '{"a":{"x": 1}}', encoding="ISO-8859-1", lineSep="\n"), "'{\"x\":1}'", "'{\"x\": 1}'"
            ),
        ),
    ),
    Row(
        OTHERWISE,
        'CSV: an escape character right behind a closing quote (`"a"\\b`) is taken as written; Spark '
        "continues within the "
        "quotes.",
        every(CSV, lambda d: bool(d.case.parsed.quote) and d.case.parsed.quote + d.case.parsed.escape in d.text),
        (Example(_csv("a STRING", '"a"\\b'), "'a\"\\\\b'", "'\"a\"\\\\b'"),),
    ),
    Row(
        OTHERWISE,
        'CSV: a quoted field with more behind its closing quote (`"a\\"b"c`) is taken as written; Spark drops escape '
        "characters.",
        every(CSV, _has_escapes, _but_for_quotes),
        (
            Example(_csv("a STRING", '"a\\"b"c'), '\'"a"b"c\'', '\'"a\\\\"b"c\''),
            Example(_csv("a STRING", '"a\\\\"b'), "'\"a\\\\\"b'", "'\"a\\\\\\\\\"b'"),
        ),
    ),
    Row(
        OTHERWISE,
        "CSV: a second byte order mark, or one behind empty lines, is data (not for Spark).",
        every(CSV, _has_a_mark_that_is_data),
        (
            Example(_csv("a STRING", b"\xef\xbb\xbf\xef\xbb\xbfx"), "'x'", "'\\ufeffx'"),
            Example(_csv("a STRING", b"\n\xef\xbb\xbfx"), "'x'", "'\\ufeffx'"),
        ),
    ),
    Row(
        OTHERWISE,
        "CSV with `ignoreTrailingWhiteSpace` alone: white space is null (for Spark `''`, or it fails).",
        every(
            CSV,
            option("ignoreTrailingWhiteSpace", "true"),
            lambda d: d.case.options.get("ignoreLeadingWhiteSpace") != "true",
            lambda d: d.their == "''" if d.what == "cell" else bool(d.theirs.failure),
        ),
        (
            Example(
                _csv("a STRING, b STRING", "x, ", ignoreTrailingWhiteSpace="true", nullValue="-"),
                "'x', ''",
                "'x', null",
            ),
            Example(_csv("a STRING, b STRING", " ,x", ignoreTrailingWhiteSpace="true"), "(failed)", "null, 'x'"),
        ),
    ),
    Row(
        OTHERWISE,
        "CSV with `multiLine`: lines of white space are skipped (Spark: records); `\\r\\n` within quotes "
        "stays (Spark may make "
        "it `\\n`).",
        every(CSV, option("multiLine", "true"), text(r"(?:^|[\r\n])[\0- ]*(?:[\r\n]|$)|\r")),
        (Example(_csv("a STRING", "x\n \ny", multiLine="true"), "'x' / ' ' / 'y'", "'x' / 'y'"),),
    ),
    Row(
        OTHERWISE,
        "Compressed objects are known by their first bytes (Spark: by their suffix).",
        never,
        shown_by="tests/unit/formats/test_compression.py::test_where_a_name_and_the_bytes_disagree_the_bytes_win",
    ),
    Row(
        OTHERWISE,
        "[Archives](formats.md#archives) are always read (Spark from 4.3 on, with "
        "`spark.sql.files.archive.reader.enabled`, by "
        "their suffix). Spark also reads 7z, does not unpack members (`.gz`), and takes a tar that ends "
        "early as it is.",
        never,
        shown_by="tests/unit/formats/test_archives.py"
        "::test_members_are_read_one_after_another_whatever_the_archives_name",
    ),
    Row(
        OTHERWISE,
        "`FAILFAST` makes the object bad (Spark fails the query).",
        never,
        (Example(_csv("a INT", "x", mode="FAILFAST"), "(failed)", "(corrupt-object)"),),
    ),
)


def excuse(differs: Differs) -> str | None:
    """The sentence of the row that says why it differs; None where none does."""
    rows = (row for row in TABLE if (row.heading == INFERRED) == (differs.what == "type"))
    return next((row.sentence for row in rows if row.excuses(differs)), None)


def page() -> str:
    """The page docs/reference/parity.md without its head."""
    lines = ["Rows are those of Spark's own readers, but for this."]
    for heading, intro in HEADINGS.items():
        lines += ["", f"**{heading}**", *(["", intro] if intro else []), ""]
        for row in TABLE:
            if row.heading == heading:
                lines += textwrap.wrap(row.sentence, 116, initial_indent="- ", subsequent_indent="  ",
                                       break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return "\n".join(lines) + "\n"
