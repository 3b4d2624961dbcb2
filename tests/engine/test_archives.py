"""Archives in real queries: as rows and by `load`, whole or not at all; and as Spark's own reader has them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from queue_source.spark.process import pyspark_version
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import World
from support.parity import compared, of_comparison
from unit.formats.test_archives import FILES, damaged_zip, tar_of, zip_of

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("loads", [False, True], ids=["rows", "load"])
def test_members_of_archives_are_published_and_a_damaged_archive_harms_only_itself(
    spark: SparkSession, world: World, loads: bool
) -> None:
    folder = world.root / "in"
    folder.mkdir()
    archives = {"a.zip": zip_of(FILES), "b.tar.gz": gzip.compress(tar_of(FILES)), "c.zip": damaged_zip()}
    for name, data in archives.items():
        (folder / name).write_bytes(data)
    world.publish([file.as_uri() for file in folder.iterdir()])
    schema = "id BIGINT, name STRING, _metadata STRUCT<file_name: STRING, archive_member: STRING>"
    options = {"fileFormat": None, "content": "reference"} if loads else {"fileFormat": "csv", "header": True}
    query: Query = {**described(world, **options), "schema": "" if loads else schema}
    if loads:
        query["sink_options"] = world.sink(load="csv", header="true", schema=schema)
    run_until_settled(spark, [(world, query)])
    view = spark.read.format("cuesqueue").option("store", world.store_url).load()
    rows = {(m.file_name, at, name, m.archive_member) for at, name, m in view.collect()}
    members = ["a.csv", "a.csv", "./sub/b.csv", "d/day=1/_x=2/c.csv.gz", "../up.csv"]
    each = [(at, name, member) for at, (name, member) in enumerate(zip("abcde", members, strict=True), 1)]
    assert rows == {(file, *row) for file in ("a.zip", "b.tar.gz") for row in each}
    assert view.count() == 10
    (error,) = world.view("errors")
    assert (error["scope"], error["cause"]) == ("object", "corrupt-object")
    assert "member 'c.csv'" in error["detail"]
    assert sorted(shard["state"] for shard in world.view("shards")) == ["done", "done", "quarantined"]


@pytest.mark.skipif(pyspark_version < (4, 3), reason="Spark reads archives from 4.3 on")
@pytest.mark.parametrize("name", ["o.zip", "o.tar", "o.tar.gz", "o.tgz"])
def test_rows_are_those_of_sparks_reader_of_archives(spark: SparkSession, tmp_path: Path, name: str) -> None:
    # Spark leaves out names with `.` or `..`, and unpacks no member
    read = {member: data for member, data in FILES.items() if not member.endswith("gz") and ".." not in member}
    same = {member.removeprefix("./"): data for member, data in read.items()}
    path = tmp_path / name
    path.write_bytes(zip_of(same) if name == "o.zip" else tar_of(same))
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    with of_comparison(spark):
        spark.conf.set("spark.sql.files.archive.reader.enabled", "true")
        try:
            for options in ({}, {"mode": "DROPMALFORMED"}):
                theirs, ours, _ = compared(spark, [path], "csv", "a STRING, b STRING", options)
                assert sorted(theirs) == sorted(ours)
                assert len(ours) == 5, "two headers are rows here"
        finally:
            spark.conf.unset("spark.sql.files.archive.reader.enabled")
