"""Options that are others at the next start of a query whose last batch is unfinished (all of them: tests/unit)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from support.engine.queries import described, run, run_until_settled
from support.engine.world import World

pytestmark = pytest.mark.engine


def test_a_batch_of_objects_is_not_called_done_unread_when_messages_become_the_content(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 3)
    file = world.root / "in" / "1.json"
    content = file.read_text("utf-8")
    file.unlink()
    objects = described(world, onMissingObject="fail")
    with pytest.raises(StreamingQueryException, match="missing-object"):
        run(spark, objects)  # its batch is planned, and fails
    assert world.unconfirmed() == 1
    file.write_text(content, "utf-8")
    messages = described(world, content="message", allowedPrefixes=None)
    with pytest.raises(StreamingQueryException, match=r"'content'.*until nothing is left"):
        run(spark, messages)
    assert (world.published(), world.unconfirmed()) == ([], 1)
    run_until_settled(spark, [(world, objects)])
    assert world.published() == sorted(rows)
    run(spark, messages)  # nothing is left, and nothing comes again
    assert world.published() == sorted(rows)


def test_a_queue_of_messages_by_another_name_gives_each_once_after_a_batch_that_failed(
    spark: SparkSession, world: World
) -> None:
    (world.root / "link").symlink_to(world.root, target_is_directory=True)
    by_link = world.queue_url.replace(str(world.root), f"{world.root}/link")
    world.publish(['{"id": 1, "name": "a"}', "no json", '{"id": 2, "name": "b"}'])
    strict: dict[str, Any] = {"content": "message", "allowedPrefixes": None, "mode": "FAILFAST", "source": "files"}
    failing = described(world, **strict, onCorruptObject="fail")
    with pytest.raises(StreamingQueryException):
        run(spark, failing)
    assert world.unconfirmed() == 1
    run_until_settled(spark, [(world, described(world, **strict, queueUrl=by_link))])
    assert world.published() == [(1, "a"), (2, "b")]
    assert {(row["state"], row["shard_id"].partition("#")[0]) for row in world.view("shards")} == {
        ("done", world.queue_url),
        ("quarantined", world.queue_url),
    }
