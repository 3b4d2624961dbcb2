"""The same objects read by Spark's own reader and by ours: the same rows. Meant differences: the oracle's table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.parity import compared, of_comparison, of_spark, read_ours, shown

pytestmark = pytest.mark.engine

BAD = "_corrupt_record STRING"
ABC = f"a INT, b STRING, c DOUBLE, {BAD}"


@pytest.fixture(scope="module", autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    with of_comparison(spark):
        yield


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
    '{"b":[]}', '{"b":1.50e3}', '{"Z":1,"b":"x"}', '{"a":1,"a":2}', "  ", '{"b":"\\u00e9\\ud83d\\ude00"}', '{"a":""}',
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
         '{"l":[null,1],"m":{},"s":{},"o":[{}]}', '{"s":null,"l":null}', '{"s":{"Z":1}}'], {},
    ),
    "json, document": ("json", ABC, ['[{"a":1},', '{"b":"x"}]'], {"multiLine": "true"}),
    "json, bad document": ("json", ABC, ['[{"a":1},', '{"a":"q","b":"x"},3]'], {"multiLine": "true"}),
    "json, cut document": ("json", ABC, ['[{"a":1},', '{"b":"x"'], {"multiLine": "true"}),
    "json, line separator": ("json", ABC, ['{"a":1};{"a":\n2}'], {"lineSep": ";"}),
    "json, corrupt column of another name": (
        "json", "a INT, bad STRING", ['{"a":1}', "x"], {"columnNameOfCorruptRecord": "bad"},
    ),
    "json, no corrupt column": ("json", "a INT, b STRING", ['{"a":1}\nx', '{"a":"q","b":"y"}'], {}),
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
    for codec in ("gzip", "bzip2"):
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
    # missing, in another order, in another case (where Spark's JSON is null), widened
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
