"""With a real Spark: late and overwritten objects are read once, and an operator gets a stream past an object."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queue_source.commands.main import app
from shard_store.model import Content
from shard_store.shards.recording import Receipts
from shard_store.store import open_store
from support.engine.queries import described, run, start
from support.engine.world import Row, World, eventually

pytestmark = pytest.mark.engine


def write(file: Path, *rows: Row) -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps({"id": i, "name": name}) + "\n" for i, name in rows), "utf-8")
    return file.as_uri()


def states(world: World) -> dict[str, str]:
    return {Path(shard["shard_id"]).stem: shard["state"] for shard in world.view("shards")}


def shards(world: World, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["shards", *arguments, "--store", world.store_url, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_object_that_was_announced_before_it_was_there_is_read_once(spark: SparkSession, world: World) -> None:
    rows = world.feed(0, 1)
    late = world.root / "in" / "late.json"
    world.publish([late.as_uri()])
    run(spark, described(world))
    assert states(world) == {"0": "done", "late": "quarantined"}
    write(late, (1, "late"))
    world.publish([late.as_uri(), late.as_uri()])
    run(spark, described(world))
    assert world.published() == sorted([*rows, (1, "late")])
    assert states(world) == {"0": "done", "late": "done"}
    assert [(e["cause"], e["state"]) for e in world.view("errors")] == [("missing-object", "reopened")]
    assert world.depth().total == 0


def test_an_object_that_was_overwritten_before_it_was_planned_is_read_in_its_newest_version(
    spark: SparkSession, world: World
) -> None:
    file = world.root / "in" / "object.json"
    uri = write(file, (1, "a"))
    with open_store(world.store_url) as store:  # a reader that died before it planned what it had received
        token = store.start("files", "files").token
        store.open_shards(token, "files", [Content(uri, uri, file.stat().st_size, None, "files", "first")])
    write(file, (1, "a"), (2, "b"))
    world.publish([uri])
    run(spark, described(world))
    assert world.published() == [(1, "a"), (2, "b")]
    assert world.view("errors") == []
    assert states(world) == {"object": "done"}


def shown_status(world: World) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["status", "--store", world.store_url, "--json"])
    (shown,) = json.loads(done.stdout)["pipelines"]
    return dict(shown)


def test_an_object_that_was_empty_when_it_was_read_is_read_again_once_it_is_full(
    spark: SparkSession, world: World
) -> None:
    file = world.root / "in" / "object.json"
    world.publish([write(file)])
    run(spark, described(world))
    assert (states(world), world.published()) == ({"object": "done"}, [])
    world.publish([write(file, (1, "a"), (2, "b"))])
    run(spark, described(world))
    assert world.published() == [(1, "a"), (2, "b")]
    assert (states(world), world.view("errors"), world.depth().total) == ({"object": "done"}, [], 0)


def test_an_archive_that_was_cut_off_and_is_uploaded_again_whole_is_read(spark: SparkSession, world: World) -> None:
    file = world.root / "in" / "object.json.gz"
    packed = gzip.compress(b"".join(b'{"id": %d, "name": "row"}\n' % number for number in range(1000)))
    file.parent.mkdir()
    for data in (packed[: len(packed) // 2], packed):
        file.write_bytes(data)
        world.publish([file.as_uri()])
        run(spark, described(world))
    assert world.published() == [(number, "row") for number in range(1000)]
    assert [(e["cause"], e["state"]) for e in world.view("errors")] == [("corrupt-object", "reopened")]


def test_a_file_that_grows_is_read_once_and_counted_as_changed(spark: SparkSession, world: World) -> None:
    file = world.root / "in" / "PT1H.json"
    for number in range(1, 4):
        world.publish([write(file, *((row, "row") for row in range(number)))])
        run(spark, described(world))
    assert world.published() == [(0, "row")]
    assert (states(world), world.depth().total) == ({"PT1H": "done"}, 0)
    assert shown_status(world)["changed"] == 2


def test_an_object_without_a_version_that_a_route_brings_is_read_in_the_one_that_was_met_first(
    spark: SparkSession, world: World
) -> None:
    """It is replaced at the same size, between the batches that read its parts."""
    file = world.root / "in" / "large.csv"
    file.parent.mkdir()
    file.write_text("".join(f"{number},A\n" for number in range(100_000, 180_000)))
    with open_store(world.store_url) as store:
        store.start_receiver("us", "queue", "host", ["files"])
        content = Content(file.as_uri(), file.as_uri(), queue="queue", message_id="m")
        store.record("us", {"files": [content]}, Receipts(1))
    query = described(
        world, queueUrl="store", source="files", pipeline="files", fileFormat="csv", maxBytesPerTrigger="300k"
    )
    query["trigger"] = {"processingTime": "1 hour"}  # one batch
    running = start(spark, query)
    eventually("the first batch", lambda: world.published() or not running.isActive)
    running.stop()
    first = world.published()
    assert 0 < len(first) < 80_000
    file.write_text("".join(f"{number},B\n" for number in range(100_000, 180_000)))
    query["trigger"] = {"availableNow": True}
    run(spark, query)
    assert world.published() == first, "not a row of the other version"
    assert [(e["cause"], e["scope"]) for e in world.view("errors")] == [("object-changed", "object")]


def test_an_operator_gets_a_stream_past_an_object_that_fails_it_and_has_it_read_once_it_is_repaired(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 3)
    broken = world.root / "in" / "broken.json"
    broken.write_text('{"id": 1, "name": "whole"}\n{"id": 2, "na', "utf-8")
    world.publish([broken.as_uri()])
    query = described(world, mode="FAILFAST", onCorruptObject="fail")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="corrupt-object"):
            run(spark, query)
    assert "is not published" in shards(world, "show", broken.as_uri())["outcome"]
    assert shards(world, "quarantine", broken.as_uri(), "--reason", "cut off")["shards"] == 1
    run(spark, query)
    assert world.published() == sorted(rows)
    assert states(world) == {"0": "done", "1": "done", "2": "done", "broken": "quarantined"}
    eventually("the leases of the runs that failed end", lambda: world.depth().in_flight == 0)
    write(broken, (1, "whole"), (2, "name"))
    assert shards(world, "reopen", broken.as_uri(), "--reason", "repaired")["shards"] == 1
    run(spark, query)
    assert world.published() == sorted([*rows, (1, "whole"), (2, "name")])
    assert world.depth().total == 0
    story = shards(world, "show", broken.as_uri())
    assert story["outcome"].startswith("published by attempt ")
    assert [change["action"] for change in story["changes"]] == ["quarantine", "reopen"]
    assert [(e["cause"], e["state"]) for e in story["errors"]] == [("quarantined-by-hand", "reopened")]
