"""The same objects read by Spark's own reader and by ours, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from queue_source.formats.base import BadRecords, check_schema
from queue_source.options import parse_reader_options
from queue_source.read.objects import read_object
from queue_source.spark.process import arrow_schema
from support.sessions import LEAST

ZONE = "Europe/Berlin"


@contextmanager
def of_comparison(spark: SparkSession) -> Iterator[None]:
    """The session in the zone of both readers."""
    own = {"spark.sql.session.timeZone": ZONE, "spark.sql.files.openCostInBytes": "0"}  # many files a task
    before = {name: str(spark.conf.get(name)) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


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
