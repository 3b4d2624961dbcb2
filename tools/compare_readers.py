"""Reads every Parquet, ORC and Avro file below some folders with Spark's own reader and with this source's.

    python3 tools/environment.py -- python tools/compare_readers.py FOLDER...

Prints a line for each file whose rows are not the same, and what each reader said of it. The folders are those of
public collections, such as apache/parquet-testing, the examples of apache/orc, and the test data of apache/avro.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from queue_source.errors import CuesqueueError
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import check_schema
from queue_source.options.file_format import FormatOptions
from queue_source.read.objects import read_object
from queue_source.spark.compat import arrow_schema

FORMATS = {".parquet": "parquet", ".orc": "orc", ".avro": "org.apache.spark.sql.avro.AvroFileFormat"}


def sparks(spark: SparkSession, path: Path) -> tuple[StructType | None, pa.Table | str]:
    """The schema that Spark infers, and its rows, or the first line of its error."""
    schema = None
    try:
        frame = spark.read.format(FORMATS[path.suffix]).load(str(path))
        schema = frame.schema
        return schema, frame.toArrow()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is compared)
        return schema, _first_line(error)


def own(path: Path, schema: StructType) -> pa.Table | str:
    """The rows of this source in the same schema, or its error."""
    options = FormatOptions(path.suffix[1:])
    try:
        wanted = arrow_schema(schema)
        check_schema(wanted, options)
        return pa.Table.from_batches(read_object(str(path), wanted, options, BadRecords("FAILFAST")), wanted)
    except (CuesqueueError, pa.ArrowException) as error:
        return _first_line(error)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300] if str(error).strip() else ''}"


def same(theirs: pa.Table, ours: pa.Table) -> bool:
    theirs = theirs.cast(ours.schema).combine_chunks()
    return bool(theirs.equals(ours.combine_chunks())) or _text(theirs) == _text(ours)


def _text(table: pa.Table) -> str:
    """Rows as text, in which NaN equals NaN."""
    return "\n".join(
        column.to_string(window=1_000_000, container_window=1_000_000) for column in map(_whole, table.columns)
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def compare(spark: SparkSession, path: Path) -> str:
    """`same`, or a sentence that begins with what is different."""
    schema, theirs = sparks(spark, path)
    if schema is None:
        return f"Spark infers nothing: {theirs}"
    ours = own(path, schema)
    if isinstance(theirs, str):
        return f"neither reads: Spark {theirs}; here {ours}" if isinstance(ours, str) else f"only here: Spark {theirs}"
    if isinstance(ours, str):
        return f"only Spark: here {ours}"
    if theirs.num_rows != ours.num_rows:
        return f"rows differ: Spark {theirs.num_rows}, here {ours.num_rows}"
    try:
        if same(theirs, ours):
            return "same"
    except pa.ArrowException as error:
        return f"not compared: {_first_line(error)}"
    for name in ours.column_names:
        one, other = theirs.select([name]).cast(ours.select([name]).schema), ours.select([name])
        if not same(one, other):
            texts = (_text(one).splitlines(), _text(other).splitlines())
            line = next((n for n, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), 0)
            return (
                f"values differ: column {name!r}: Spark {texts[0][line : line + 1]}, here {texts[1][line : line + 1]}"
            )
    return "same"


def main(folders: list[str]) -> None:
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.sparkContext.setLogLevel("OFF")
    found: Counter[str] = Counter()
    for folder in folders:
        for path in sorted(path for path in Path(folder).rglob("*") if path.suffix in FORMATS and path.is_file()):
            said = compare(spark, path)
            found[said.partition(":")[0]] += 1
            if said != "same":
                print(f"{path}: {said}", flush=True)
    print(dict(found))


if __name__ == "__main__":
    main(sys.argv[1:])
