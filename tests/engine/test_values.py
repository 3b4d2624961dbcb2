"""Values on their way: from objects through Spark into splits and back, the same as Spark itself reads them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from support.engine.queries import described, run, run_until_settled, start_frame
from support.engine.world import SCHEMA, World

pytestmark = pytest.mark.engine

KINDS = {
    "bool": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "whole": "INT",
    "big": "BIGINT",
    "single": "FLOAT",
    "double": "DOUBLE",
    "exact": "DECIMAL(20, 3)",
    "text": "STRING",
    "bytes": "BINARY",
    "day": "DATE",
    "moment": "TIMESTAMP",
    "wall": "TIMESTAMP_NTZ",
    "many": "ARRAY<INT>",
    "named": "MAP<STRING, BIGINT>",
    "pair": "STRUCT<a: INT, b: STRING>",
}
DDL = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())


def write_values(spark: SparkSession, folder: Path) -> list[str]:
    """Extremes, ordinary values and nulls, as Parquet that Spark itself wrote."""
    frame = spark.sql(
        """
        SELECT true bool, 127Y tiny, -32768S small, 2147483647 whole, -9223372036854775808 big, float('NaN') single,
          double('-Infinity') double, cast('-12345678901234567.891' AS DECIMAL(20, 3)) exact, 'ä 🦆 \\u0000' text,
          X'00FF' bytes, DATE'1582-10-15' day, TIMESTAMP'1900-01-01 00:00:00.000001' moment,
          TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' wall, array(1, null) many, map('k', 1L, 'n', null) named,
          named_struct('a', 1, 'b', cast(null AS STRING)) pair
        UNION ALL SELECT false, -128Y, 0S, 0, 0L, float(1.5), double(1e-300), cast(0 AS DECIMAL(20, 3)), '', X'',
          DATE'9999-12-31', TIMESTAMP'2026-03-08 03:30:00', TIMESTAMP_NTZ'2026-03-08 02:30:00', array(), map(), null
        UNION ALL SELECT null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
        """
    )
    frame.coalesce(1).write.parquet(folder.as_uri())
    return [file.as_uri() for file in folder.glob("*.parquet")]


def test_all_types_come_back_as_spark_reads_them(spark: SparkSession, world: World) -> None:
    uris = write_values(spark, world.root / "in")
    world.publish(uris)
    run_until_settled(spark, [(world, {**described(world, fileFormat="parquet"), "schema": DDL})])
    data = spark.read.format("cuesqueue").option("store", world.store_url).load()
    own = spark.read.schema(DDL).parquet(*uris)
    assert data.schema == own.schema

    def shown(frame: object) -> list[str]:
        return sorted(repr(row) for row in frame.collect())  # type: ignore[attr-defined]

    assert shown(data) == shown(own)
    assert len(shown(data)) == 3


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("file_format", ["json", "csv"])
def test_times_in_text_are_the_moments_that_spark_sees(
    spark: SparkSession, world: World, file_format: str, zone: str | None
) -> None:
    """Without `timeZone` the session's zone counts, which is not that of this machine."""
    times = ["2026-07-01T12:00:00Z", "2026-07-01T12:00:00.123456+02:00", "2026-01-01T00:00:00", "1969-12-31T23:59:59Z"]
    folder = world.root / "in"
    folder.mkdir()
    file = folder / f"times.{file_format}"
    lines = [json.dumps({"at": time}) if file_format == "json" else time for time in times]
    file.write_text("".join(f"{line}\n" for line in lines))
    world.publish([file.as_uri()])
    given = {} if zone is None else {"timeZone": zone}
    query = {**described(world, fileFormat=file_format, **given), "schema": "at TIMESTAMP"}
    run_until_settled(spark, [(world, query)])  # type: ignore[list-item]
    data = spark.read.format("cuesqueue").option("store", world.store_url).load()
    own = spark.read.format(file_format).schema("at TIMESTAMP").options(**given).load(file.as_uri())
    moments = "CAST(at AS DOUBLE) AS at"
    ours = sorted(row.at for row in data.selectExpr(moments).collect())
    assert ours == sorted(row.at for row in own.selectExpr(moments).collect())
    assert len(ours) == 4


def test_the_metadata_column_tells_where_a_row_came_from(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 2)
    fields = (
        "file_path: STRING, file_name: STRING, file_size: BIGINT, file_block_start: BIGINT, file_block_length: BIGINT, "
        "file_modification_time: TIMESTAMP, shard_id: STRING, message_id: STRING, queue: STRING, receive_count: INT, "
        "delivery_hash: STRING"
    )
    query = {**described(world), "schema": f"{SCHEMA}, _metadata STRUCT<{fields}>"}
    stream = spark.readStream.format("cuesqueue").schema(str(query["schema"])).options(**world.source()).load()
    flat = stream.selectExpr("id", "name", "_metadata.*")
    start_frame(flat, described(world)).awaitTermination()
    data = spark.read.format("cuesqueue").option("store", world.store_url).load()
    found = data.collect()
    assert sorted((row.id, row.name) for row in found) == sorted(rows)
    own = {
        row.file_name: row
        for row in spark.read.schema(SCHEMA).json((world.root / "in").as_uri()).select("_metadata.*").collect()
    }
    hashes = {attempt["delivery_hash"] for attempt in world.view("attempts")}
    for row in found:
        spark_says = own[row.file_name]
        file = world.root / "in" / row.file_name
        assert (row.file_size, row.file_block_start, row.file_block_length) == (file.stat().st_size, 0, row.file_size)
        milliseconds = row.file_modification_time.microsecond // 1000 * 1000  # Spark knows no less
        assert row.file_modification_time.replace(microsecond=milliseconds) == spark_says.file_modification_time
        assert urlsplit(row.file_path).path == urlsplit(spark_says.file_path).path  # file:/ and file:/// are the same
        assert row.shard_id == file.as_uri()
        assert row.delivery_hash in hashes
        assert row.receive_count == 1
        assert row.queue.endswith("queue=files")
        assert row.message_id
    now = datetime.now(timezone.utc).timestamp()
    assert all(now - 900 < row.file_modification_time.timestamp() < now + 900 for row in found)


def test_a_sink_of_sparks_own_takes_each_row_once(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 3)
    query = described(world)
    query["sink"] = "parquet"
    query["sink_options"] = {"path": str(world.root / "table")}
    run(spark, query)
    run(spark, query)
    table = spark.read.schema(SCHEMA).parquet(str(world.root / "table"))
    assert sorted((row.id, row.name) for row in table.collect()) == sorted(rows)
