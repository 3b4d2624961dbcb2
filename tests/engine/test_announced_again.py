"""With a real Spark: late and overwritten objects are read once, and an operator gets a stream past an object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queue_source.commands.main import app
from shard_store.model import Content
from shard_store.store import open_store
from support.engine.queries import described, run
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
