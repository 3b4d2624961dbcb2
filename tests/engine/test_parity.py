"""The same objects read by Spark's own reader and by ours: the same rows, or a difference that the docs list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from py4j.java_gateway import get_field, set_field
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import check_schema
from queue_source.options import parse_reader_options
from queue_source.read.objects import read_object
from queue_source.spark.compat import arrow_schema
from support.reading import UTC_MICROS, moments_around
from support.sessions import LEAST

pytestmark = pytest.mark.engine

ZONE = "Europe/Berlin"
BAD = "_corrupt_record STRING"
ABC = f"a INT, b STRING, c DOUBLE, {BAD}"


@pytest.fixture(scope="module", autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    own = {"spark.sql.session.timeZone": ZONE, "spark.sql.files.openCostInBytes": "0"}  # many files a task
    before = {name: str(spark.conf.get(name)) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def of_spark(spark: SparkSession, paths: list[Path], file_format: str, ddl: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format(file_format).schema(ddl).options(**options).load([str(path) for path in paths])


def shown(table: pa.Table) -> list[str]:
    """Rows as text, which tells -0.0 from 0.0, and in which NaN is NaN; times as numbers, since Spark's know no end."""
    for place, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            number = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            table = table.set_column(place, field.name, table.column(place).cast(number))
    return sorted(repr(row) for row in table.to_pylist())


