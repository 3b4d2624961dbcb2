"""Read the files of folders with Spark's own readers and with this source, and print where they differ, by cause.

    python3 tools/environment.py -- python tools/compare_with_spark.py FOLDER... [--format json] [--glob '*.json']
        [--schema DDL] [--option header=true]

The format of a file is that of its suffix, unless it is given; csv and json are read twice, by lines and with
`multiLine`. Without a schema each file is read with the one that Spark infers of it. Bad records are compared too: the
column `_corrupt_record` is added. `docs/reference/parity.md` names the differences that are meant.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from queue_source.errors import CuesqueueError
from queue_source.formats.base import BadRecords, check_schema
from queue_source.options import parse_reader_options
from queue_source.read.objects import read_object
from queue_source.spark.process import arrow_schema

BAD = "_corrupt_record"
ZONE = "Europe/Berlin"
SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".txt": "text",
    ".parquet": "parquet", ".parq": "parquet", ".orc": "orc", ".avro": "avro",
}  # fmt: skip
SPARKS_NAMES = {"avro": "org.apache.spark.sql.avro.AvroFileFormat"}  # also where its short name is not registered
LINES = ("csv", "json")
_SHOWN = 3


class Outcome(NamedTuple):
    """What a reader made of a file: its rows as text, why some are bad, and why it read nothing."""

    rows: list[str]
    bad: list[str]
    failure: str


class Difference(NamedTuple):
    """What differs between two readers of a file; the cause is the same for many files."""

    cause: str
    shown: str


def rows_of(table: pa.Table) -> list[str]:
    """Rows as text, in an order of their own: -0.0 is not 0.0, NaN is NaN, and times are numbers."""
    for place, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            number = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            table = table.set_column(place, field.name, table.column(place).cast(number))
    return sorted(repr(tuple(row.values())) for row in table.to_pylist())


def schema_of(spark: SparkSession, path: Path, file_format: str, options: dict[str, str]) -> StructType:
    reader = spark.read.format(SPARKS_NAMES.get(file_format, file_format))
    found = reader.options(**{"inferSchema": "true", **options}).load(str(path)).schema
    schema = StructType([field for field in found if field.name != BAD])
    return schema.add(BAD, "string") if file_format in LINES and schema.fields else schema


def by_spark(spark: SparkSession, path: Path, file_format: str, schema: StructType, options: dict[str, str]) -> Outcome:
    reader = spark.read.format(SPARKS_NAMES.get(file_format, file_format))
    try:
        table = reader.schema(schema).options(**options).load(str(path)).toArrow()
        return Outcome(rows_of(table.cast(arrow_schema(schema))), [], "")
    except Exception as error:  # noqa: BLE001 (whatever it is, it is compared)
        return Outcome([], [], first_line(error))


def by_us(path: Path, file_format: str, schema: StructType, options: dict[str, str]) -> Outcome:
    given = {"queueUrl": "sim://q", "fileFormat": file_format, "allowedPrefixes": "file:///", **options}
    if file_format in LINES:
        given.setdefault("timeZone", ZONE)
    try:
        parsed = parse_reader_options(given).content.format
        assert parsed is not None
        target = arrow_schema(schema)
        check_schema(target, parsed)
        problems = BadRecords(parsed.mode)
        batches = list(read_object(f"file://{path.absolute()}", target, parsed, problems))
    except (CuesqueueError, pa.ArrowException) as error:
        return Outcome([], [], first_line(error))
    return Outcome(rows_of(pa.Table.from_batches(batches, target)), [bad.reason for bad in problems.reported], "")


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def general(text: str) -> str:
    """A message without what is different in each file."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\S*/\S+|\d+", "…", text)[:140]


def compare(
    spark: SparkSession, path: Path, file_format: str, ddl: str | None, options: dict[str, str]
) -> Difference | None:
    """None where both read the same, or nothing."""
    try:
        schema = StructType.fromDDL(ddl) if ddl else schema_of(spark, path, file_format, options)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is reported)
        return Difference(f"not compared, since Spark infers no schema: {general(first_line(error))}", "")
    assert isinstance(schema, StructType)
    if not [name for name in schema.names if name != BAD]:
        return None
    theirs, ours = by_spark(spark, path, file_format, schema, options), by_us(path, file_format, schema, options)
    columns = schema.simpleString()[:200]
    if theirs.failure or ours.failure:
        if theirs.failure and ours.failure:
            return None
        if ours.failure:
            return Difference(f"only Spark reads it: {general(ours.failure)}", f"{columns}\n  here  {ours.failure}")
        return Difference(f"only read here: {general(theirs.failure)}", f"{columns}\n  spark {theirs.failure}")
    if theirs.rows == ours.rows:
        return None
    cause = general(ours.bad[0]) if ours.bad else "no record is bad here"
    lines = [columns]
    for who, these, others in (("spark", theirs.rows, ours.rows), ("here ", ours.rows, theirs.rows)):
        rest = list(others)
        only = [row for row in these if row not in rest or rest.remove(row)]  # type: ignore[func-returns-value]
        lines += [f"  {who} {len(these)} rows; {row[:300]}" for row in only[:_SHOWN] or ["all of them there too"]]
    lines += [f"  here  because: {reason[:200]}" for reason in ours.bad[:_SHOWN]]
    return Difference(f"other rows: {cause}", "\n".join(lines))


def ways(path: Path, given: str | None, options: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The format of a file, and the options with which it is read."""
    file_format = given or SUFFIXES.get(path.suffix.lower())
    if file_format is None:
        return
    yield file_format, options
    if file_format in LINES and "multiLine" not in options:
        yield file_format, {**options, "multiLine": "true"}


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
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--format", help="of all files; otherwise by suffix")
    parser.add_argument("--glob", default="*")
    parser.add_argument("--schema", help="DDL; otherwise inferred by Spark")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE, for both readers")
    given = parser.parse_args(arguments)
    options = dict(option.split("=", 1) for option in given.option)
    spark = session()
    count = 0
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for folder in given.folder for path in folder.rglob(given.glob) if path.is_file()):
        for file_format, own in ways(path, given.format, options):
            count += 1
            if difference := compare(spark, path, file_format, given.schema, own):
                title = " ".join([str(path), file_format, *(f"{name}={value}" for name, value in own.items())])
                found[f"{file_format}: {difference.cause}"].append(f"{title}\n  {difference.shown}")
    spark.stop()
    for cause, cases in sorted(found.items()):
        print(f"\n== {len(cases)} times {cause}")
        print("\n".join(cases))
    print(f"\n{count} readings, {sum(map(len, found.values()))} of them different, of {len(found)} causes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
