"""The page on published files: its recipes read the rows of a store, and its commands work."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from docs.test_pages import Reader
from shard_store import open_store
from shard_store.model import Split
from support.snippets import ROOT, blocks
from support.store_backends import Pipeline

PAGE = blocks(ROOT / "docs" / "how-to" / "published-files.md")
FIRST, *RECIPES = [block.text for block in PAGE if block.language == "python"]
COMMANDS = [block.text for block in PAGE if block.language == "bash"]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Somebody in the folder of a store, in which a file of two rows is published and another one is not."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name in ("split-of-a-dead-attempt", "orders"):
        pq.write_table(pa.table({"id": [4711, 4712]}), folder / f"{name}.parquet")
    schema = StructType([StructField("id", LongType())]).json()
    with open_store(f"sqlite:///{tmp_path / 'cuesqueue.db'}") as store:
        us = Pipeline.start(store, "orders", "orders")
        us.publish(us.planned("a"), Split(str(folder / "orders.parquet"), 2, 1), row_schema=schema)
    return Reader(tmp_path)


def run(reader: Reader, snippet: str) -> str:
    (reader.folder / "snippet.py").write_text(snippet, "utf-8")
    return reader.run("python snippet.py")


def recipes(name: str) -> list[str]:
    texts = [text for text in RECIPES if name in text]
    assert texts, f"the page has no recipe for {name}"
    return texts


def test_paths_and_a_frame_of_pandas_are_those_of_the_published_file(reader: Reader) -> None:
    assert run(reader, FIRST) == f"{reader.folder / 'published' / 'orders.parquet'}\n"
    (recipe,) = recipes("to_pandas")
    printed = run(reader, FIRST + recipe)
    assert "4711" in printed
    assert "split-of-a-dead-attempt" not in printed


def test_the_recipe_for_polars_reads_the_rows(reader: Reader) -> None:
    pytest.importorskip("polars")
    (recipe,) = recipes("polars")
    printed = run(reader, FIRST + recipe)
    assert "shape: (2, 1)" in printed
    assert "4711" in printed


def test_the_recipes_for_duckdb_read_the_rows_and_the_list_of_paths(reader: Reader) -> None:
    pytest.importorskip("duckdb")
    query, from_paths = recipes("duckdb")
    assert "2" in run(reader, FIRST + query).split()
    reader.run(COMMANDS[0])
    assert "4711" in run(reader, from_paths)


def test_the_commands_work_on_a_store(reader: Reader) -> None:
    files, compact, vacuum = COMMANDS
    reader.run(files)
    assert (reader.folder / "paths.txt").read_text("utf-8") == f"{reader.folder / 'published' / 'orders.parquet'}\n"
    assert "would be joined" in reader.run(compact)
    reader.run(vacuum)


@pytest.mark.engine
def test_the_script_for_spark_shows_the_rows(reader: Reader) -> None:
    (script,) = recipes("SparkSession")
    assert "4711" in run(reader, script)