def parsed(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def read_ours(paths: list[Path], file_format: str, ddl: str, options: dict[str, str]) -> tuple[pa.Table, int]:
    given = {**LEAST, "fileFormat": file_format, **options}
    if file_format in ("csv", "json"):
        given.setdefault("timeZone", ZONE)
    options_of_format = parse_reader_options(given).content.format
    assert options_of_format is not None
    schema = arrow_schema(parsed(ddl))
    check_schema(schema, options_of_format)
    batches: list[pa.RecordBatch] = []
    bad = 0
    for path in paths:
        problems = BadRecords(options_of_format.mode)
        batches += read_object(str(path), schema, options_of_format, problems)
        bad += problems.count
    return pa.Table.from_batches(batches, schema), bad


def compared(
    spark: SparkSession, paths: list[Path], file_format: str, ddl: str, options: dict[str, str]
) -> tuple[list[str], list[str], int]:
    """Spark's rows, ours, and how many of ours were bad."""
    ours, bad = read_ours(paths, file_format, ddl, options)
    theirs = of_spark(spark, paths, file_format, ddl, options).toArrow()
    return shown(theirs.cast(ours.schema)), shown(ours), bad


CSV_LINES = [
    "1,x,1.5", "1,x", "1,x,1.5,z", "q,x,1", '"1","x","2"', '1,"x,2', '1,"x"y,2', '1,x"y,2', '1, "x" ,2', '1,"x" ,2',
    '1,"a\\"b",2', '1,"a\\\\",2', '1,"a\\n",2', '1,\\"a,2', "+1,x,+2", ",,", "1.0,x,1e3", '"",x,', '1,"",2',
    '1,"a"b"c",2', '1,"a,"b",2', '1,""a"",2', "1,x,NaN", "1,x,Inf", "1,x,-Inf", "1,x,Infinity", "1,x,0x10", "1,\0,2",
    "99999999999,x,2", "1,x,1e400", "   ", "1,ä🦆,-0.0", "0x10,x,1", "x", '"', '""', '1,"\\,2', "1,x,.5", "1,x,5.",
    "01,x,1", "-0,x,1", "1,x,1_0", "1_0,x,1", "1, ,2",
]  # fmt: skip
JSON_LINES = [
    '{"a":1,"b":"x"}', '{"a":"q","b":"x"}', '{"a":1', "null", "[]", '[{"a":1},{"a":2}]', '"t"', "1", '{"a":1.0,"b":1}',
    '{"a":null}', '{"a":01}', '{"a":1,}', "NaN", '{"a":2147483648}', '{"c":NaN}', '{"c":"NaN"}', '{"c":-Infinity}',
    '{"c":"Infinity"}', '{"c":1e400}', '{"c":-0.0}', '{"c":"1.5"}', '{"c":true}', '{"b":true}', '{"b":{"x":[1.5]}}',
    '{"b":[]}', '{"b":1.50e3}', '{"A":1,"b":"x"}', '{"a":1,"a":2}', "  ", '{"b":"\\u00e9\\ud83d\\ude00"}', '{"a":""}',
    '{"a":"1"}', '{"a":[1]}', '{"b":"x\ty"}', "{]", '[{"a":1},3]', '{"a":{"a":1}}', '{"a":true}', '{"c":"-INF"}',
    '{"c":1}', '{"b":null,"c":null}',
]  # fmt: skip
TIMES = [
    "2013", "2013-2", "2013-1-2", "2013-01-01T05:00", "2013-01-01 05:00:00 Europe/Berlin", "2013-01-01T5:0:0+1",
    " 2013-01-01 ", "epoch", "2013-02-30", "2013-01-01x", "2013-07-01 12:00:00", "2013-07-01T12:00:00Z",
    "2013-01-01T05:00:00.1", "2013-01-01T05:00:00.123456789", "2013-01-01T05:00:00UTC", "2013-01-01T05:00:00 +01:00",
    "2013-01-01T24:00:00", "0001-01-01", "9999-12-31T23:59:59.999999Z", "2013-01-01T", "2013-01-01T05", "x", "20130101",
    "2013-01-01T05:00:00+0130", "2013-01-01T05:00:00GMT+2", "2013-10-27 02:30:00", "2013-01-01 05:00:60",
    "1582-10-10", "2013-01-01T05:00:00-18:00", "2013-01-01T05:00:00.",
]  # fmt: skip
DECIMALS = ["1.256", "1000", "1e2", ".5", "5.", "-1.255", "NaN", "999.994", "999.995", "0.001", "x", "-0", "1e-9", "12"]


def quoted(key: str, values: list[str]) -> list[str]:
    return [f'{{"{key}":"{value}"}}' for value in values]


CASES: dict[str, tuple[str, str, list[str], dict[str, str]]] = {
    "csv": ("csv", ABC, CSV_LINES, {}),
    "csv, malformed dropped": ("csv", ABC, CSV_LINES, {"mode": "DROPMALFORMED"}),
    "csv, null value": ("csv", ABC, [*CSV_LINES, "NA,NA,NA", '"NA","NA",1'], {"nullValue": "NA"}),
    "csv, empty value": ("csv", ABC, CSV_LINES, {"emptyValue": "E"}),
    "csv, other characters": (
        "csv", ABC, ["1|'a|b'|2", "1|'a^'b'|2", "#no", "1|#x|2", "1|\"x|2"],
        {"sep": "|", "quote": "'", "escape": "^", "comment": "#"},
    ),
    "csv, no quote": ("csv", ABC, ['1,"x",2', '1,",2'], {"quote": ""}),
    "csv, spaces": (
        "csv", ABC, [" 1 , x ,2", '1, "x" ,2', "1,\t,2", " ,,"],
        {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"},
    ),
    "csv, leading spaces": ("csv", ABC, ["1, x ,2", '1, "x" ,2'], {"ignoreLeadingWhiteSpace": "true"}),
    "csv, header": ("csv", ABC, ["a,b,c", "1,x,2", "a,b,c"], {"header": "true"}),
    "csv, infinities": (
        "csv", ABC, ["1,-,-", "1,x,oo", "1,x,-oo"], {"nanValue": "-", "positiveInf": "oo", "negativeInf": "-oo"},
    ),
    "csv, several lines": ("csv", ABC, ['1,"x\ny",2', '1,"a\\"\nb",2', "3,x,4"], {"multiLine": "true"}),
    "csv, several lines and a stray quote": (
        "csv", "a STRING, b STRING", ['1,5" pipe', "2,y", '3,"a"b', '"x\ny"q",4', "5,C:\\", "6,z"],
        {"multiLine": "true"},
    ),
    "csv, several lines of one column": ("csv", "a STRING", ["x", '5" pipe', "y", "z"], {"multiLine": "true"}),
    "csv, several lines and comments": (
        "csv", "a STRING, b STRING", ['# sizes 5" pipes', "1,x", '#"', '2,"y', '#y"', "3,z"],
        {"multiLine": "true", "comment": "#"},
    ),
    "csv, line separator": ("csv", "a INT, b STRING", ["1,x;2,y\nz;3,"], {"lineSep": ";"}),
    "csv, decimals": ("csv", f"d DECIMAL(5,2), {BAD}", DECIMALS, {}),
    "csv, timestamps": ("csv", f"t TIMESTAMP, {BAD}", TIMES, {}),
    "csv, timestamps without zone": ("csv", f"t TIMESTAMP_NTZ, {BAD}", TIMES, {}),
    "csv, dates": ("csv", f"t DATE, {BAD}", [*TIMES, "2013-01-01 x"], {}),
    "csv, booleans": ("csv", f"a BOOLEAN, {BAD}", ["true", "False", "tRUE", "1", "yes", "t"], {}),
    "csv, integers": (
        "csv", f"a TINYINT, b SMALLINT, c BIGINT, {BAD}",
        ["127,1,1", "128,32767,1", "-129,-32769,-9223372036854775809"], {},
    ),
    "csv, binary": ("csv", f"a BINARY, b FLOAT, {BAD}", ["x,1.1", "aGk=,3.5e38", "ä,1e-50"], {}),
    "csv, date format": (
        "csv", f"t DATE, {BAD}", ["31.01.2013", "1.2.2013", "31.02.2013", "2013-01-01"], {"dateFormat": "d.MM.yyyy"},
    ),
    "csv, timestamp format": (
        "csv", f"t TIMESTAMP, {BAD}", ["31.01.2013 05:06", "31.01.2013 05:06:07", "1.1.2013 05:06"],
        {"timestampFormat": "dd.MM.yyyy HH:mm"},
    ),
    "json": ("json", ABC, JSON_LINES, {}),
    "json, malformed dropped": ("json", ABC, JSON_LINES, {"mode": "DROPMALFORMED"}),
    "json, decimals": (
        "json", f"d DECIMAL(5,2), {BAD}", [*quoted("d", DECIMALS), '{"d":1.256}', '{"d":1000}', '{"d":1}'], {},
    ),
    "json, timestamps": (
        "json", f"t TIMESTAMP, {BAD}", [*quoted("t", TIMES), '{"t":1}', '{"t":-1}', '{"t":1.5}', '{"t":true}'], {},
    ),
    "json, timestamps without zone": ("json", f"t TIMESTAMP_NTZ, {BAD}", [*quoted("t", TIMES), '{"t":1}'], {}),
    "json, dates": (
        "json", f"t DATE, {BAD}", quoted("t", [*(time for time in TIMES if time != "20130101"), "2013-01-01 x"]), {},
    ),
    "json, timestamp format": (
        "json", f"t TIMESTAMP, {BAD}", quoted("t", ["2013-01-31T05:06:07+01:00", "2013-01-31T05:06:07Z", "2013-01-31"]),
        {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ssXXX"},
    ),
    "json, binary and booleans": (
        "json", f"a BINARY, b BOOLEAN, {BAD}",
        ['{"a":"!!"}', '{"a":"aGk="}', '{"a":"aGk"}', '{"b":"true"}', '{"b":1}', '{"b":true}'], {},
    ),
    "json, integers": (
        "json", f"a TINYINT, b SMALLINT, c BIGINT, d FLOAT, {BAD}",
        ['{"a":127}', '{"a":-128,"b":1}', '{"b":32768}', '{"c":9223372036854775808}', '{"d":1.1}',
         '{"d":1e39}', '{"c":1e3}'], {},
    ),
    "json, nested": (
        "json", f"s STRUCT<x: INT, y: INT>, l ARRAY<INT>, o ARRAY<STRUCT<x: INT, y: INT>>, m MAP<STRING,INT>, {BAD}",
        ['{"s":{"x":"q","y":1},"l":[1,"q",2],"m":{"k":"q","n":1}}', '{"s":1,"l":1,"m":1}', '{"l":[{}]}',
         '{"o":[null,1]}',
         '{"s":{"x":1,"y":1},"l":[[]],"m":[]}', '{"o":[{"x":"q","y":1},{"x":2}]}', '{"m":{"a":1,"b":null}}', '{"l":[]}',
         '{"l":[null,1],"m":{},"s":{},"o":[{}]}', '{"s":null,"l":null}', '{"s":{"X":1}}'], {},
    ),
    "json, document": ("json", ABC, ['[{"a":1},', '{"b":"x"}]'], {"multiLine": "true"}),
    "json, bad document": ("json", ABC, ['[{"a":1},', '{"a":"q","b":"x"},3]'], {"multiLine": "true"}),
    "json, cut document": ("json", ABC, ['[{"a":1},', '{"b":"x"'], {"multiLine": "true"}),
    "json, line separator": ("json", ABC, ['{"a":1};{"a":\n2}'], {"lineSep": ";"}),
    "json, corrupt column of another name": (
        "json", "a INT, bad STRING", ['{"a":1}', "x"], {"columnNameOfCorruptRecord": "bad"},
    ),
    "json, no corrupt column": ("json", "a INT, b STRING", ['{"a":1}', "x", '{"a":"q","b":"y"}'], {}),
    "json, objects as text": (
        "json", f"a STRING, b INT, {BAD}",
        ['{"a":{"x": [1.50, "q" ] ,"x":2},"b":1}', '{"a":[ {"k" : 1} ],"b":2}', "{'a':'x','b':1}", "{'a':{'x':'y'}}",
         '{"a":NaN}', '{"a":-INF,"b":1}', '{"a":INF}', '{"a":.5}', '{"a":+1}', '{"a":"it\\\'s"}'], {},
    ),
    "json, repeated keys": (
        "json", f"m MAP<STRING,INT>, i INT, s STRUCT<x: INT>, {BAD}",
        ['{"m":{"k":1,"k":2}}', '{"m":{"k":1,"k":"q"}}', '{"m":{"k":1},"m":{"j":2}}', '{"i":1,"i":"x"}',
         '{"i":"x","i":1}', '{"i":1,"i":null}', '{"s":{"x":1,"x":"q"}}', '[{"i":1},{"i":"x"},{"i":2}]',
         '[{"i":1},null]'], {},
    ),
    "json, odd numbers": (
        "json", f"d DECIMAL(10,2), f DOUBLE, {BAD}",
        ['{"d":"1,234.50"}', '{"d":" 12"}', '{"d":"12 "}', '{"d":"1,"}', '{"d":","}', '{"d":"+5"}', '{"d":NaN}',
         '{"f":Inf}', '{"f":-Inf}', '{"f":-INF}', '{"f":+Infinity}', '{"f":+INF}', '{"f":INF}', '{"f":-NaN}',
         '{"f":"+INF"}', '{"f":"INF"}'], {},
    ),
    "json, depth and length": (
        "json", f"a STRING, {BAD}",
        ['{"a":%s}' % ("[" * depth + "]" * depth) for depth in (480, 998, 999, 1001, 40_000)]
         + ['{"z":%s,"a":1}' % ("[" * depth + "]" * depth) for depth in (480, 998, 999, 1000, 40_000)]
         + ['{"a":%s}' % ("1" * count) for count in (1000, 1001)], {},
    ),
    "json, base64": (
        "json", f"x BINARY, {BAD}",
        ['{"x":"aGk=\\n"}', '{"x":" aGk="}', '{"x":"aG k="}', '{"x":"aGkh\\naGk="}', '{"x":"YQ=="}', '{"x":"YQ="}'], {},
    ),
    **{
        f"{name}, zones": (
            name, f"t TIMESTAMP, {BAD}",
            [form % f"2020-07-01T12:00:00{zone}" for zone in (
                "PST", "IST", "JST", "BST", "+5:3", "+05:3", "+5:30", "z", "+18:30", "+19:00", "+18:00", "-18:00",
                "-18:01", "+0530", "+053015", "+05:30:15", "GMT+5", "UTC+05:30", "UT-3", "EST", "EST5EDT", "HST", "MST",
                "europe/berlin", "Asia/Calcutta", "+05:60",
            )], {},
        )
        for name, form in (("csv", "%s"), ("json", '{"t":"%s"}'))
    },
    "csv, tabs": ("csv", "a STRING, b STRING, c STRING", ['"x"\t\ty', '"x" \ty\tz', "\t\t", "a"], {"sep": "\t"}),
    "csv, a name twice": ("csv", "a0 INT, b INT, a2 INT", ["", "  ", "a,b,a", "1,2,3"], {"header": "true"}),
    "csv, marks": ("csv", f"b INT, {BAD}", ["1", "\ufeff2"], {}),
    "csv, thousands": ("csv", f"d DECIMAL(10,2), {BAD}", ['"1,234.50"', '"1,"', '","'], {}),
    "json, marks": ("json", f"a INT, {BAD}", ['\ufeff{"a":1}', '\ufeff{"a":2}', '{"a":3}'], {}),
    "text, BZh": ("text", "value STRING", ["BZhello", "BZh9"], {}),
    "text, marks": ("text", "value STRING", ["\ufeffa", "\ufeffb"], {"wholeText": "true"}),
    "text": ("text", "value STRING", ["a", "", " b\t", 'ä"🦆', "c"], {}),
    "text, line separator": ("text", "value STRING", ["a;;b", "c"], {"lineSep": ";"}),
    "text, whole": ("text", "value STRING", ["a", "", "b"], {"wholeText": "true"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "end"), [*((case, "\n") for case in CASES), ("csv", "\r\n"), ("json", "\r\n"), ("text", "\r")]
)
def test_text_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path, case: str, end: str) -> None:
    file_format, ddl, lines, options = CASES[case]
    # one file a line, so that a difference shows one line; and all of them in one
    paths = []
    if "multiLine" not in options and "header" not in options and "wholeText" not in options:
        for number, line in enumerate(lines):
            paths.append(tmp_path / f"{number:03}")
            paths[-1].write_bytes(f"{line}{end}".encode())
    whole = tmp_path / "whole"
    whole.write_bytes(end.join(lines).encode())
    theirs, ours, _ = compared(spark, [*paths, whole], file_format, ddl, options)
    assert ours == theirs


SINGLES = "a INT, b STRING"
NUMBERS = {"nan": float("nan")}
DIFFERENCES: list[tuple[str, str, str, dict[str, str], list[str], list[str]]] = [
    # what Spark reads and drops or changes without a word: here it is a bad record
    ("json", f"{SINGLES}, {BAD}", '{"a":1} x', {}, ["(1, None, None)"], ["(None, None, '{\"a\":1} x')"]),
    ("json", f"{SINGLES}, {BAD}", '{"a":1}{"a":2}', {}, ["(1, None, None)"], ["(None, None, '{\"a\":1}{\"a\":2}')"]),
    ("json", f"a TINYINT, {BAD}", '{"a":128}', {}, ["(-128, None)"], ["(None, '{\"a\":128}')"]),
    ("json", f"a DATE, {BAD}", '{"a":"100"}', {}, ["(100, None)"], ["(None, '{\"a\":\"100\"}')"]),
    ("json", f"b STRING, {BAD}", '{"b":"\\ud800"}', {}, ["('?', None)"], ["(None, '{\"b\":\"\\\\ud800\"}')"]),
    ("csv", f"{SINGLES}, {BAD}", '1,"x', {}, ["(1, 'x', None)"], ["(1, 'x', '1,\"x')"]),
    ("csv", f"{SINGLES}, {BAD}", "1,\udcff", {}, ["(1, '\ufffd', None)"], ["(1, '\ufffd', '1,\ufffd')"]),
    # what is read here and not by Spark, because nothing is lost
    ("csv", f"{SINGLES}, {BAD}", " 1 ,x", {}, ["(None, 'x', ' 1 ,x')"], ["(1, 'x', None)"]),
    ("csv", f"a DOUBLE, {BAD}", "nan", {}, ["(None, 'nan')"], ["(nan, None)"]),
    ("csv", SINGLES, '1,"x""y"', {}, ["(1, '\"x\"\"y\"')"], ["(1, 'x\"y')"]),
    # what Spark reads and is not read here
    ("csv", f"a DOUBLE, {BAD}", "1.5d", {}, ["(1.5, None)"], ["(None, '1.5d')"]),
    ("csv", f"a TIMESTAMP, {BAD}", "+12013-01-01", {}, ["(316926514800000000, None)"], ["(None, '+12013-01-01')"]),
    # columns are matched by the names of the header
    ("csv", SINGLES, "b,a\nx,1", {"header": "true"}, ["(None, '1')"], ["(1, 'x')"]),
]  # fmt: skip


@pytest.mark.parametrize(("file_format", "ddl", "line", "options", "sparks", "own"), DIFFERENCES)
def test_the_differences_are_those_that_the_docs_list(
    spark: SparkSession, tmp_path: Path, file_format: str, ddl: str, line: str, options: dict[str, str],
    sparks: list[str], own: list[str],
) -> None:  # fmt: skip
    path = tmp_path / "object"
    path.write_bytes(line.encode("utf-8", "surrogateescape"))
    theirs, ours, _ = compared(spark, [path], file_format, ddl, options)
    # NaN is no name of Python's, and equals nothing
    assert [repr(tuple(eval(row, NUMBERS).values())) for row in theirs] == [repr(eval(row, NUMBERS)) for row in sparks]
    assert [repr(tuple(eval(row, NUMBERS).values())) for row in ours] == [repr(eval(row, NUMBERS)) for row in own]


@pytest.mark.parametrize("at", ["{", "["], ids=["objects", "arrays"])
def test_a_text_of_too_many_levels_is_a_bad_record_without_values(spark: SparkSession, tmp_path: Path, at: str) -> None:
    """Spark gives columns of it, of which one may be a bracket that stands for the text: on the page of differences."""
    text = '{"k":' * 1000 + "1" + "}" * 1000 if at == "{" else "[" * 1000 + "]" * 1000
    line = f'{{"b":1,"a":{text}}}'
    path = tmp_path / "object"
    path.write_text(line)
    ddl = f"a STRING, b INT, {BAD}"
    ours, bad = read_ours([path], "json", ddl, {})
    assert (ours.to_pylist(), bad) == ([{"a": None, "b": None, "_corrupt_record": line}], 1)
    (theirs,) = of_spark(spark, [path], "json", ddl, {}).toArrow().to_pylist()
    assert (theirs["b"], theirs["_corrupt_record"]) == (1, line)
    assert theirs["a"] in ((None,) if at == "{" else ("[", "]"))


def test_packed_text_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(5000).selectExpr("id a", "concat('x', id) b").coalesce(1)
    for codec in ("gzip", "bzip2", "lz4", "snappy", "deflate"):
        folder = tmp_path / codec
        frame.write.option("compression", codec).csv(folder.as_uri())
        (path,) = folder.glob("part-*")
        theirs, ours, bad = compared(spark, [path], "csv", SINGLES, {})
        assert (ours == theirs, bad, len(ours)) == (True, 0, 5000), codec


TYPED = """
    SELECT true bool, 127Y tiny, -32768S small, 2147483647 whole, -9223372036854775808 big, float('NaN') single,
      double('-Infinity') double, cast('-12345678901234567.891' AS DECIMAL(20, 3)) exact, 'ä 🦆' text, X'00FF' bytes,
      DATE'1582-10-15' day, TIMESTAMP'1900-01-01 00:00:00.000001' moment,
      TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' wall, array(1, null) many, map('k', 1L, 'n', null) named,
      named_struct('a', 1, 'b', array(named_struct('c', cast(null AS STRING)))) pair
    UNION ALL SELECT false, -128Y, 0S, 0, 0L, float(1.5), double(1e-300), cast(0 AS DECIMAL(20, 3)), '', X'',
      DATE'9999-12-31', TIMESTAMP'2026-03-08 03:30:00', TIMESTAMP_NTZ'2026-03-08 02:30:00', array(), map(), null
    UNION ALL SELECT null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
"""


@pytest.mark.parametrize("file_format", ["parquet", "orc", "json"])
def test_every_type_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    frame = spark.sql(TYPED).coalesce(1)
    frame.write.format(file_format).save((tmp_path / "in").as_uri())
    (path,) = (tmp_path / "in").glob("part-*")
    ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    # missing, in another order, in another case (which JSON tells apart), widened
    other = "wall TIMESTAMP_NTZ, no STRING, TEXT STRING, whole BIGINT, single DOUBLE"
    for declared in (ddl, other if file_format != "json" else "no STRING, text STRING, whole BIGINT"):
        theirs, ours, bad = compared(spark, [path], file_format, declared, {})
        assert ours == theirs
        assert (len(ours), bad) == (3, 0)


def test_columns_of_the_path_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        """
        SELECT 1 a, DATE'2020-01-01' day, 'a b/c=ä%' s, -7 n, TIMESTAMP'2020-07-01 12:00:00.5' t
        UNION ALL SELECT 2, null, null, null, null
        """
    )
    columns = ["day", "s", "n", "t"]
    frame.coalesce(1).write.partitionBy(*columns).json((tmp_path / "in").as_uri())
    ddl = "a INT, day DATE, s STRING, n INT, t TIMESTAMP"
    paths = [path for path in (tmp_path / "in").rglob("part-*") if path.is_file()]
    ours, bad = read_ours(paths, "json", ddl, {"partitionColumns": ",".join(columns)})
    theirs = spark.read.schema(ddl).json((tmp_path / "in").as_uri()).select(*ours.schema.names)
    assert shown(ours) == shown(theirs.toArrow().cast(ours.schema)) == shown(frame.toArrow().cast(ours.schema))
    assert bad == 0


@pytest.mark.parametrize("file_format", ["csv", "json", "text", "parquet", "orc", "binaryFile"])
def test_an_empty_object_is_no_rows_as_in_spark(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    path = tmp_path / "empty"
    path.touch()
    ddl = {"text": "value STRING", "binaryFile": "length BIGINT"}.get(file_format, SINGLES)
    ours, bad = read_ours([path], file_format, ddl, {})
    read = spark.read.format(file_format)
    theirs = (read if file_format == "binaryFile" else read.schema(ddl)).load(str(path))
    assert (theirs.count(), ours.num_rows, bad) == (0, 0, 0)


def test_binary_files_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a b"
    path.write_bytes(b"\0\xff")
    os.utime(path, (1_700_000_000, 1_700_000_000.25))
    ddl = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
    (row,) = spark.read.format("binaryFile").load(str(path)).collect()
    ours, _ = read_ours([path], "binaryFile", ddl, {})
    (own,) = ours.to_pylist()
    assert (own["length"], own["content"]) == (row["length"], bytes(row["content"]))
    assert own["modificationTime"].timestamp() == row["modificationTime"].timestamp()


OLD = """
    SELECT DATE'0001-01-01' first, DATE'1500-03-01' old, DATE'1582-10-04' last, TIMESTAMP'1890-03-01 12:00:00' local,
      TIMESTAMP'1700-03-01 12:00:00.000001' moment, TIMESTAMP'2020-10-25 00:30:00' once,
      TIMESTAMP'2020-10-25 01:30:00' twice,
      TIMESTAMP'1970-01-01 00:00:00.5' start, TIMESTAMP'1969-12-31 23:59:59.25' before,
      array(DATE'1400-01-01', null) many, map('k', TIMESTAMP'2021-01-01 00:00:00') named,
      named_struct('x', DATE'1000-02-28') pair, CAST('x' AS CHAR(3)) fixed
"""
REBASED = {
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
}


@contextmanager
def in_zone(spark: SparkSession, jvm: str, **own: str) -> Iterator[None]:
    """The JVM's own zone, in which ORC and INT96 are written, and settings of the session."""
    zones = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    kept = {name: spark.conf.get(name, None) for name in own}
    zones.setDefault(zones.getTimeZone(jvm))
    try:
        for name, value in own.items():
            spark.conf.set(name, value)
        yield
    finally:
        zones.setDefault(before)
        for name, text in kept.items():
            spark.conf.unset(name) if text is None else spark.conf.set(name, text)


@pytest.mark.parametrize("jvm", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
def test_old_days_and_zones_of_typed_files_are_those_of_spark(spark: SparkSession, tmp_path: Path, jvm: str) -> None:
    own = {"spark.sql.session.timeZone": "UTC", "spark.sql.parquet.outputTimestampType": "INT96", **REBASED}
    with in_zone(spark, jvm, **own):
        for file_format, kind in (("orc", "INT96"), ("parquet", "INT96"), ("parquet", "TIMESTAMP_MICROS")):
            spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
            folder = tmp_path / f"{file_format}-{kind}"
            frame = spark.sql(OLD).coalesce(1)
            frame.write.format(file_format).save(folder.as_uri())
            (path,) = folder.glob("part-*")
            ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
            theirs = of_spark(spark, [path], file_format, ddl.replace("char(3)", "STRING"), {}).toArrow()
            ours, bad = read_ours([path], file_format, ddl.replace("char(3)", "STRING"), {})
            assert ours.equals(theirs.cast(ours.schema)), (file_format, kind, ours, theirs)
            assert (ours.num_rows, bad) == (1, 0)


def moments_of_zone(zone: str) -> list[int]:
    """Where a wrong zone, or a wrong idea of which moments are before 1970, would show."""
    hours = [int(datetime(year, 1, 1, tzinfo=timezone.utc).timestamp()) + 3600 * n
             for year in (1969, 2020) for n in range(8760)]  # fmt: skip
    offsets = [datetime.fromtimestamp(hour, ZoneInfo(zone)).utcoffset() or timedelta() for hour in hours]
    changes = [hour for hour, one, next_one in zip(hours, offsets, offsets[1:], strict=False) if one != next_one]
    ahead = [int(offset.total_seconds()) for offset in set(offsets)]
    around_1970 = [one for offset in ahead for one in (offset, -offset, offset // 2, -offset // 2)]
    of_2015 = int(datetime(2015, 1, 1, tzinfo=ZoneInfo(zone)).timestamp())
    return moments_around(0, of_2015, 1_420_070_400, *around_1970, *(hour + 3600 for hour in changes))


ZONES = ["UTC", "America/Los_Angeles", "Asia/Kolkata", "Europe/Berlin", "Australia/Sydney"]


@pytest.mark.parametrize("vectorized", ["true", "false"])
@pytest.mark.parametrize("jvm", ZONES)
def test_fractions_of_seconds_in_orc_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, jvm: str, vectorized: str
) -> None:
    moments = moments_of_zone(jvm)
    with in_zone(spark, jvm, **{"spark.sql.orc.enableVectorizedReader": vectorized}):
        frame = spark.createDataFrame(list(enumerate(moments)), "i INT, m BIGINT").selectExpr(
            "i", "timestamp_micros(m) t", "array(timestamp_micros(m)) l"
        )
        frame.coalesce(1).write.orc((tmp_path / "in").as_uri())
        (path,) = (tmp_path / "in").glob("part-*")
        theirs, ours, bad = compared(spark, [path], "orc", "i INT, t TIMESTAMP, l ARRAY<TIMESTAMP>", {})
    assert [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]] == []
    assert (len(ours), bad) == (len(moments), 0)


@pytest.mark.parametrize("jvm", ZONES)
def test_fractions_of_seconds_with_local_time_zone_in_orc_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, jvm: str
) -> None:
    """Spark reads the type and does not write it: ORC itself does, as other programs in Java do."""
    classes = spark._jvm
    assert classes is not None
    moments = moments_of_zone(jvm)
    path = tmp_path / "file.orc"
    with in_zone(spark, jvm):
        library = classes.org.apache.orc
        schema = library.TypeDescription.fromString("struct<i:int,t:timestamp with local time zone>")
        options = library.OrcFile.writerOptions(spark._jsc.hadoopConfiguration()).setSchema(schema)
        writer = library.OrcFile.createWriter(classes.org.apache.hadoop.fs.Path(path.as_uri()), options)
        batch = schema.createRowBatch(len(moments))
        numbers, times = get_field(batch, "cols")
        values = get_field(numbers, "vector")
        for n, moment in enumerate(moments):
            values[n] = n
            stamp = classes.java.sql.Timestamp(moment // 1000)
            stamp.setNanos(moment % 1_000_000 * 1000)
            times.set(n, stamp)
        set_field(batch, "size", len(moments))
        writer.addRowBatch(batch)
        writer.close()
        theirs, ours, bad = compared(spark, [path], "orc", "i INT, t TIMESTAMP", {})
    assert [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]] == []
    assert (len(ours), bad) == (len(moments), 0)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), UTC_MICROS], ids=str)
