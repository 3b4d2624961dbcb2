"""Days, moments and types of Parquet, ORC and Avro that Spark wrote: the same rows as by Spark's own readers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from py4j.java_gateway import get_field, set_field
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from support.parity import compared, in_zone, of_comparison, of_spark, read_ours
from support.reading import UTC_MICROS, moments_around

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    with of_comparison(spark):
        yield


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
