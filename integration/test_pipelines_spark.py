"""Declarative Pipelines, SQL in them, and notebooks: the pages run as they stand, with restart and full refresh."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import cuesqueue
from docs.test_pages import Reader
from support.engine.versions import VERSION
from support.snippets import ROOT, blocks

pytestmark = pytest.mark.timeout(900)

HOW_TO = ROOT / "docs" / "how-to"
HIVE = "--conf spark.sql.catalogImplementation=hive"
VIEW = """

@dp.temporary_view
def returns():
    return announced("returns")
"""
LARGE = "CREATE STREAMING TABLE large_returns AS SELECT id, total FROM STREAM returns WHERE total > 5"
MORE_FILES = """  - glob:
      include: large.sql
"""
PURE_SQL = """
CREATE STREAMING TABLE doubled AS SELECT id, total * 2 AS total FROM STREAM announced WITH (
  queueUrl = 'sql+sqlite:///{here}/jobs.db?queue=doubled',
  storeUrl = 'sqlite:///{here}/cuesqueue.db',
  allowedPrefixes = 'file://{here}/landing/',
  fileFormat = 'json'
)
"""


def ids(table: Path) -> list[int]:
    """The ids in a table of Spark, in order, by the data files that its log names."""
    files = [file for file in table.glob("part-*.parquet") if file.stat().st_size]
    return sorted(number for file in files for number in pq.read_table(file)["id"].to_pylist())


@pytest.mark.skipif(VERSION < (4, 2), reason="Spark 4.1 has no FROM STREAM ... WITH")
def test_a_project_runs_goes_on_and_is_refreshed_as_the_page_says(tmp_path: Path) -> None:
    project, ingest, announce, refresh = blocks(HOW_TO / "sql.md")[3:]
    reader = Reader(tmp_path)
    reader.follow([project, ingest])
    with (tmp_path / "spark-pipeline.yml").open("a") as files, (tmp_path / "ingest.py").open("a") as more:
        files.write(MORE_FILES)
        more.write(VIEW)
    (tmp_path / "large.sql").write_text(LARGE)
    reader.run(
        'mkdir -p landing/returns; echo \'{"id": 1, "total": 9.5}\' > landing/returns/1.json\n'
        'cuesqueue send "sql+sqlite:///$PWD/jobs.db?queue=returns" "$PWD/landing/returns/1.json"'
    )
    reader.follow([announce])
    warehouse = tmp_path / "spark-warehouse"
    tables = {name: warehouse / name for name in ("orders", "large_returns")}
    assert {name: ids(table) for name, table in tables.items()} == {"orders": [1], "large_returns": [1]}
    with cuesqueue.open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        lake = cuesqueue.published(store, pipeline="copies").to_arrow()
    assert lake["id"].to_pylist() == [1]

    queue = "sql+sqlite:///$PWD/jobs.db?queue="
    reader.run(
        f'echo \'{{"id": 2, "total": 1.5}}\' > landing/orders/2.json\n'
        f'cuesqueue send "{queue}orders" "$PWD/landing/orders/2.json" "$PWD/landing/orders/1.json"\n'
        # a table for SQL alone, which a project finds in its catalog
        f'cuesqueue send "{queue}doubled" "$PWD/landing/orders/2.json"\n'
        f"spark-sql {HIVE} -e 'CREATE TABLE announced (id BIGINT, total DOUBLE) USING cuesqueue'"
    )
    (tmp_path / "large.sql").write_text(f"{LARGE};\n" + PURE_SQL.format(here=tmp_path))
    reader.run(f"spark-pipelines {HIVE} run")
    assert ids(tables["orders"]) == [1, 2], "the next run goes on, and what is announced again comes once"
    assert ids(warehouse / "doubled") == [2]

    said = reader.run(f"spark-pipelines {HIVE} run --full-refresh orders 2>&1")
    assert "the checkpoint is new" in said
    assert "cuesqueue reset orders" in said
    assert ids(tables["orders"]) == []
    reader.run(refresh.text)
    assert ids(tables["orders"]) == [1, 2]
    assert ids(tables["large_returns"]) == [1], "what was not refreshed is as it was"
    with cuesqueue.open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        assert cuesqueue.published(store, pipeline="copies").to_arrow().num_rows == 1


SQL_SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
def run(text):
    for statement in filter(None, map(str.strip, text.split(";"))):
        rows = spark.sql(statement)
    return rows
"""


def test_the_statements_of_the_sql_page_run(tmp_path: Path) -> None:
    table, stream, views = (block.text for block in blocks(HOW_TO / "sql.md")[:3])
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.json").write_text('{"id": 1, "total": 100}')
    reader = Reader(tmp_path)
    reader.run('cuesqueue send "sql+sqlite:///jobs.db?queue=orders" "$PWD/landing/1.json"')
    stream = stream.replace("/data/landing/", f"{tmp_path}/landing/")
    shown = 'spark.sql("SELECT * FROM published").show(); spark.sql("SELECT * FROM errors").show()'
    (tmp_path / "session.py").write_text(f"{SQL_SESSION}\nrun({table!r})\n{stream}\nrun({views!r})\n{shown}")
    assert "|  1|119.0|" in reader.run("python session.py")


def test_the_cells_of_the_notebook_page_run_one_after_the_other(tmp_path: Path) -> None:
    parts = ("query.awaitTermination()", "published.show()", "available_now=False", "running.stop()")
    cells = [block.text for block in blocks(HOW_TO / "clusters.md")]
    load, look, start, stop = (next(cell for cell in cells if part in cell) for part in parts)
    reader = Reader(tmp_path)
    reader.run(
        'mkdir landing; echo \'{"id": 1, "total": 9.5}\' > landing/1.json\n'
        'cuesqueue send "sql+sqlite:///jobs.db?queue=orders" "$PWD/landing/1.json"'
    )
    (tmp_path / "cells.py").write_text("\n".join([load, look, load, start, stop, look, start, stop]))
    printed = reader.run("python cells.py")
    assert printed.count("|  1|  9.5|") == 2