def test_fractions_of_seconds_of_pyarrow_in_orc_are_those_of_spark_where_it_can_read_them(
    spark: SparkSession, tmp_path: Path, kind: pa.DataType
) -> None:
    moments = moments_of_zone("Europe/Berlin")
    before = [moment for moment in moments if moment < 0 and moment % 1_000_000]
    after = [moment for moment in moments if moment not in before]
    for name, some in (("before", before), ("after", after)):
        orc.write_table(pa.table({"t": pa.array(some, kind)}), tmp_path / name)
    with in_zone(spark, "UTC"):
        theirs, ours, bad = compared(spark, [tmp_path / "after"], "orc", "t TIMESTAMP", {})
        assert (ours, bad, len(ours)) == (theirs, 0, len(after))
        # on the page of differences
        with pytest.raises(Py4JJavaError, match="nanos > 999999999 or < 0"):
            of_spark(spark, [tmp_path / "before"], "orc", "t TIMESTAMP", {}).toArrow()
    found, bad = read_ours([tmp_path / "before"], "orc", "t TIMESTAMP", {})
    assert (found["t"].cast(pa.int64()).to_pylist(), bad) == (before, 0)


def test_int96_of_any_year_in_typed_files_is_that_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    name = "spark.sql.parquet.outputTimestampType"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "INT96")
    try:
        rows = "SELECT explode(array(TIMESTAMP'9999-12-31 23:59:59.999999', TIMESTAMP'0001-01-01 00:00:00')) t"
        spark.sql(rows).coalesce(1).write.parquet((tmp_path / "typed").as_uri())
    finally:
        spark.conf.set(name, before)
    (path,) = (tmp_path / "typed").glob("part-*")
    theirs, ours, bad = compared(spark, [path], "parquet", "t TIMESTAMP", {})
    assert (ours, bad, len(ours)) == (theirs, 0, 2)


