"""SQL: streams and views by tables and temporary views, and what does not work says what to write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from support.engine.versions import VERSION
from support.engine.world import World

pytestmark = pytest.mark.engine

COLUMNS = "(id BIGINT, name STRING)"


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    for table in ("orders", "published"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.catalog.dropTempView(table)


def with_options(options: dict[str, str]) -> str:
    return "(" + ", ".join(f"`{name}` = '{text}'" for name, text in options.items()) + ")"


def drain(world: World, rows: DataFrame) -> None:
    writer = rows.writeStream.format("cuesqueue").options(**world.sink()).trigger(availableNow=True)
    writer.option("checkpointLocation", str(world.root / "checkpoint")).start().awaitTermination()


@pytest.mark.skipif(VERSION < (4, 2), reason="Spark before 4.2 has no FROM STREAM ... WITH")
def test_a_table_with_columns_is_read_as_a_stream_with_options_where_it_is_read(
    tables: SparkSession, world: World
) -> None:
    rows = world.feed(0, 2)
    tables.sql(f"CREATE TABLE orders {COLUMNS} USING cuesqueue")
    drain(world, tables.sql(f"SELECT * FROM STREAM orders WITH {with_options(world.source())}"))
    assert world.published() == sorted(rows)
    options = with_options({"storeUrl": world.store_url})
    found = tables.sql(f"SELECT id, name FROM orders WITH {options}").collect()
    assert sorted((row.id, row.name) for row in found) == sorted(rows)
    tables.sql(f"CREATE TEMPORARY VIEW published USING cuesqueue OPTIONS {options}")
    assert tables.sql("SELECT count(*) AS rows FROM published").collect()[0].rows == len(rows)


def test_options_of_a_table_are_refused_or_missed_with_what_to_write(tables: SparkSession, world: World) -> None:
    options = with_options(world.source())
    with pytest.raises(PySparkException, match="Spark gives the OPTIONS of a table to nothing that reads it"):
        tables.sql(f"CREATE TABLE orders USING cuesqueue OPTIONS {options}")
    tables.sql(f"CREATE TABLE orders {COLUMNS} USING cuesqueue OPTIONS {options}")
    with pytest.raises(PySparkException, match=r"'storeUrl': is not given.*FROM STREAM orders WITH"):
        tables.sql("SELECT * FROM orders").collect()
    with pytest.raises(PySparkException, match=r"'queueUrl': is not given.*FROM STREAM orders WITH"):
        drain(world, tables.readStream.table("orders"))
    with pytest.raises(PySparkException, match="is written by streams alone"):
        tables.sql("INSERT INTO orders VALUES (1, 'Ada')")
