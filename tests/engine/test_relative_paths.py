"""Relative paths with a real Spark: one folder for all of a query, or a refusal before anything is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_source.queues import open_queue
from support.engine.harness import environment
from support.snippets import ROOT, blocks

pytestmark = pytest.mark.engine

SCRIPT_THAT_MOVES = """
import os

from pyspark.sql import SparkSession

import cuesqueue

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
os.chdir("later")  # as notebooks do
rejected = []


def write(rows, batch_id):
    with cuesqueue.delivery("sqlite:///cuesqueue.db", "batches", batch_id) as batch:
        if not batch.already and rows.count():
            rejected.append(cuesqueue.reject_rows(rows, store="sqlite:///cuesqueue.db", pipeline="batches"))


def stream(pipeline, schema):
    source = spark.readStream.format("cuesqueue").option("queueUrl", f"sql+sqlite:///jobs.db?queue={pipeline}")
    source = source.option("fileFormat", "json").option("allowedPrefixes", "file:///").option("source", pipeline)
    source = source.schema("id BIGINT") if schema else source.option("schemaLocation", "schemas")
    return source.load().writeStream.trigger(availableNow=True).option("checkpointLocation", pipeline)


stream("files", "").format("cuesqueue").option("pipeline", "files").start("published").awaitTermination()
stream("batches", "id BIGINT").foreachBatch(write).start().awaitTermination()
assert [row.id for row in spark.read.format("cuesqueue").load().collect()] == [1]
assert rejected == [1]
"""

README_BY_CONNECT = """
import json
import os

with open("readme.py") as file:
    readme = file.read()
here = os.getcwd()
whole = readme.replace("jobs.db", here + "/jobs.db")
whole = whole.replace('.format("cuesqueue")', f'.format("cuesqueue").option("storeUrl", "sqlite:///{here}/cuesqueue.db")')
said = []
for text in (readme, whole, whole.replace('"published"', f'"{here}/published"')):
    try:
        exec(text)
        said.append("")
    except Exception as error:
        said.append(str(error))
views = spark.read.format("cuesqueue").option("storeUrl", f"sqlite:///{here}/cuesqueue.db")
with open("said.json", "w") as file:
    json.dump([said, [row.asDict() for row in views.load().collect()]], file)
spark.stop()
"""


def run(script: str, folder: Path, **variables: str) -> None:
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(folder / "script.py")],
        cwd=folder,
        env={**os.environ, **environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def test_a_script_that_has_changed_its_folder_means_the_one_in_which_spark_was_started(tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    announced = tmp_path / "one.json"
    announced.write_text('{"id": 1}\n')
    for queue in ("files", "batches"):
        with open_queue(f"sql+sqlite:///{tmp_path}/jobs.db?queue={queue}") as opened:
            opened.send([str(announced)])
    run(SCRIPT_THAT_MOVES, tmp_path)
    assert list((tmp_path / "later").iterdir()) == []
    assert {"cuesqueue.db", "published", "schemas"} <= {path.name for path in tmp_path.iterdir()}


def test_with_spark_connect_the_readme_is_refused_and_runs_with_absolute_paths(tmp_path: Path) -> None:
    """A session's Python processes start in two folders there, and one of them goes with the session."""
    shown = [block.text for block in blocks(ROOT / "README.md") if block.language in ("bash", "python")]
    announce, readme = shown[:2]
    assert "file:///tmp/ada.json" in announce
    (tmp_path / "ada.json").write_text('{"id": 1, "name": "Ada"}\n')
    with open_queue(f"sql+sqlite:///{tmp_path}/jobs.db?queue=files") as queue:
        queue.send([str(tmp_path / "ada.json")])
    (tmp_path / "readme.py").write_text(readme.replace("file:///tmp/", f"file://{tmp_path}/"))
    run(README_BY_CONNECT, tmp_path, SPARK_REMOTE="local[2]", SPARK_TESTING="1")
    said, rows = json.loads((tmp_path / "said.json").read_text("utf-8"))
    assert "option 'queueUrl': 'sql+sqlite:///jobs.db?queue=files' is relative" in said[0]
    assert "option 'path': 'published' is relative, and with Spark Connect it would count from a temporary " in said[1]
    assert "as in /data/published or s3://lake/published" in said[1]
    assert said[2] == ""
    assert rows == [{"id": 1, "name": "Ada"}]
    assert len(list((tmp_path / "published").iterdir())) == 1
