"""Read the files of a folder with Spark's own reader and with this source, and print where their rows differ.

    python tools/compare_with_spark.py FOLDER --format json [--glob '*.json'] [--schema DDL] [--option multiLine=true]

Without a schema each file is read with the one that Spark infers of it. Bad records are compared too: the column
`_corrupt_record` is added. `docs/reference/parity.md` names the differences that are meant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from queue_source.errors import CuesqueueError
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import check_schema
from queue_source.options import parse_reader_options
from queue_source.read.objects import read_object
from queue_source.spark.compat import arrow_schema

BAD = "_corrupt_record"
ZONE = "Europe/Berlin"
_SHOWN = 3


def rows_of(table: pa.Table) -> list[str]:
    """Rows as text, in an order of their own: -0.0 is not 0.0, NaN is NaN, and times are numbers."""
    for place, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            number = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            table = table.set_column(place, field.name, table.column(place).cast(number))
    return sorted(repr(tuple(row.values())) for row in table.to_pylist())


def by_spark(
    spark: SparkSession, path: Path, file_format: str, schema: StructType, options: dict[str, str]
) -> list[str]:
    frame = spark.read.format(file_format).schema(schema).options(**options).load(str(path))
    return rows_of(frame.toArrow().cast(arrow_schema(schema)))


def by_us(path: Path, file_format: str, schema: StructType, options: dict[str, str]) -> tuple[list[str], list[str]]:
    """The rows, and what was wrong with some."""
    given = {"queueUrl": "sim://q", "fileFormat": file_format, "allowedPrefixes": "file:///", **options}
    if file_format in ("csv", "json"):
        given.setdefault("timeZone", ZONE)
    parsed = parse_reader_options(given).content.format
    assert parsed is not None
    target = arrow_schema(schema)
    check_schema(target, parsed)
    problems = BadRecords(parsed.mode)
    batches = list(read_object(path.absolute().as_uri(), target, parsed, problems))
    return rows_of(pa.Table.from_batches(batches, target)), [bad.reason for bad in problems.reported]


def schema_of(spark: SparkSession, path: Path, file_format: str, options: dict[str, str]) -> StructType:
    found = spark.read.format(file_format).options(**{"inferSchema": "true", **options}).load(str(path)).schema
    kept = [field for field in found if field.name != BAD]
    schema = StructType(kept)
    return schema.add(BAD, "string") if file_format in ("csv", "json") else schema


def compare(spark: SparkSession, path: Path, file_format: str, ddl: str | None, options: dict[str, str]) -> str:
    """What differs; "" for nothing."""
    schema: StructType | None = None
    try:
        if ddl is not None:
            declared = StructType.fromDDL(ddl)
            assert isinstance(declared, StructType)
            schema = declared
        else:
            schema = schema_of(spark, path, file_format, options)
        theirs = by_spark(spark, path, file_format, schema, options)
    except PySparkException as error:
        theirs = [f"FAILED {str(error).splitlines()[0][:200]}"]
    if schema is None or not [name for name in schema.names if name != BAD]:
        return ""
    reasons: list[str] = []
    try:
        ours, reasons = by_us(path, file_format, schema, options)
    except CuesqueueError as error:
        ours = [f"FAILED {type(error).__name__}: {str(error)[:200]}"]
    if theirs == ours:
        return ""
    lines = [f"{path.name}: {schema.simpleString()[:200]}"]
    for who, these, others in (("spark", theirs, ours), ("here ", ours, theirs)):
        rest = list(others)
        only = [row for row in these if row not in rest or rest.remove(row)]  # type: ignore[func-returns-value]
        lines += [f"  {who} {len(these)} rows; {row[:300]}" for row in only[:_SHOWN] or ["all of them there too"]]
    return "\n".join([*lines, *(f"  here  because: {reason[:200]}" for reason in reasons[:_SHOWN])])


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[1]").appName("compare")
    settings = {"spark.sql.session.timeZone": ZONE, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", required=True)
    parser.add_argument("--glob", default="*")
    parser.add_argument("--schema")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE, for both readers")
    given = parser.parse_args(arguments)
    options = dict(option.split("=", 1) for option in given.option)
    spark = session()
    count = differing = 0
    for path in sorted(path for path in given.folder.rglob(given.glob) if path.is_file()):
        count += 1
        found = compare(spark, path, given.format, given.schema, options)
        if found:
            differing += 1
            print(found, flush=True)
    print(f"{count} files, {differing} of them with other rows")
    spark.stop()
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
