"""No object that is refused, hidden or none at all stops a stream: its neighbours are published in the same run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from queue_source.common.globs import is_hidden
from support.engine.queries import Query, described, run
from support.engine.world import Row, World
from support.servers.s3 import ARCHIVED, DENIED, S3Server, s3_server

pytestmark = pytest.mark.engine


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def put(s3: S3Server, *names: str) -> list[Row]:
    """Objects of one row each; returns the rows."""
    rows = [(number, name) for number, name in enumerate(names)]
    s3.objects |= {f"b/{name}": json.dumps({"id": i, "name": name}).encode() + b"\n" for i, name in rows}
    return rows


def query_of(world: World, s3: S3Server, **options: object) -> Query:
    query = described(world, "cuesqueue", allowedPrefixes="s3://b/in/", source="files", **options)
    query["source"] |= s3.options
    return query


def test_a_forbidden_object_harms_only_itself(spark: SparkSession, world: World, s3: S3Server) -> None:
    names = ["in/good", "in/other", "in/a//b", "in/denied", "in/archived", "in/_temporary/0/part", "in/no-more"]
    rows = put(s3, *names)
    s3.refusals |= {"b/in/denied": DENIED, "b/in/archived": ARCHIVED, "b/in/no-more": DENIED}
    world.publish([f"s3://b/{name}" for name in (*names, "in/gone")])
    finished = run(spark, query_of(world, s3))
    assert world.published() == sorted(rows[:3])
    causes = {error["subject"].rpartition("/")[2]: (error["cause"], error["final"]) for error in world.view("errors")}
    assert causes == {
        "denied": ("forbidden-object", True),
        "archived": ("forbidden-object", True),
        "no-more": ("forbidden-object", True),
        "gone": ("missing-object", True),
    }
    assert world.settled(), "the run has ended by itself, and nothing is left"
    assert finished.exception() is None
    assert s3.requests["HEAD", "b/in/_temporary/0/part"] == 0


def test_what_is_no_file_or_lies_elsewhere_stops_nothing(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 3)
    folder = world.root / "in"
    secret = world.root / "secret.json"
    secret.write_text('{"id": 1, "name": "secret"}\n')
    os.mkfifo(folder / "fifo.json")
    (folder / "device.json").symlink_to("/dev/zero")
    (folder / "link.json").symlink_to(secret)
    (folder / "inside.json").symlink_to(folder / "0.json")
    world.publish([f"file://{folder}/{name}.json" for name in ("fifo", "device", "link", "inside")])
    run(spark, described(world, allowedPrefixes=f"file://{folder}/"))
    assert world.published() == sorted([*rows, *rows[:5]])
    causes = {Path(error["subject"]).stem: error["cause"] for error in world.view("errors")}
    assert causes == {"fifo": "corrupt-object", "device": "corrupt-object", "link": "forbidden-object"}
    assert world.settled()


def test_errors_are_counted_by_cause_in_the_progress(spark: SparkSession, world: World) -> None:
    world.feed(0, 1)
    world.publish([f"file://{world.root}/in/gone.json", "no notification"])
    query = run(spark, described(world))
    run(spark, described(world))  # Spark before 4.2 proves the end of the last batch with the next run
    seen = [
        json.loads(progress["sources"][0]["latestOffset"] or "{}").get("errors") or {}
        for progress in query.recentProgress
    ]
    assert any(found.get("malformed-message") == 1 for found in seen), seen


def test_the_names_that_are_hidden_are_those_that_spark_does_not_read(spark: SparkSession, tmp_path: Path) -> None:
    names = [
        "a", "_a", ".a", "a_", "_a=1", ".a=1", "_metadata", "_common_metadata", "x._COPYING_", "_SUCCESS", "-a", "~a",
        "_metadata=1",
    ]  # fmt: skip
    paths = [*names, *(f"{name}/file" for name in names if "=" not in name), "k=1/_x/file", "deep/er/_est/file"]
    for root in ("files", "folders"):
        for path in paths:
            file = tmp_path / root / path
            if (root == "files") == ("/" not in path):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(path)
    read: list[str] = []
    for root in ("files", "folders"):
        frame = spark.read.option("recursiveFileLookup", "true").text(f"file://{tmp_path}/{root}")
        read += [row["value"] for row in frame.collect()]
    assert sorted(read) == sorted(path for path in paths if not is_hidden(f"s3://b/{path}", ["s3://b/"]))