AVRO_KINDS: dict[str, tuple[object, list[object]]] = {
    "numbers": (["int", "long"], [1, 2**40]),
    "halves": (["null", "float", "double"], [1.5, None]),
    "kinds": (["null", "string", {"type": "int", "logicalType": "date"}], ["x", 5, None]),
    "days": ({"type": "int", "logicalType": "date"}, [-800_000, 2_932_896]),
    "moments": ({"type": "long", "logicalType": "timestamp-micros"}, [-63 * 10**15, 253_402_300_799_999_999]),
    "thousandths": ({"type": "long", "logicalType": "timestamp-millis"}, [-1, 253_402_300_799_999]),
    "walls": ({"type": "long", "logicalType": "local-timestamp-micros"}, [0, -1]),
    "ids": ({"type": "string", "logicalType": "uuid"}, ["8a2f5c1e-1111-4222-8333-444455556666"]),
    "few": ({"type": "enum", "name": "few", "symbols": ["P", "Q"]}, ["Q"]),
    "fixed": ({"type": "fixed", "name": "fixed", "size": 2}, [b"xy"]),
    "lists": ({"type": "array", "items": ["null", "string"]}, [["x", None], []]),
    "maps": ({"type": "map", "values": "double"}, [{"k": 0.5}, {}]),
}


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_types_of_typed_avro_are_those_of_spark(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    fastavro = pytest.importorskip("fastavro", reason="the extra avro is not installed")
    for name, (kind, values) in AVRO_KINDS.items():
        point = {"type": "record", "name": "point", "fields": [{"name": "x", "type": kind}]}
        fields = [{"name": "a", "type": point}, {"name": "b", "type": "point"}]
        path = tmp_path / f"{name}.avro"
        schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
        with path.open("wb") as file:
            fastavro.writer(file, schema, [{"a": {"x": one}, "b": {"x": one}} for one in values], codec=codec)
        frame = spark.read.format("org.apache.spark.sql.avro.AvroFileFormat").load(str(path))
        ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
        ours, bad = read_ours([path], "avro", ddl, {})
        assert ours.equals(frame.toArrow().cast(ours.schema)), name
        assert (ours.num_rows, bad) == (len(values), 0)
